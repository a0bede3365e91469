"""Implementations by name, planted faults among them: every command can be tried on a kernel known to be bad."""

from __future__ import annotations

from collections.abc import Callable

from ...optimized.implementation import Implementation
from ..errors import BadInput
from ..guests import known

#: Marks the name of a fault of the catalogue.
FAULT = "fault:"

#: Makes an implementation afresh; one that remembers earlier calls forgets them with it.
Make = Callable[[], Implementation]


def named(name: str, operator: str) -> Make:
    """``<operator>/<backend>`` known by name, or ``fault:NAME``.

    Raises BadInput for an unknown name, with the nearest, and for one of another operator.
    """
    if name.startswith(FAULT):
        from ..faults import fault

        faulty = fault(name.removeprefix(FAULT))
        if faulty.operator != operator:
            raise BadInput(f"{name}: planted in {faulty.operator}, but the case is one of {operator}")
        return faulty.implementation
    found = known.find(name)
    if found.operator != operator:
        raise BadInput(f"{name} is an implementation of {found.operator}, but the case is one of {operator}")
    return lambda: found
