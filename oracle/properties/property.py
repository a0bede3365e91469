"""A property: its number and name, the operators that it speaks of, and the relation itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from .call import Call
from .claim import Claim

#: What has to hold. Raises DoesNotApply with the reason where the relation says nothing here.
Relation = Callable[[Call], Iterable[Claim]]
Status = Literal["held", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Property:
    """One of the table."""

    number: int
    """Its place in the table; 1 to 46 relate answers, the rest are race tests."""
    name: str
    operators: tuple[str, ...]
    relation: Relation

    @property
    def statement(self) -> str:
        """The first paragraph of the relation's docstring, on one line."""
        text = inspect.getdoc(self.relation) or ""
        return " ".join(text.split("\n\n")[0].split())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one property on one case."""

    number: int
    name: str
    implementation: str
    case: str
    status: Status
    reason: str
    """Why it failed or does not apply; empty if it held."""
    ratio: float
    """Largest difference over what is allowed; 0 for equal bits, infinite for differing ones."""
    claims: int
    """Comparisons made."""
