"""The fault catalogue: planted defects, the simulated kernels they are planted in, and weak verdicts to compare with.

``FAULTS`` lists every fault; ``fault(name)`` finds one. A fault makes its kernel with ``plant()`` and an
``Implementation`` that ``check`` can judge with ``implementation()``.
"""

from __future__ import annotations

from ..errors import unknown
from .catalogue import FAULTS
from .fault import CHECKS, VERDICTS, Fault
from .weak import WEAK

_BY_NAME = {entry.name: entry for entry in FAULTS}


def fault(name: str) -> Fault:
    """The fault of that name. Raises BadInput with the nearest names for an unknown one."""
    if name not in _BY_NAME:
        raise unknown("fault", name, _BY_NAME)
    return _BY_NAME[name]


__all__ = ("CHECKS", "FAULTS", "VERDICTS", "WEAK", "Fault", "fault")
