"""Layers that are wrong only where several ranks share the keys."""

from __future__ import annotations

import torch
from torch import Tensor

from ...reference.layer import OperatorCall, Query, SparseMLALayer, StepMetadata, Trace, need, to_slots
from ...reference.mla import project_output


class GlobalPositionsInLocalTables(SparseMLALayer):
    """Every rank looks all selected positions up in its own block table (vllm-project/vllm#54541).

    A rank keeps runs of ``cp_interleave`` keys, round robin. Its table counts the keys it keeps, so position p of the
    sequence finds the p-th key of the rank, where there is one; keys of other ranks are not left out but count again.
    """

    def attend_mqa(self, query: Query, metadata: StepMetadata, tokens: tuple[int, int], trace: Trace) -> Tensor:
        parts, dims = self.parts, self.parts.deployment
        if dims.dcp == 1:
            return super().attend_mqa(query, metadata, tokens, trace)
        rows = slice(*tokens)
        selected = parts.buffer.read(tokens, "sparse_mqa", trace)
        requests, table = need(metadata, "request_rows")[rows][:, None], need(metadata, "block_table")
        trace.events.append(OperatorCall("sparse_mqa", tokens, query.form))
        lengths = need(metadata, "positions")[rows][:, None] + 1
        merged: tuple[Tensor, Tensor] | None = None
        for rank in range(dims.dcp):
            found = _kept(selected.long(), rank, dims.dcp, dims.cp_interleave)
            found = torch.where((selected >= 0) & (found < lengths), found, -1)
            slots = to_slots(table, requests, found, parts.latent.block_size)
            parts.latent.note_read(slots, tokens, "sparse_mqa", trace)
            partial = parts.operators["sparse_mqa"](
                q=query.tensor,
                kv=parts.latent.rows(None, query.tensor.dtype),
                indices=slots.int(),
                scale=parts.scale,
                value_dim=dims.kv_lora_rank,
            )
            if merged is None:
                merged = partial[0], partial[1]
            else:
                out_a, lse_a = merged
                joined = parts.operators["merge_lse"](out_a=out_a, lse_a=lse_a, out_b=partial[0], lse_b=partial[1])
                merged = joined[0], joined[1]
        assert merged is not None
        return project_output(merged[0], parts.w_uv)


def _kept(local: Tensor, rank: int, ranks: int, interleave: int) -> Tensor:
    """Position in the sequence of a rank's key ``local``."""
    return local.div(interleave, rounding_mode="floor") * (ranks * interleave) + rank * interleave + local % interleave
