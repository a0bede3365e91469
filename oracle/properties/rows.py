"""Properties 33 to 35: sinks, queries without keys, lengths of a selection."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from .call import Call, alike, equal, lse_of
from .claim import Claim, DoesNotApply, near, same
from .keys import counted_indices, every_key, opened, packed, regrouped


def sink(call: Call) -> Iterator[Claim]:
    """O with a sink is O sigmoid(L - sink) ~ and L stays; a sink of -inf is none ==, one of +inf leaves O = 0."""
    a, answer = opened(call)
    call.with_option("sink")
    lse, lse_allowed = lse_of(answer)
    h = a["q"].shape[1]
    height = torch.linspace(-1.0, 1.0, h, device=lse.device) + lse.nan_to_num(0.0, 0.0, 0.0).mean().float()
    with_sink = call.answer({**a, "sink": height})
    share = torch.sigmoid(lse - height.double())[..., None]
    # sigmoid moves by a quarter of what its argument moves by, at most.
    allowed = with_sink.allowed + share * answer.allowed + 0.25 * lse_allowed[..., None] * answer.out.abs()
    yield near("out with a sink", with_sink.out, answer.out * share, allowed)
    yield from _same_lse(call, "with a sink", with_sink, answer)
    none = call.answer({**a, "sink": torch.full_like(height, -math.inf)})
    yield near("out with a sink of -inf", none.out, answer.out, 0.0 if call.repeats else none.allowed + answer.allowed)
    yield from _same_lse(call, "with a sink of -inf", none, answer)
    all_ = call.answer({**a, "sink": torch.full_like(height, math.inf)})
    yield same("out with a sink of +inf", all_.out, torch.zeros_like(all_.out))
    yield from _same_lse(call, "with a sink of +inf", all_, answer)


def _same_lse(call: Call, what: str, got: Any, want: Any) -> Iterator[Claim]:
    (a, a_allowed), (b, b_allowed) = lse_of(got), lse_of(want)
    yield near(f"lse {what}", a, b, 0.0 if call.repeats else a_allowed + b_allowed)


def empty_row(call: Call) -> Iterator[Claim]:
    """A query without keys has out 0 and LSE -inf, or what is declared, exactly; other rows do not notice."""
    a, answer = opened(call)
    if packed(call):
        gone = [own if request else own[:0] for request, own in enumerate(every_key(a))]
        changed = regrouped(a, gone)
        q_end = int(a["cu_q"][1])
        rows = torch.arange(q_end, device=a["q"].device)
    else:
        indices = counted_indices(a).clone()
        indices[0] = -1
        changed, rows = {**a, "indices": indices}, torch.zeros(1, dtype=torch.long, device=a["q"].device)
    got = call.answer(changed)
    value = {"zero": 0.0, "nan": math.nan}.get(call.contract.empty_out)
    if value is not None:
        out = got.raw[0][rows].double()
        yield same("out of a query without keys", out, torch.full_like(out, value))
    number = {"-inf": -math.inf, "+inf": math.inf, "nan": math.nan, "zero": 0.0}.get(call.contract.empty_lse)
    if number is not None and got.lse is not None:
        lse = got.raw[1][rows].double()
        yield same("lse of a query without keys", lse, torch.full_like(lse, number))
    rest = torch.ones(len(a["q"]), dtype=torch.bool, device=a["q"].device)
    rest[rows] = False
    yield from alike("beside a query without keys", got, answer, rest, rest)


def selection_length(call: Call) -> Iterator[Claim]:
    """A length t counts the first t entries of a selection: == the selection with -1 from there on."""
    a, _ = opened(call)
    call.with_option("lengths")
    indices = counted_indices(a)
    if call.contract.invalid_index == "undefined":
        raise DoesNotApply("invalid indices may not occur, as declared")
    k = indices.shape[1]
    lengths = torch.arange(len(indices), device=indices.device) * 7 % (k + 1)
    slots = torch.arange(k, device=indices.device)
    cut = torch.where(slots < lengths[:, None], indices, -1)
    counted = call.answer({**a, "lengths": lengths.to(torch.int32)})
    yield from equal(call, "with lengths, against -1 behind them", counted, call.answer({**a, "indices": cut}))
