"""Properties 44 to 46: what a selection costs, steps of a sequence, and codes that are stable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...reference.layouts import decode_ue8m0
from .call import Call, alike, equal, lse_of
from .claim import Claim, DoesNotApply, near, same
from .keys import halves, opened, require_model_cache, spans, visible
from .masks import causal_plain


def lost_mass(call: Call) -> Iterator[Claim]:
    """Attention over part of the keys errs by 2 (1 - mass) max |v| at most, mass = exp(L_part - L_all) <= 1."""
    a, whole = opened(call)
    require_model_cache(a)
    lse, allowed = lse_of(whole)
    seen = visible(call, a)
    values = a["kv"][..., : a["value_dim"]].double()
    largest = torch.where(seen.any(0)[:, None], values, 0.0).abs().amax(0)
    for which, part in zip(("first", "second"), (call.answer(p) for p in halves(call, a)), strict=True):
        own, own_allowed = lse_of(part)
        slack = own_allowed + allowed
        mass = torch.where(own > -torch.inf, (own - lse - slack).exp(), 0.0).clamp(0.0, 1.0)
        bound = 2.0 * (1.0 - mass)[..., None] * largest + part.allowed + whole.allowed
        yield near(f"out of the {which} half of the keys", part.out, whole.out, bound)


def chunked(call: Call) -> Iterator[Claim]:
    """A prompt in two chunks, or drafted tokens one by one, have the answers that they have at once."""
    if call.name == "paged_indexer_scores":
        yield from _one_by_one(call)
        return
    a, answer = causal_plain(call)
    queries, keys, mask = [], [], []
    q_lens, k_lens = [0], [0]
    for request, ((q0, q1), (k0, k1)) in enumerate(zip(spans(a["cu_q"]), spans(a["cu_k"]), strict=True)):
        half = (q1 - q0) // 2
        for start, stop in ((0, half), (half, q1 - q0)):
            end = max(k0, k1 - (q1 - q0) + stop)
            queries.append(torch.arange(q0 + start, q0 + stop, device=a["q"].device))
            keys.append(torch.arange(k0, end, device=a["q"].device))
            q_lens.append(stop - start)
            k_lens.append(end - k0)
            if "mask" in a:
                mask.append(a["mask"][request].roll(-start, 0))
    chosen = torch.cat(keys)
    changed: dict[str, Any] = {**a, "q": a["q"][torch.cat(queries)], "k": a["k"][chosen], "v": a["v"][chosen]}
    for name, lengths in (("cu_q", q_lens), ("cu_k", k_lens)):
        changed[name] = torch.tensor(lengths, device=chosen.device).cumsum(0).to(a[name].dtype)
    if mask:
        changed["mask"] = torch.stack(mask)
    yield from alike("of a prompt in two chunks", call.answer(changed), answer)


def _one_by_one(call: Call) -> Iterator[Claim]:
    a, answer = call.plain()
    m = a["q"].shape[1]
    if m == 1:
        raise DoesNotApply("every request of the case has one query")
    lens = a["context_lens"][:, None] - m + 1 + torch.arange(m, device=a["q"].device)
    single = {
        **a,
        "q": a["q"].flatten(0, 1)[:, None],
        "context_lens": lens.clamp_min(0).flatten().to(a["context_lens"].dtype),
        "block_table": a["block_table"].repeat_interleave(m, 0),
    }
    got = call.answer(single)
    bound = 0.0 if call.invariant else got.allowed + answer.allowed
    yield near("scores of drafted tokens one by one", got.out, answer.out, bound)


def stable_codes(call: Call) -> Iterator[Claim]:
    """Quantising what was dequantised changes nothing ==, a power of two goes into the scale alone, and a cache holds
    the same bytes in whatever order its tokens were written.

    The second holds where scales are powers of two and above the floor; without that a quotient may round anew.
    """
    if call.name != "quantize":
        yield from _order_of_tokens(call)
        return
    a, answer = call.plain()
    codes, scales = answer.raw
    block = a["block"]
    wide = decode_ue8m0(scales) if scales.dtype is torch.uint8 else scales
    values = (codes.view(torch.float8_e4m3fn).float().view(len(a["x"]), -1, block) * wide[..., None]).flatten(1)
    finite = torch.isfinite(values).all(1)
    if a["scale_format"] == "fp32":
        raise DoesNotApply("scales are not powers of two: what was dequantised has roundings of its own")
    again = call.answer({**a, "x": values})
    new = decode_ue8m0(again.raw[1]) if again.raw[1].dtype is torch.uint8 else again.raw[1]
    back = (again.raw[0].view(torch.float8_e4m3fn).float().view(len(a["x"]), -1, block) * new[..., None]).flatten(1)
    yield same("values quantised twice", back[finite], values[finite])
    four = call.answer({**a, "x": a["x"].float() * 4})
    there = call.answer({**a, "x": a["x"].float()})
    floored = a.get("least_amax", 0.0)
    large = a["x"].float().view(len(a["x"]), -1, block).abs().amax(-1) > max(floored, 448.0 * a.get("least_scale", 0.0))
    large &= torch.isfinite(a["x"].float().view(len(a["x"]), -1, block)).all(-1)
    rows = large.repeat_interleave(block, 1)
    yield same("codes of values times 4", four.raw[0].view(torch.uint8)[rows], there.raw[0].view(torch.uint8)[rows])
    scale = [decode_ue8m0(s) if s.dtype is torch.uint8 else s for s in (four.raw[1], there.raw[1])]
    yield same("scales of values times 4", scale[0][large], 4 * scale[1][large])


def _order_of_tokens(call: Call) -> Iterator[Claim]:
    a, answer = call.plain()
    order = torch.arange(len(a["slots"]), device=a["slots"].device).flip(0)
    names = [name for name in ("latent", "rope", "k", "slots") if name in a]
    yield from equal(call, "written in another order", call.answer({**a, **{n: a[n][order] for n in names}}), answer)
