"""Whether Triton kernels run here, and how: compiled for a GPU or interpreted on the CPU.

Triton looks at TRITON_INTERPRET each time a function is decorated, its own ``tl.sum`` among the first, so a process is
either compiled or interpreted for good. ``prepare()`` decides before Triton is first imported: interpreted where torch
sees no CUDA device, or where the user set TRITON_INTERPRET=1.

``import torch`` alone leaves Triton out; ``torch.compile``, FlexAttention's compilation and ``torch._inductor`` import
it. Call ``prepare()`` before them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import torch

from .interpreter import interprets, mend, mended, requested


class TritonUnavailable(RuntimeError):
    """Triton kernels cannot run in this process; the message says why and what to do."""


def availability() -> str | None:
    """None if Triton kernels can run in this process, else the reason why not. Imports nothing."""
    if "triton" not in sys.modules:
        if not sys.platform.startswith("linux"):
            return f"Triton runs on Linux only, this is {sys.platform}"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed; pip install triton"
        return None
    if not interprets() and not torch.cuda.is_available():
        return (
            "triton was imported without TRITON_INTERPRET=1 and there is no CUDA device; set TRITON_INTERPRET=1 in the "
            "environment, or call prepare() before anything imports triton (torch.compile does)"
        )
    if not interprets() and requested():
        return (
            "TRITON_INTERPRET is set but triton was imported before it was, compiled; a process is either compiled or "
            "interpreted: set it before anything imports triton"
        )
    return None


def interpreted() -> bool:
    """Whether Triton kernels run, or would run, in the interpreter of this process."""
    if "triton" in sys.modules:
        return interprets()
    return requested() or not torch.cuda.is_available()


def prepare() -> None:
    """Import Triton, interpreted and mended where there is no CUDA device or the user asked for it.

    Call it before the first import of Triton and before kernels are decorated; calling it again does nothing. Raises
    TritonUnavailable with the reason of ``availability()``, and MendError if the interpreter cannot be mended.
    """
    reason = availability()
    if reason is not None:
        raise TritonUnavailable(reason)
    if not interpreted():
        importlib.import_module("triton")
        return
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("triton")
    mend()


def prepare_if_available() -> None:
    """``prepare()`` where Triton kernels can run, else nothing: for code that may bring Triton by itself."""
    if availability() is None:
        prepare()


def keep_mended() -> None:
    """Mend the interpreter if Triton interprets in this process and nobody has; imports nothing.

    Kernels of users bring Triton with TRITON_INTERPRET set by themselves, and its own interpreter rounds bf16 wrongly.
    Raises MendError if the interpreter cannot be mended.
    """
    if "triton" in sys.modules and interprets() and not mended():
        mend()
