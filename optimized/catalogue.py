"""Every shipped implementation, in the order of the tables. A literal list: an implementation is one entry in its folder."""

from __future__ import annotations

from .implementation import Implementation
from .triton_kernels import IMPLEMENTATIONS as TRITON

IMPLEMENTATIONS: tuple[Implementation, ...] = (*TRITON,)
