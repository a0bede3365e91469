"""vLLM's own small operators, taken out of its sources: merge of partial results, mask builder, index conversion.

The merge runs as torch code and as the Triton kernel; mask builder and index conversion are Triton kernels, and run in
the mended interpreter where there is no GPU. Standing in: the platform, and pinned memory.

Source: vLLM 0.33.0 ``v1/attention/ops``, ``sparse_mla_attention.py``, ``sparse_utils.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ...optimized.triton_runtime import prepare
from .source import Sources

_MASK = "model_executor/layers/attention/sparse_mla_attention.py"
_INDEX = "v1/attention/backends/mla/sparse_utils.py"
_MERGE = "v1/attention/ops/merge_attn_states.py"
_MERGE_TRITON = "v1/attention/ops/triton_merge_attn_states.py"
_PRELUDE = """
from __future__ import annotations
import numpy as np
import torch
import triton
import triton.language as tl
float8_info = torch.finfo(torch.float8_e4m3fn)
np_to_pinned_tensor = torch.from_numpy
"""
#: Columns that one program converts.
_TILE = 128


class VllmOperators:
    """The operators of one installed version. Raises TritonUnavailable where Triton kernels cannot run."""

    def __init__(self, sources: Sources) -> None:
        prepare()
        self.module: ModuleType = sources.load(
            "operators",
            _PRELUDE,
            sources.define(_MERGE, "_merge_attn_states_torch"),
            sources.define(_MERGE_TRITON, "merge_attn_states").replace("def merge_attn_states(", "def merge_triton("),
            sources.define(_MERGE_TRITON, "merge_attn_states_kernel"),
            sources.define(_MASK, "_topk_mask_shape"),
            sources.define(_MASK, "_scatter_topk_kernel"),
            sources.define(_MASK, "_scatter_topk_single_req_kernel"),
            sources.define(_MASK, "_build_topk_mask"),
            sources.define(_INDEX, "ConvertReqIndexToGlobalIndexKernel.sparse_mla_index_remap_kernel"),
        )

    def merges(self) -> tuple[Implementation, ...]:
        """Both merges as implementations that ``check`` can judge."""
        found = (("vllm-torch", self.module._merge_attn_states_torch), ("vllm-triton", self.module.merge_triton))
        return tuple(_merge(name, function) for name, function in found)

    def build_mask(self, indices: Tensor, query_lens: Sequence[int], keys: int) -> Tensor:
        """int32 [b, rows, words] of selections int32 [s, k] of packed requests, in memory that held all ones.

        Rows are those of the longest request: the engine pads them to a tile, one program a row.
        """
        module, rows = self.module, max(query_lens)
        words = module._topk_mask_shape(len(query_lens), rows, keys)[2]
        out = torch.full((len(query_lens), rows, words), -1, dtype=torch.int32)
        per_request = list(torch.split(indices, list(query_lens)))
        mask: Tensor = module._build_topk_mask(per_request, list(query_lens), rows, keys, out)
        return mask

    def convert(
        self,
        indices: Tensor,
        requests: Tensor,
        block_table: Tensor,
        *,
        block_size: int,
        page_rows: int,
        dcp: int = 1,
        rank: int = 0,
        interleave: int = 1,
        compact: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Physical rows int32 [s, k] of request-local positions, and how many are valid."""
        tokens, width = indices.shape
        out, counts = torch.full_like(indices, -1), torch.zeros(tokens, dtype=torch.int32)
        self.module.sparse_mla_index_remap_kernel[(tokens, width // _TILE)](
            requests,
            block_table,
            indices,
            out,
            counts,
            None,
            None,
            None,
            0,
            block_table.shape[1],
            BLOCK_SIZE=block_size,
            BLOCK_STRIDE_ROWS=page_rows,
            BLOCK_N=_TILE,
            NUM_TOPK_TOKENS=width,
            HAS_PREFILL=False,
            HAS_IDX_MAPPING=False,
            COUNT_VALID=True,
            SINGLE_TILE=False,
            COMPACT_TO_FRONT=compact,
            DCP_SIZE=dcp,
            DCP_RANK=rank,
            DCP_INTERLEAVE=interleave,
            bt_stride0=block_table.stride(0),
            bt_stride1=block_table.stride(1),
            ti_stride0=indices.stride(0),
            ti_stride1=indices.stride(1),
            out_stride0=out.stride(0),
            out_stride1=out.stride(1),
        )
        return out, counts


def _merge(name: str, function: object) -> Implementation:
    def merge_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        # The engine's LSE are [heads, tokens], and both sides have one head stride.
        a, b = out_a.contiguous(), out_b.contiguous()
        out = torch.empty_like(a)
        lse = torch.empty(lse_a.shape[1], lse_a.shape[0], dtype=torch.float32, device=a.device)
        function(out, a, lse_a.float().T.contiguous(), b, lse_b.float().T.contiguous(), lse)  # type: ignore[operator]
        return out, lse.T.contiguous()

    return Implementation(f"merge_lse/{name}", Contract(), lambda facts: None, lambda: merge_lse)
