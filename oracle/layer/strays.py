"""Layers that write where nothing of theirs lies; only guarded memory tells."""

from __future__ import annotations

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, PreparedQuery, SparseMLALayer, StepMetadata, Trace, need, to_slots
from ...reference.routing import Route


class ConvertsTheWholeBatch(SparseMLALayer):
    """Sparse MQA gets the decode rows, its index converter a row a token of the whole batch (vllm-project/vllm#48611).

    The result has a row a decode token, and the converter starts one program a request id, so the rows of the prefills
    are stored behind it. Reading their selections is harmless: they follow in the same buffer.
    """

    def attend(
        self,
        inputs: LayerInputs,
        prepared: PreparedQuery,
        k_pe: Tensor,
        metadata: StepMetadata,
        route: Route,
        trace: Trace,
    ) -> Tensor:
        requests = need(metadata, "request_rows")
        decodes = need(metadata, "num_decode_tokens")
        if route in ("dense_mha", "masked_mha") and decodes:
            selected = self.parts.buffer.indices[: len(requests)]
            slots = to_slots(
                need(metadata, "block_table"), requests[:, None], selected, self.parts.latent.block_size
            ).int()
            converted = torch.empty(decodes, slots.shape[1], dtype=torch.int32, device=slots.device)
            converted.as_strided(slots.shape, converted.stride()).copy_(slots)
        return super().attend(inputs, prepared, k_pe, metadata, route, trace)
