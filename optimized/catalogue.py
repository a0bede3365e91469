"""Every shipped implementation, in the order of the tables: a literal list, put together from one a folder."""

from __future__ import annotations

from .implementation import Implementation
from .triton_kernels import IMPLEMENTATIONS as TRITON

IMPLEMENTATIONS: tuple[Implementation, ...] = (*TRITON,)
