"""CUDA-graph capture and replay, checked: a graph freezes what the host decided, and this finds where that is wrong.

``check_step`` judges a step function of one's own; ``engine.py`` and ``run.py`` judge a whole layer over sequences of
batches. Graphs are real (``torch.cuda.CUDAGraph``) or emulated on the CPU.
"""

from __future__ import annotations

from .api import StepReport, check_step
from .backend import Capturing, Graph, Maker
from .makers import maker
from .violation import CHECKS, CaptureFailed, IllegalCall, Violation

__all__ = (
    "CHECKS",
    "CaptureFailed",
    "Capturing",
    "Graph",
    "IllegalCall",
    "Maker",
    "StepReport",
    "Violation",
    "check_step",
    "maker",
)
