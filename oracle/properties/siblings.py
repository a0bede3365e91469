"""The kernel of another operator that a property compares with: of the same backend, or the tiled kernel in torch."""

from __future__ import annotations

from dataclasses import replace

from ...optimized.implementation import Implementation
from ..config import load
from ..facts import facts
from ..faults.simulated import SIMULATED, simulated
from ..guests import known
from .call import Call


def dense_sibling(call: Call, **dims: int) -> Call:
    """Dense MHA, as a call on the same lengths: the backend's own where there is one that takes the case.

    ``dims``: of its heads, d and v, where they are not those of the model.

    Otherwise the tiled kernel that faults are planted in, unchanged: it is no reference, for it works in fp32, tile by
    tile, and its answer has a budget like any other. On CUDA that kernel runs there as well.
    """
    options = tuple(option for option in call.case.options if option == "noncausal")
    case = replace(call.case, operator="dense_mha", options=options, topk=0, layout="contiguous")
    own = f"dense_mha/{call.implementation.backend}"
    if own in known.names():
        found = known.find(own)
        if found.supports(facts(case, load(case.geometry), call.device) | dims) is None:
            return Call(case, found, call.device)
    kernel = simulated("dense_mha")
    stand_in = Implementation("dense_mha/simulated", SIMULATED, lambda facts: None, lambda: kernel)
    return Call(case, stand_in, call.device)
