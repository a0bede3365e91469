"""Implementations by name, planted faults among them: every command can be tried on a kernel known to be bad."""

from __future__ import annotations

from collections.abc import Callable

from ...optimized.implementation import Implementation
from ..errors import BadInput
from ..guests import known

#: Marks the name of a fault of the catalogue.
FAULT = "fault:"
#: Marks a fault that acts on some lengths only (see ``oracle/faults/hidden.py``).
HIDDEN = "hidden:"

#: Makes an implementation afresh; one that remembers earlier calls forgets them with it.
Make = Callable[[], Implementation]


def named(name: str, operator: str) -> Make:
    """``<operator>/<backend>`` known by name, ``fault:NAME`` or ``hidden:NAME``.

    Raises BadInput for an unknown name, with the nearest, and for one of another operator.
    """
    if name.startswith(HIDDEN):
        from ..faults.hidden import hidden

        secret = hidden(name.removeprefix(HIDDEN))
        if secret.operator != operator:
            raise BadInput(f"{name}: hidden in {secret.operator}, but the case is one of {operator}")
        return secret.implementation
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


def operator_of(name: str) -> str:
    """The operator of an implementation by its name. Raises BadInput for an unknown fault, with the nearest."""
    if name.startswith(HIDDEN):
        from ..faults.hidden import hidden

        return hidden(name.removeprefix(HIDDEN)).operator
    if name.startswith(FAULT):
        from ..faults import fault

        return fault(name.removeprefix(FAULT)).operator
    return name.partition("/")[0]
