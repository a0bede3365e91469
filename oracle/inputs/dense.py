"""Inputs of ``dense_mha`` and ``masked_mha``."""

from __future__ import annotations

import torch
from torch import Tensor

from . import attention, patterns, rng
from .batch import Tokens
from .options import pattern_of
from .poison import WIDE, Poison, huge_key, poison, poison_of
from .site import Site

#: Poison of keys that no query may see, unless forced: MHA kernels load whole tiles, and a weight of 0 times NaN is
#: NaN in kernels that are right by every other measure. ``poison-nan`` asks for those that never multiply.
FINITE = ("huge", "stale")


def dense_mha(site: Site) -> dict[str, object]:
    """q [s,h,d], k [t,h,d], v [t,h,v], cu_q, cu_k; returns the options."""
    _packed(site, seen=site.batch.k.queries > 0)
    return {"scale": site.geometry.softmax_scale, "causal": site.causal}


def masked_mha(site: Site) -> dict[str, object]:
    """The same and mask, int32 [b, s_padded, words].

    ``s_padded`` is a multiple of 128 (256 above 128 queries) and ``words`` of 4, as vLLM pads its masks.
    """
    case, q = site.case, site.batch.q
    visible = q.visible(site.causal)
    words = max(4, -(-max(case.k_lens) // 128) * 4)
    rows = patterns.mask_words(pattern_of(case), case.seed, case.topk, q, visible, words)
    if "empty-rows" in case.options:
        rows = torch.where(patterns.empty_rows(case.seed, q)[:, None], 0, rows)
    longest = max(1, *case.q_lens)
    tile = 128 if longest <= 128 else 256
    _packed(site, seen=_seen(site, rows, visible))
    padded = -(-longest // tile) * tile
    site.arena.place("mask", patterns.mask(rows, q, len(case.q_lens), padded, case.seed))
    return {"scale": site.geometry.softmax_scale, "causal": site.causal}


def _seen(site: Site, rows: Tensor, visible: Tensor) -> Tensor:
    """Keys that some query of their request may see; bool [t]."""
    batch, words = site.batch, rows.shape[1]
    word = torch.arange(words, device=rows.device)
    count = (visible[:, None] - 32 * word).clamp(0, 32)
    allowed = rows & ((torch.ones_like(count) << count) - 1)
    queries = torch.zeros(len(site.case.q_lens), words, 32, dtype=torch.int64, device=rows.device)
    for bit in range(32):
        queries[:, :, bit].index_add_(0, batch.q.request, (allowed >> bit) & 1)
    return queries[batch.k.request, batch.k.position >> 5, batch.k.position & 31] > 0


def _packed(site: Site, seen: Tensor) -> None:
    """Allocates and draws q, k, v and the prefix sums; keys not ``seen`` are poisoned."""
    case, batch, form, arena = site.case, site.batch, site.form(shared=False), site.arena
    name = poison_of(case.options, case.seed, FINITE)
    shapes = {"q": (batch.q, form.width), "k": (batch.k, form.width), "v": (batch.k, form.value_width)}
    for role, (tokens, width) in shapes.items():
        target = arena.allocate(role, (len(tokens.name), case.heads, width), site.dtype)
        huge = huge_key(case.kind, form.powers[0]) if role == "k" else WIDE
        bad = poison(name, case.seed, role, case.heads * width, site.dtype, huge)

        def rows(start: int, stop: int, role: str = role, tokens: Tokens = tokens, bad: Poison = bad) -> Tensor:
            part = tokens[start:stop]
            drawn = draw(case.kind, role, form, part, site.heads)
            if role == "q" or bool(seen[start:stop].all()):
                return drawn
            return torch.where(seen[start:stop, None, None], drawn, bad(part.number).view(drawn.shape))

        rng.fill(target, rows)
    site.int32("cu_q", batch.cu_q)
    site.int32("cu_k", batch.cu_k)


def draw(kind: str, role: str, form: attention.Form, tokens: Tokens, heads: Tensor) -> Tensor:
    """Values of q, k, v of the MHA form, or of q of the MQA form: fp32 [m, h, width]."""
    if kind == "mixed":
        return attention.mixed(role, form, tokens, heads)
    return {"q": attention.queries, "k": attention.keys, "v": attention.values}[role](kind, form, tokens, heads)
