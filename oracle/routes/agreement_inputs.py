"""Batches on which every route of a layer computes the same numbers, whatever it rounds on the way.

Up-projections, rotations and caches would each round differently on each route. Here they are exact:

* a row of w_uk and w_uv picks one column of the latent, with a sign, so that absorbing a query, projecting up and
  projecting an output copy numbers;
* positions rotate by quarter turns;
* latents, rotated dims and queries are e4m3 codes times a power of two, which every cache holds exactly;
* the scores of the indexer are distinct integers below 2048, so that every right kernel selects the same keys.

So one reference, masked MHA over the selected keys, says what all routes must give, and each is held to the budget of
its own kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...reference.layer import build_mask
from ...reference.mla import up_project
from ...reference.topk_select import topk_select
from ..case import Case
from ..config import load
from ..geometry import Geometry
from ..inputs import Inputs
from ..inputs.arena import Arena
from ..inputs.tensors import DTYPES

#: Bits of a position's number, by which the indexer tells keys apart; and the width of its keys.
POSITION_BITS, INDEX_DIM = 10, 16
#: One scale for all codes: they lie between -448 and 448 of these.
UNIT = 2.0**-6
WORD_MULTIPLE = 4


@dataclass(frozen=True, slots=True, eq=False)
class LatentBatch:
    """Whole sequences of several requests; every field by request."""

    case: Case
    geometry: Geometry
    w_uk: Tensor
    """[h, p, c]"""
    w_uv: Tensor
    """[h, v, c]"""
    inputs: tuple[Mapping[str, Tensor], ...]
    """Keywords of LayerInputs, each [length, …] fp32."""

    def selected(self, request: int) -> Tensor:
        """int32 [length, k], request-local: what the indexer must find."""
        x = self.inputs[request]
        length = len(x["q"])
        scores = torch.einsum("sie,te->st", x["index_q"], x["index_k"]).relu()
        ks = torch.zeros(length, dtype=torch.int32)
        return topk_select(scores, ks, torch.arange(1, length + 1, dtype=torch.int32), k=self.case.topk)[0]


def latent_batch(case: Case) -> LatentBatch:
    """The batch of a case of ``masked_mha`` whose requests are whole prompts; the same at every call."""
    geometry = load(case.geometry)
    generator = torch.Generator().manual_seed(case.seed)
    requests = tuple(_request(geometry, case.heads, length, generator) for length in case.k_lens)
    c = geometry.kv_lora_rank
    w_uk, w_uv = (_picks(case.heads, rows, c, generator) for rows in (geometry.qk_nope_head_dim, geometry.v_head_dim))
    return LatentBatch(case, geometry, w_uk, w_uv, requests)


def drawn(batch: LatentBatch, device: str) -> Inputs:
    """What masked MHA is given where it sees the batch as one call."""
    case, lengths = batch.case, batch.case.k_lens
    dtype, arena = DTYPES[case.dtype], Arena(case.layout, device)
    positions = torch.cat([torch.arange(length) for length in lengths])
    x = {name: torch.cat([each[name] for each in batch.inputs]) for name in ("q", "kv_c", "k_pe")}
    nope = batch.geometry.qk_nope_head_dim
    q = torch.cat((x["q"][..., :nope], quarter_turns(x["q"][..., nope:], positions)), -1)
    k, v = up_project(x["kv_c"], quarter_turns(x["k_pe"], positions), batch.w_uk, batch.w_uv)
    for name, values in (("q", q), ("k", k), ("v", v)):
        arena.place(name, values.to(dtype))
    selected = torch.cat([batch.selected(request) for request in range(len(lengths))])
    starts = [0] * len(lengths)
    arena.place("mask", build_mask(selected, lengths, starts, lengths, word_multiple=WORD_MULTIPLE))
    for name in ("cu_q", "cu_k"):
        arena.place(name, torch.tensor((0, *accumulate(lengths)), dtype=torch.int32))
    options: dict[str, object] = {"scale": batch.geometry.softmax_scale, "causal": True}
    return Inputs(case, batch.geometry, {name: kept.tensor for name, kept in arena.tensors.items()}, options, arena)


def quarter_turns(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate neighbouring dims of x [s, …, r] by a quarter turn a position: exact in every format."""
    turned = x
    quarter = (positions % 4).view(-1, *[1] * (x.dim() - 1))
    for _ in range(3):
        even, odd = turned[..., 0::2], turned[..., 1::2]
        once = torch.stack((-odd, even), -1).flatten(-2)
        turned = torch.where(quarter > 0, once, turned)
        quarter = quarter - 1
    return turned


def _request(geometry: Geometry, heads: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    def codes(*shape: int, size: float) -> Tensor:
        values = torch.randn(length, *shape, generator=generator) * (size / UNIT)
        return values.to(torch.float8_e4m3fn).float() * UNIT

    names = torch.randperm(2**POSITION_BITS, generator=generator)[:length]
    key = (names[:, None] >> torch.arange(POSITION_BITS)) & 1
    powers = 2.0 ** torch.stack([torch.randperm(POSITION_BITS, generator=generator) for _ in range(length)])
    signs = 1.0 - 2.0 * torch.randint(2, (length, POSITION_BITS), generator=generator)
    pad = torch.zeros(length, INDEX_DIM - POSITION_BITS - 1)
    return {
        "q": codes(heads, geometry.qk_head_dim, size=2.0),
        "kv_c": codes(geometry.kv_lora_rank, size=1.0),
        "k_pe": codes(geometry.qk_rope_head_dim, size=1.0),
        # A constant keeps every score positive, so that ReLU makes none equal.
        "index_q": torch.cat((powers * signs, torch.full((length, 1), 2.0**POSITION_BITS), pad), 1)[:, None],
        "index_k": torch.cat((key.float(), torch.ones(length, 1), pad), 1),
        "index_weights": torch.ones(length, 1),
    }


def _picks(heads: int, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[h, rows, columns] with one entry of plus or minus one a row, in a column of its own."""
    weights = torch.zeros(heads, rows, columns)
    for head in range(heads):
        chosen = torch.randperm(columns, generator=generator)[:rows]
        weights[head, torch.arange(rows), chosen] = 1.0 - 2.0 * torch.randint(2, (rows,), generator=generator)
    return weights
