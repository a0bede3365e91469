"""Imported by the server that workers are forked from, so that none of them imports it again."""

from __future__ import annotations

from ...optimized import interpreter, triton_runtime
from .. import check
from ..guests import known

__all__ = ["check", "known"]

# Only where kernels are interpreted for certain: asking whether there is a GPU would spoil it for the forked workers.
if interpreter.requested():
    triton_runtime.prepare_if_available()
