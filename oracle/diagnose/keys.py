"""The hypothesis that a kernel read other keys than it should have: which ones is solved for, and put into a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .expectation import cache_rows
from .hypothesis import Hypothesis, Stage
from .observation import Observation
from .reads import Reads, solve
from .rules import described, fits

#: (places wanted, places they are among) to rules in words.
Place = Callable[[Tensor, Tensor], Iterator[str]]


def keys(seen: Observation) -> Iterator[Hypothesis]:
    """One hypothesis, if the answer says that keys were dropped, added or read twice."""
    reads = solve(seen)
    if reads is None:
        return
    change = torch.where(reads.told, reads.counts - reads.due, 0.0)
    if not bool((change != 0).any()):
        return
    out, lse = reads.answer()
    out = torch.where(torch.isfinite(lse)[..., None], out, 0.0)
    sink = seen.arguments.get("sink")
    if sink is not None:
        out = out * torch.sigmoid(lse - sink.cpu().double())[..., None]
    given = seen.arguments["q"].dtype
    out = out.to(torch.bfloat16 if given.itemsize == 1 else given).to(torch.float64)
    stage: Stage = "index conversion" if seen.operator == "sparse_mqa" else "mask"
    yield Hypothesis("keys read", stage, told(seen, reads, change), lambda **a: (out, lse), 3)


def told(seen: Observation, reads: Reads, change: Tensor) -> str:
    """What was dropped, added and repeated, in words."""
    due = reads.due > 0
    dropped, extra, twice = (change < 0) & due, (change > 0) & ~due, (change > 0) & due
    place = _sparse_places(seen) if seen.operator == "sparse_mqa" else _packed_places(seen)
    parts = []
    for wanted, among, verb in (
        (dropped, due & reads.told, "not read"),
        (extra, ~due & reads.told, "read and not due"),
        (twice, due & reads.told, "counted more than once"),
    ):
        if bool(wanted.any()):
            rule = next(place(wanted, among), None) or _listed(wanted)
            count = int(wanted.sum())
            parts.append(f"{verb}: {rule} ({count:,} read{'s' if count > 1 else ''})")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "."


def _packed_places(seen: Observation) -> Place:
    a = seen.arguments
    cu_q, cu_k = a["cu_q"].cpu().long(), a["cu_k"].cpu().long()
    queries, columns = torch.arange(a["q"].shape[0]), torch.arange(a["k"].shape[0])
    of_q, of_k = (torch.searchsorted(cu, x, right=True) - 1 for cu, x in ((cu_q, queries), (cu_k, columns)))
    shape = (len(queries), len(columns))
    lengths = cu_k.diff()[of_k].expand(shape)
    position = (columns - cu_k[of_k]).expand(shape)
    diagonal = (queries - cu_q[of_q] + cu_k.diff()[of_q] - cu_q.diff()[of_q])[:, None].expand(shape)
    own = of_q[:, None] == of_k

    def place(wanted: Tensor, among: Tensor) -> Iterator[str]:
        yield from described(position, wanted, among & own, lengths, "key")
        past = position - diagonal
        if bool((wanted & ~own).any()) and fits(wanted & ~own, wanted):
            yield "keys of other requests"
        if bool(wanted.any()):
            near, far = int(past[wanted].min()), int(past[wanted].max())
            if near > 0 and fits((past >= near) & (past <= far) & among & own, wanted):
                ahead = int(past[among & own].max()) if bool((among & own).any()) else far
                yield _past(near, far, ahead)
            if far <= 0 and fits((past >= near) & (past <= far) & among & own, wanted):
                yield f"keys {-far} to {-near} before a query's own position"

    return place


def _sparse_places(seen: Observation) -> Place:
    a = seen.arguments
    indices, n = a["indices"].cpu().long(), cache_rows(a)
    slots = torch.full((len(indices), n), -1)
    order = torch.arange(indices.shape[1]).expand(indices.shape)
    valid = (indices >= 0) & (indices < n)
    slots.scatter_(1, torch.where(valid, indices, 0), torch.where(valid, order, -1))
    rows = torch.arange(n).expand(slots.shape)
    used = valid.long().mul(order + 1).amax(1)[:, None] if valid.numel() else torch.zeros(len(slots), 1)

    def place(wanted: Tensor, among: Tensor) -> Iterator[str]:
        yield from described(slots, wanted, among & (slots >= 0), used, "slot")
        yield from described(rows, wanted, among, n, "cache row")

    return place


def _past(near: int, far: int, ahead: int) -> str:
    if near == far:
        return "the key past the diagonal" if near == 1 else f"the key {near} past the diagonal"
    return "keys past the diagonal" if far >= ahead and near == 1 else f"keys {near} to {far} past the diagonal"


def _listed(wanted: Tensor) -> str:
    columns = wanted.any(0).nonzero().flatten().tolist()
    shown = ", ".join(map(str, columns[:5]))
    return f"keys {shown}{', …' if len(columns) > 5 else ''}"
