"""Inputs of ``sparse_mqa``: a cache of permuted rows, most of them poison, and the indices that name the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import attention, latent_cache, patterns, rng
from .dense import draw
from .options import cache_format_of, pattern_of
from .poison import huge_key, poison, poison_of
from .site import Site

#: Rows that belong to no request, the first and the last row among them.
SPARE = 16
#: Rows that nobody reads are drawn up to this many, and repeat: 65,536 of them would take longer than the check.
_SPOILED = 4096
_HIGH = 65536


@dataclass(frozen=True, slots=True)
class Selection:
    """Indices of one call and what they refer to."""

    indices: Tensor
    """int64 [s, k] physical rows or invalid values."""
    lengths: Tensor | None
    """int64 [s]: slots that count; None: all."""
    rows: int
    """n."""

    def counted(self) -> Tensor:
        """Slots that refer to a key; bool [s, k]."""
        valid = (self.indices >= 0) & (self.indices < self.rows)
        if self.lengths is not None:
            valid &= torch.arange(self.indices.shape[1], device=valid.device) < self.lengths[:, None]
        return valid

    def referenced(self) -> Tensor:
        """Rows that some query refers to; bool [n]."""
        seen = torch.zeros(self.rows, dtype=torch.bool, device=self.indices.device)
        seen[self.indices[self.counted()]] = True
        return seen


def sparse_mqa(site: Site) -> dict[str, object]:
    """q [s,h,c+r], kv [n,c+r], indices [s,k], and lengths [s], sink [h] if asked; returns the options.

    The tokens of all requests lie on randomly permuted rows of the cache; row 0 belongs to none of them, so that an
    invalid slot read as row 0 is seen. With ``packed`` they lie in order, on the first row and the last one too.
    """
    case, batch, form = site.case, site.batch, site.form(shared=True)
    offset = _offset(site)
    row = _row_of_token(site, offset)
    rows = offset + case.keys + (0 if "packed" in case.options else SPARE)
    if "pages" in case.options:
        rows = -(-rows // latent_cache.PAGE) * latent_cache.PAGE
    picked = _select(site, row, rows)
    cache_format = cache_format_of(case)
    q_scale, k_scale = latent_cache.whole_scales(case) if cache_format == "fp8_e4m3" else (1.0, 1.0)
    q = site.arena.allocate("q", (case.queries, case.heads, form.width), site.dtype)
    rng.fill(q, lambda start, stop: draw(case.kind, "q", form, batch.q[start:stop], site.heads) / q_scale)
    _fill_cache(site, form, row, picked, offset, k_scale)
    site.int32("indices", picked.indices)
    if picked.lengths is not None:
        site.int32("lengths", picked.lengths)
    if "sink" in case.options:
        site.arena.place("sink", _sinks(site))
    options: dict[str, object] = {"scale": site.geometry.softmax_scale, "value_dim": form.value_width}
    if cache_format != "model":
        options["cache_format"] = cache_format
    if cache_format == "fp8_e4m3":
        stretch = latent_cache.stretched(case)
        options |= {"q_scale": q_scale * stretch, "k_scale": k_scale / stretch}
    return options


def _offset(site: Site) -> int:
    """Unused rows before those in use."""
    if "hugerows" in site.case.options:
        width = latent_cache.row_width(cache_format_of(site.case), site.form(shared=True))
        # Rotated dims of fp8_ds_mla are read as bf16: there the numbers of two bytes have to pass 2**31.
        width //= 2 if "ds-mla" in site.case.options else 1
        return -(-(2**31 // width + 1) // latent_cache.PAGE) * latent_cache.PAGE
    return _HIGH if "highrows" in site.case.options else 0


def _row_of_token(site: Site, offset: int) -> Tensor:
    """The physical row of every key token, int64 [t]."""
    if "packed" in site.case.options:
        return torch.arange(site.case.keys, device=site.device) + offset
    inner = site.case.keys + SPARE - 2
    order = rng.permutation(rng.key(site.case.seed, "rows"), inner, device=site.device)
    if "row0" in site.case.options:
        order[order == 0] = order[0].item()
        order[:1] = 0
        return order[: site.case.keys] + offset
    return order[: site.case.keys] + 1 + offset


def _select(site: Site, row: Tensor, rows: int) -> Selection:
    case, q = site.case, site.batch.q
    local = patterns.positions(pattern_of(case), case.seed, case.topk, q, q.visible())
    if "empty-rows" in case.options:
        local = torch.where(patterns.empty_rows(case.seed, q)[:, None], -1, local)
    token = (site.batch.cu_k[q.request][:, None] + local).clamp(0, max(0, case.keys - 1))
    physical = row[token] if case.keys else torch.zeros_like(local)
    indices = torch.where(local >= 0, physical, -1)
    if pattern_of(case) == "invalid":
        indices = torch.where(local >= 0, indices, patterns.invalid_values(case.seed, rows, q, case.topk))
    if "lengths" not in case.options:
        return Selection(indices, None, rows)
    lengths = patterns.lengths(case.seed, case.topk, q)
    return Selection(_with_tails(site, indices, lengths, rows), lengths, rows)


def _with_tails(site: Site, indices: Tensor, lengths: Tensor, rows: int) -> Tensor:
    """Beyond its length a row holds -1, out-of-range values or rows of the cache that are not its own."""
    case, q = site.case, site.batch.q
    slot = torch.arange(case.topk, device=indices.device)
    place = (q.name[:, None], q.position[:, None])
    wrong = rng.integers(rng.key(case.seed, "tail"), min(rows, 2**31 - 1), *place, slot)
    invalid = patterns.invalid_values(case.seed, rows, q, case.topk)
    choice = rng.integers(rng.key(case.seed, "tail-choice"), 3, *place)
    # A length of 0 taken for no length shows only if the tail names rows.
    choice = torch.where(lengths[:, None] == 0, 2, choice)
    tail = torch.where(choice == 0, -1, torch.where(choice == 1, invalid, wrong))
    return torch.where(slot < lengths[:, None], indices, tail)


def _fill_cache(site: Site, form: attention.Form, row: Tensor, picked: Selection, offset: int, k_scale: float) -> None:
    case, batch, cache_format = site.case, site.batch, cache_format_of(site.case)
    shape: tuple[int, ...] = (picked.rows, latent_cache.row_width(cache_format, form))
    pages = latent_cache.PAGE if "pages" in case.options else 1
    if pages > 1:
        shape = (picked.rows // pages, pages, shape[1])
    stored = torch.uint8 if cache_format == "fp8_ds_mla" else site.dtype
    # Gigabytes of rows in front are real memory on a GPU, and pages that nobody touches on a CPU.
    sparse = "hugerows" in case.options and site.device.type == "cpu"
    first = offset if sparse else 0
    kv = (
        site.arena.allocate_far("kv", shape, stored, first // pages)
        if sparse
        else site.arena.allocate("kv", shape, stored)
    )
    name = poison_of(case.options, case.seed)
    plain = poison(name, case.seed, "kv", form.width, site.dtype, huge_key(case.kind, form.powers[0]))

    def place(rows: Tensor, values: Tensor) -> None:
        target = kv if cache_format == "model" else kv.view(torch.uint8)
        target[(rows,) if pages == 1 else (rows // pages, rows % pages)] = values

    number = torch.arange(first, picked.rows, device=site.device)
    if cache_format == "model":
        spoiled = rng.cast(plain(number[:_SPOILED]), site.dtype)
    else:
        spoiled = latent_cache.poisoned(name, case, cache_format, form, number[:_SPOILED])
    for part in torch.split(number, _SPOILED):
        place(part, spoiled[: len(part)])
    used = torch.nonzero(picked.referenced()[row]).flatten()
    tokens, target = batch.k[used], row[used]

    def put(start: int, stop: int) -> None:
        part = tokens[start:stop]
        if case.kind == "mixed":
            drawn = attention.mixed("kv", form, part, torch.zeros(1, dtype=torch.int64, device=site.device))[:, 0]
        else:
            drawn = attention.latents(case.kind, form, part)
        if cache_format == "model":
            place(target[start:stop], rng.cast(drawn, site.dtype))
        else:
            place(target[start:stop], latent_cache.encoded(case, cache_format, form, part, drawn, k_scale))

    rng.by_chunks(len(used), form.width, site.device, put)


def _sinks(site: Site) -> Tensor:
    """fp32 [h], natural log units: finite, head 1 -inf, head 4 +inf (its output is 0). In some kinds exp of the sinks
    of heads 5 and 6 overflows or vanishes."""
    heads = site.heads
    sink = rng.normal(rng.key(site.case.seed, "sink"), heads) * 2 + 3
    sink = torch.where(heads == 1, float("-inf"), sink)
    sink = torch.where(heads == 4, float("inf"), sink)
    if site.case.kind not in ("blank", "negative", "positive", "powers"):
        return sink
    return torch.where(heads == 5, 100.0, torch.where(heads == 6, -100.0, sink))
