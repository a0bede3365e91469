"""Which device a run uses, settled before anything heavy is imported."""

from __future__ import annotations

import os
import sys

from .environment import installed
from .errors import BadInput, Unsupported

DEVICES = ("auto", "cpu", "cuda")


def settle(wanted: str) -> str:
    """The device for ``auto``, ``cpu`` or ``cuda``; makes Triton interpret its kernels if that is the CPU.

    Child processes inherit the choice. Raises Unsupported where CUDA is wanted and absent, or where Triton already
    compiles in this process, since a process is either interpreted or compiled.
    """
    if wanted not in DEVICES:
        raise BadInput(f"device: expected one of {', '.join(DEVICES)}, got {wanted!r}")
    if wanted == "cuda" and not _has_cuda():
        raise Unsupported("device cuda: torch sees no CUDA device here; use --device cpu, or see attnoracle doctor")
    device = "cuda" if wanted == "cuda" or (wanted == "auto" and _has_cuda()) else "cpu"
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        if "triton" in sys.modules and not _interprets():
            raise Unsupported(
                "device cpu: triton was imported before TRITON_INTERPRET=1 was set, so its kernels would be compiled "
                "for a GPU; set it in the environment, or let nothing, a conftest.py for one, import triton before"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    return device


def _interprets() -> bool:
    from ..optimized.interpreter import interprets

    return interprets()


def _has_cuda() -> bool:
    # A CPU build answers without the second that importing torch takes.
    if (installed("torch") or "").endswith("+cpu"):
        return False
    import torch

    return torch.cuda.is_available()


def has_cuda() -> bool:
    """Whether torch sees a CUDA device."""
    return _has_cuda()
