"""How much memory a case takes at least, before any of it is asked for."""

from __future__ import annotations

import torch

from ..case import Case
from ..environment import total_memory
from ..errors import Unsupported
from ..geometry import Geometry
from .tensors import DTYPES

#: Bytes a token takes for where it belongs: five int64 fields.
_TOKEN = 40


def least_bytes(case: Case, geometry: Geometry, device: torch.device) -> int:
    """Bytes of the inputs and of one answer of a case; what is made from them on the way comes on top."""
    s, t, h, size = case.queries, case.keys, case.heads, DTYPES[case.dtype].itemsize
    d, v, wide, latent = geometry.qk_head_dim, geometry.v_head_dim, geometry.latent_dim, geometry.kv_lora_rank
    tokens = _TOKEN * (s + t)
    match case.operator:
        case "dense_mha" | "masked_mha":
            mask = len(case.q_lens) * max(case.q_lens) * (max(case.k_lens) // 32) * 4
            return tokens + size * h * (s * (d + v) + t * (d + v)) + (mask if case.operator == "masked_mha" else 0)
        case "sparse_mqa":
            # The rows in front of a far cache are addresses on a CPU and memory on a GPU.
            far = 2**31 if "hugerows" in case.options and device.type == "cuda" else 0
            return tokens + size * (s * h * (wide + latent) + t * wide + far) + 4 * s * case.topk
        case "indexer_scores":
            e = geometry.index_head_dim or 0
            return tokens + size * e * (s * h + t) + 4 * s * (h + t)
        case "topk_select":
            return tokens + 4 * s * (t + case.topk)
        case _:
            return tokens + 3 * size * s * h * v


def require_room(case: Case, geometry: Geometry, device: torch.device) -> None:
    """Raises Unsupported for a case that the device's whole memory does not hold."""
    needed = least_bytes(case, geometry, device)
    room = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else total_memory()
    if needed > room:
        raise Unsupported(
            f"needs {needed:,} bytes ({needed / 2**30:,.1f} GiB) for inputs and one answer, {device} has {room:,}"
        )
