"""One implementation of one operator: a plain record that the oracle can plan, run and judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .contract import Contract

#: Does the work once per call, on whatever its inputs hold by then; returns the operator's outputs in order.
Run = Callable[[], tuple[Any, ...]]
#: A case seen from outside: device, dtype, dims, lengths and options, as plain values (see ``oracle/facts.py``).
Facts = Mapping[str, Any]


class Prepare(Protocol):
    """Plan, compile and allocate for these inputs; everything that is not to be timed."""

    def __call__(self, **inputs: Any) -> Run: ...


@dataclass(frozen=True, slots=True)
class Implementation:
    """A named callable for one operator and the contract it declares.

    ``name`` is ``<operator>/<backend>``. ``supports`` returns None, or the reason why a case cannot run here.
    ``load`` imports what is heavy and returns the function, whose keyword names are those of the reference.
    ``plan`` is for kernels with a planning step; without it the function itself is run.
    """

    name: str
    contract: Contract
    supports: Callable[[Facts], str | None]
    load: Callable[[], Callable[..., tuple[Any, ...]]]
    plan: Callable[[], Prepare] | None = None
    origin: str = ""
    """Options of a command that name it; empty: its name does, since it is shipped or installed."""

    def __post_init__(self) -> None:
        operator, _, backend = self.name.partition("/")
        if not operator or not backend:
            raise ValueError(f"implementation name: expected '<operator>/<backend>', got {self.name!r}")

    @property
    def operator(self) -> str:
        return self.name.partition("/")[0]

    @property
    def backend(self) -> str:
        return self.name.partition("/")[2]

    def prepare(self, **inputs: Any) -> Run:
        """Everything before the work itself; the result may be called any number of times."""
        if self.plan is not None:
            return self.plan()(**inputs)
        return partial(self.load(), **inputs)
