"""Options that go together, as a group: a frozen dataclass whose fields are the options, or groups of them.

A command names a group as one parameter and gets it filled; on the command line it has the group's options, in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import BadInput
from ..fleet.choose import Place
from . import guests, options
from .selection import implementations

if TYPE_CHECKING:
    from ...optimized.implementation import Implementation
    from ..guests.external import External

_NONE = inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which implementations are judged, and on which geometries."""

    operator: options.Operators = None
    implementation: options.Implementations = None
    impl: guests.Impl = None
    contract: guests.Contract = None
    adapter: guests.Adapter = None
    geometry: options.Geometries = None

    def brought(self) -> guests.Brought | None:
        """What the user brings. Raises BadInput for options that do not go together."""
        return guests.Brought.of(self.impl, self.operator, self.contract, self.adapter)

    def names(self, mine: Sequence[External]) -> list[str]:
        """The patterns that were named, and what was brought."""
        return [*(self.implementation or ()), *(one.name for one in mine)]

    def of_the_case(self, operator: str, device: str, promised: str = "") -> tuple[External, ...]:
        """What the user brings for a case; see ``guests.of_the_case``."""
        words = self.impl, self.operator, self.contract, self.adapter
        return guests.of_the_case(*words, operator=operator, device=device, promised=promised)

    def candidates(self, mine: Sequence[External], *, but: Sequence[str] = ()) -> tuple[Implementation, ...]:
        """The implementations chosen, or all except those in ``but``. Raises BadInput for unknown names."""
        return implementations(self.names(mine), self.operator or (), but=but)


@dataclass(frozen=True, kw_only=True)
class OneKernel:
    """The one implementation that a command is about: named, or a callable of the user's."""

    implementation: options.ImplementationName = None
    impl: guests.Impl = None
    operator: options.OfTheCase = None
    contract: guests.Contract = None
    adapter: guests.Adapter = None

    def name(self, operator: str, device: str, promised: str = "") -> str:
        """Its name, after the device is settled. ``promised``: the file of a contract where ``--contract`` names none.

        Raises BadInput for none, for several, for a pattern, and where ``--operator`` is not the case's.
        """
        words = self.impl, [self.operator] if self.operator else [], self.contract, self.adapter
        mine = guests.of_the_case(*words, operator=operator, device=device, promised=promised)
        given = [*([self.implementation] if self.implementation else []), *(one.name for one in mine)]
        told = ", ".join(given) or "none"
        if len(given) != 1 or "*" in given[0]:
            raise BadInput(f"expected one kernel for {operator} (--implementation NAME or --impl TARGET), got {told}")
        return given[0]


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where judgements run."""

    device: options.DeviceName = options.Device.auto
    jobs: options.Jobs = None
    engine: options.Engine = options.EngineName.local
    address: options.Address = None

    def place(self) -> Place:
        """Raises BadInput or Unsupported for what is not there: Ray, a cluster at the address, a GPU."""
        return Place.of(self.engine.value, self.address, self.device)


@dataclass(frozen=True, kw_only=True)
class WhereElseCpu(Where):
    """On the CPU unless another device is named."""

    device: options.DeviceName = options.Device.cpu


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its groups as parameters of its own."""
    hints = get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters.values()
    parameters = [option for one in given for option in _options(one.name, hints[one.name], one.default)]

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{one.name: _filled(one.name, hints[one.name], values) for one in given})

    run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The options that a parameter or field stands for: those of its group, or itself."""
    if not is_dataclass(hint):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for one in fields(hint):
        yield from _options(one.name, hints[one.name], _NONE if one.default is MISSING else one.default)


def _filled(name: str, hint: Any, values: Mapping[str, Any]) -> Any:
    """What a parameter or field is given: its group, or its own value."""
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    make: Any = hint
    return make(**{one.name: _filled(one.name, hints[one.name], values) for one in fields(hint)})
