"""Every shipped implementation, in the order of the tables. An implementation is one entry in its folder's list."""

from __future__ import annotations

from .flashinfer_kernels import IMPLEMENTATIONS as FLASHINFER
from .hopper_kernels import IMPLEMENTATIONS as HOPPER
from .implementation import Implementation
from .peer_kernels import IMPLEMENTATIONS as PEERS
from .torch_kernels import IMPLEMENTATIONS as TORCH
from .transformers_kernels import IMPLEMENTATIONS as TRANSFORMERS
from .triton_kernels import IMPLEMENTATIONS as TRITON

IMPLEMENTATIONS: tuple[Implementation, ...] = (*TORCH, *TRITON, *FLASHINFER, *PEERS, *TRANSFORMERS, *HOPPER)
