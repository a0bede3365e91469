"""A model of three sparse-MLA layers with weights set by hand, which continues a text that it has seen before.

    layer 0, full     every token looks one position back and learns the word there
    layer 1, shared   looks there again, by the same selection, and learns that token's word before
    layer 2, full     looks for where its own word and the one before stood, and says what came next

Words and positions are codes of plus and minus one, which every format holds exactly. The best key of a query beats the
next by a score of 2, times a scale of 32: all others together weigh 2048 e^-64, less than a rounding of fp64. So layers
0 and 1 are exact in any format; position is part of the token, and the RoPE dims are zero. A layer that attends to
nothing says word 0, and since the keys of layer 2 are made of what layers 0 and 1 found, a prompt that was read wrongly
stays unreadable for the decode steps that follow, whatever they do right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, Operators, Parts, SparseMLALayer, StepBatch
from ...reference.routing import Deployment, LayerKind, Rules
from ..layer.contract import LayerUnderTest
from ..layer.rig import Rig, RigSizes, StepResult
from .prompts import VOCABULARY

WORD_BITS, POSITION_BITS = 8, 16
KINDS: tuple[LayerKind, ...] = ("full", "shared", "full")
SCALE = 32.0
LARGEST_SCORE = SCALE * 16
Dims = Mapping[str, int]
#: Dims of one head: scores on 16 dims of the latent, values on the other 8.
DIMS: Dims = {"kv_lora_rank": WORD_BITS + POSITION_BITS, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
#: The same in the dims of DeepSeek-V3.2, for kernels that know no others: what is wider holds zeros.
WIDE: Dims = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
#: e4m3 codes hold a code times 64, and this times that is the code again.
K_SCALE = 2.0**-6


def sizes(dtype: torch.dtype, device: str, *, rows: int, blocks: int) -> RigSizes:
    """Sizes of the model; ``rows``: most tokens of one step; ``blocks``: pages of its caches."""
    return RigSizes(
        kinds=KINDS,
        index_heads=1,
        index_dim=16,
        blocks=blocks,
        max_tokens=rows,
        dtype=dtype,
        latent_dtype=torch.float8_e4m3fn,
        index_dtype=dtype,
        k_scale=K_SCALE,
        device=device,
    )


class RetrievalRig(Rig):
    """The model: it reads ``texts`` and computes each layer's inputs from what the layers before gave."""

    def __init__(
        self,
        rules: Rules,
        deployment: Deployment,
        sizes: RigSizes,
        *,
        operators: Operators,
        make: Callable[[Parts], LayerUnderTest] = SparseMLALayer,
    ) -> None:
        super().__init__(rules, deployment, sizes, operators=operators, make=make)
        self.texts: dict[int, list[int]] = {}
        """Words of each request: its prompt and what was said since."""

    def parts(self, place: int, kind: LayerKind, operators: Operators) -> Parts:
        parts = super().parts(place, kind, operators)
        w_uv, w_uk = torch.zeros_like(parts.w_uv), torch.zeros_like(parts.w_uk)
        w_uv[:, :, :WORD_BITS].diagonal(dim1=1, dim2=2)[:, :WORD_BITS] = 1
        w_uk[:, :, WORD_BITS : WORD_BITS + POSITION_BITS].diagonal(dim1=1, dim2=2)[:, :POSITION_BITS] = 1
        return replace(parts, w_uv=w_uv, w_uk=w_uk, scale=SCALE)

    def inputs(self, step: StepBatch, place: int, outputs: Sequence[Tensor] = ()) -> LayerInputs:
        words = [
            word
            for number, request in zip(step.ids, step.batch.requests, strict=True)
            for word in self.texts[number][request.context_len : request.seq_len]
        ]
        _, positions = step.token_rows()
        word = self._code(torch.tensor(words), WORD_BITS)
        found = [_said(out).to(word.dtype) for out in outputs]
        if place < 2:
            key, query = self._code(positions, POSITION_BITS), self._code(positions - 1, POSITION_BITS)
            value = word if place == 0 else found[0]
        else:
            key, query, value = torch.cat((found[0], found[1]), -1), torch.cat((word, found[0]), -1), word
        return self._layer_inputs(query, key, value, full=KINDS[place] != "shared")

    def say(self, result: StepResult) -> dict[int, int]:
        """The next word of every request of a step, appended to its text. Of equals the lowest."""
        codes = self._code(torch.arange(VOCABULARY), WORD_BITS).float()
        said = {}
        for number in result.step.ids:
            logits = codes @ _said(result.output(number)[-1:])[0].float()
            said[number] = int(logits.argmax())
            self.texts[number].append(said[number])
        return said

    def _layer_inputs(self, query: Tensor, key: Tensor, value: Tensor, *, full: bool) -> LayerInputs:
        dims, tokens = self.deployment, len(query)
        rotated = query.new_zeros(tokens, dims.qk_rope_head_dim)
        unused = query.new_zeros(tokens, dims.qk_nope_head_dim - POSITION_BITS)
        spare = query.new_zeros(tokens, dims.kv_lora_rank - WORD_BITS - POSITION_BITS)
        index: dict[str, Any] = {}
        if full:
            weights = torch.ones(tokens, 1, device=query.device)
            index = {"index_q": query[:, None], "index_k": key, "index_weights": weights}
        q = torch.cat((query, unused, rotated), -1)[:, None].expand(-1, dims.local_heads, -1).contiguous()
        return LayerInputs(q=q, kv_c=torch.cat((value, key, spare), -1), k_pe=rotated, **index)

    def _code(self, numbers: Tensor, bits: int) -> Tensor:
        """Plus and minus one for the bits of each number; -1 is all ones, a position that no token has."""
        ones = (numbers[:, None] >> torch.arange(bits)) & 1
        return (2 * ones - 1).to(self.sizes.dtype).to(self.sizes.device)


def _said(out: Tensor) -> Tensor:
    """All heads look for the same: the mean [s, 8] over heads of what an output [s, h, v] says."""
    return out[..., :WORD_BITS].mean(1)
