"""Inputs of ``indexer_scores``, ``topk_select`` and ``merge_lse``."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rng, scores
from .poison import HUGE_SCALE, huge_key, poison, poison_of
from .site import Site
from .tensors import POWERS


def windows(site: Site) -> tuple[Tensor, Tensor]:
    """ks and ke of every query, int64 [s]: its request's keys in the packed keys, causal, ``ke`` exclusive.

    With the option ``backwards`` the first query has the window of the last one, and so on. With ``inverted`` an empty
    window ends before it starts, as that of a padded decode row does, whose length is that of no request.
    """
    q = site.batch.q
    start = site.batch.cu_k[q.request]
    end = start + q.visible()
    if "inverted" in site.case.options:
        end = torch.where(end == start, start - 1 - q.position, end)
    return (start.flip(0), end.flip(0)) if "backwards" in site.case.options else (start, end)


def indexer_scores(site: Site) -> dict[str, object]:
    """q [s,i,e], k [t,e], k_scale fp32 [t], weights fp32 [s,i], ks, ke, and if asked q_scale fp32 [s,i], max_seqlen_k.

    Compressed scores have room for the longest window, or, by the seed, for five keys more.
    """
    case, batch, width = site.case, site.batch, site.geometry.index_head_dim
    assert width is not None
    seen = batch.k.queries > 0
    name = poison_of(case.options, case.seed)
    q = site.arena.allocate("q", (case.queries, case.heads, width), site.dtype)
    form = (case.heads, width, case.dtype)
    rng.fill(q, lambda a, b: scores.index_vectors(case.kind, "q", case.seed, batch.q[a:b], *form))
    bad = poison(name, case.seed, "k", width, site.dtype, huge_key(case.kind, POWERS[case.dtype][0]))
    k = site.arena.allocate("k", (case.keys, width), site.dtype)

    def keys(start: int, stop: int) -> Tensor:
        part = batch.k[start:stop]
        drawn = scores.index_vectors(case.kind, "k", case.seed, part, 1, width, case.dtype)[:, 0]
        return torch.where(seen[start:stop, None], drawn, bad(part.number))

    rng.fill(k, keys)
    scale = scores.key_scales(case.kind, case.seed, batch.k)
    huge = HUGE_SCALE.get(site.dtype, 1.0)
    spoilt = poison(name, case.seed, "k-scale", 1, torch.float32, huge)(batch.k.number)[:, 0]
    site.arena.place("k_scale", torch.where(seen, scale, spoilt))
    place_weights(site, width)
    _place_windows(site)
    if "compressed" not in case.options:
        return {}
    return {"max_seqlen_k": max(case.k_lens) + 5 * (rng.key(case.seed, "max-seqlen-k") & 1)}


def place_weights(site: Site, width: int) -> None:
    """weights fp32 [s,i], and q_scale fp32 [s,i] where the case asks for scales that are not folded into them."""
    case, q = site.case, site.batch.q
    site.arena.place("weights", scores.index_weights(case.kind, case.seed, q, case.heads, width))
    if "q-scale" in case.options:
        site.arena.place("q_scale", scores.query_scales(case.kind, case.seed, q, case.heads))


def topk_select(site: Site) -> dict[str, object]:
    """scores fp32 [s,t], ks, ke; returns k. Columns outside [ks,ke) hold garbage."""
    case, q = site.case, site.batch.q
    ks, ke = windows(site)
    mixed = not any(option.startswith("poison-") for option in case.options)
    name = "mixed" if mixed else poison_of(case.options, case.seed)
    target = site.arena.allocate("scores", (case.queries, case.keys), torch.float32)
    column = torch.arange(case.keys, device=site.device)

    def rows(start: int, stop: int) -> Tensor:
        part, low = q[start:stop], ks[start:stop, None]
        inside = (column >= low) & (column < ke[start:stop, None])
        drawn = scores.selection_scores(case.kind, case.seed, part, column - low)
        return torch.where(inside, drawn, scores.garbage_scores(name, case.seed, part, column - low))

    rng.fill(target, rows)
    _place_windows(site)
    return {"k": case.topk}


def merge_lse(site: Site) -> dict[str, object]:
    """out_a [s,h,v], lse_a fp32 [s,h] and the same for b; an empty side's out is left over. There are no options."""
    case, q, width = site.case, site.batch.q, site.geometry.v_head_dim
    for side in ("a", "b"):
        out = site.arena.allocate(f"out_{side}", (case.queries, case.heads, width), site.dtype)
        lse = scores.partial_lse(case.kind, side, case.seed, q, case.heads)

        def rows(start: int, stop: int, side: str = side, lse: Tensor = lse) -> Tensor:
            part = q[start:stop]
            drawn = scores.partial_out(case.kind, side, case.seed, part, case.heads, width, case.dtype)
            left = scores.leftover(case.kind, case.seed, part, case.heads)
            return torch.where(lse[start:stop, :, None] == float("-inf"), left, drawn)

        rng.fill(out, rows)
        site.arena.place(f"lse_{side}", lse)
    return {}


def _place_windows(site: Site) -> None:
    ks, ke = windows(site)
    site.int32("ks", ks)
    site.int32("ke", ke)
