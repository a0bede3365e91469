"""A case seen from outside: the plain values that ``Implementation.supports`` decides on, before any tensor exists."""

from __future__ import annotations

from typing import Any

import torch

from ..optimized.triton_runtime import interpreted
from .case import Case
from .geometry import Geometry
from .inputs.options import INDEXERS, cache_format_of


def facts(case: Case, geometry: Geometry, device: str) -> dict[str, Any]:
    """Device, dims in the letters of ``reference``, lengths and options of a case."""
    cuda = device.startswith("cuda")
    return {
        "operator": case.operator,
        "device": "cuda" if cuda else "cpu",
        "capability": torch.cuda.get_device_capability(device) if cuda else None,
        "interpreted": interpreted(),
        "dtype": case.dtype,
        "cache_format": cache_format_of(case),
        "heads": case.heads,
        "d": geometry.qk_head_dim,
        "v": geometry.v_head_dim,
        "c": geometry.kv_lora_rank,
        "r": geometry.qk_rope_head_dim,
        "k": case.topk,
        "i": case.heads if case.operator in INDEXERS else geometry.index_n_heads,
        "e": geometry.index_head_dim,
        "q_lens": case.q_lens,
        "k_lens": case.k_lens,
        "causal": "noncausal" not in case.options,
        "layout": case.layout,
        "options": case.options,
    }
