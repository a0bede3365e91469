"""Every implementation that this process knows by name: the shipped, the installed, and those named for this run.

Worker processes are told what was named for the run (``snapshot``, ``adopt``), so that a name means the same in all.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from .. import config
from ..errors import BadInput, unknown

if TYPE_CHECKING:
    from ...optimized.implementation import Implementation
    from .external import External

#: Entry points of other packages: ``"sparse_mqa/mine" = "my_pkg.kernels:IMPLEMENTATION"``.
GROUP = "attnoracle.implementations"
#: Left out unless named, where there are many shapes: FlexAttention compiles each anew, for seconds on a CPU.
TOO_SLOW = ("masked_mha/flex",)

_named: dict[str, External] = {}


@dataclass(frozen=True, slots=True)
class Guests:
    """What was named for this run."""

    implementations: tuple[External, ...] = ()
    geometries: tuple[str, ...] = ()
    """Paths of configs."""


def admit(guest: External) -> External:
    """Make it known under its name. Raises BadInput if another target has that name."""
    other = _named.get(guest.name)
    if other is not None and other.target != guest.target:
        raise BadInput(f"two implementations are called {guest.name}: {other.target} and {guest.target}; rename one")
    _named[guest.name] = guest
    return guest


def forget() -> None:
    """Know the shipped and installed ones only, as at the start."""
    _named.clear()
    config.forget()


def snapshot() -> Guests:
    """What a worker process has to be told."""
    return Guests(tuple(_named.values()), config.registered())


def adopt(guests: Guests) -> None:
    """Know in this process what another one knew."""
    for path in guests.geometries:
        config.register(path)
    for guest in guests.implementations:
        _named[guest.name] = guest


def origin(geometry: str, implementation: str) -> str:
    """The options of a command that name both again where their names alone do not; see ``Verdict.origin``."""
    path = config.origin(geometry)
    named = _named[implementation].arguments if implementation in _named else ""
    return " ".join(filter(None, (named, f"--geometry {shlex.quote(path)}" if path else "")))


def installed() -> dict[str, EntryPoint]:
    """Entry points of the group by name, without importing what they name."""
    return {one.name: one for one in entry_points(group=GROUP)}


def names() -> tuple[str, ...]:
    """Names of all implementations: shipped, installed, named for this run."""
    from ...optimized.catalogue import IMPLEMENTATIONS

    return tuple(dict.fromkeys([*(one.name for one in IMPLEMENTATIONS), *installed(), *_named]))


def shipped(name: str) -> bool:
    """Whether an implementation is one of this package, a planted fault among them."""
    from ...optimized.catalogue import IMPLEMENTATIONS

    return name.startswith(("fault:", "hidden:")) or any(one.name == name for one in IMPLEMENTATIONS)


def find(name: str) -> Implementation:
    """The implementation of that name. Raises BadInput for an unknown one and for an entry point that is broken."""
    from ...optimized.catalogue import IMPLEMENTATIONS

    for candidate in IMPLEMENTATIONS:
        if candidate.name == name:
            return candidate
    if name in _named:
        return _named[name].implementation()
    found = installed()
    if name in found:
        return _loaded(found[name])
    raise unknown("implementation", name, names())


def every(wanted: Sequence[str]) -> tuple[Implementation, ...]:
    """Those of these names, in the order of ``names()``."""
    return tuple(find(name) for name in names() if name in wanted)


def _loaded(entry: EntryPoint) -> Implementation:
    from ...optimized.implementation import Implementation

    package = entry.dist.name if entry.dist is not None else "an installed package"
    try:
        value = entry.load()
    except Exception as error:
        raise BadInput(
            f"entry point {entry.name!r} of {package}: expected {entry.value} to import, got {type(error).__name__}: "
            f"{error}; mend or uninstall it, or choose others with --implementation"
        ) from error
    if not isinstance(value, Implementation) or value.name != entry.name:
        raise BadInput(
            f"entry point {entry.name!r} of {package}: expected an Implementation of that name, got {value!r:.200}"
        )
    return value
