"""Properties 1 to 6: order of keys, rows, pages and requests; alone or in a batch; twice the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .call import Answer, Arguments, Call, alike, equal
from .claim import Claim, DoesNotApply
from .keys import counted_indices, every_key, opened, regrouped, shuffled
from .requests import rows_by_request, selected

#: Further calls: a race shows seldom, so on a GPU as often as DeepGEMM's own tests repeat a launch.
RERUNS = {"cpu": 2, "cuda": 20}


def key_order(call: Call) -> Iterator[Claim]:
    """A(Q, K[pi], V[pi], M[:, pi]) ~ A(Q, K, V, M): the order of a request's keys does not matter."""
    a, answer = opened(call)
    orders = [shuffled(len(own), call.case.seed + r, own.device) for r, own in enumerate(every_key(a))]
    yield from alike("with keys in another order", call.answer(regrouped(a, orders)), answer)


def slot_order(call: Call) -> Iterator[Claim]:
    """Any permutation of a row's selected indices gives the same answer ~: a selection is a set."""
    a, answer = opened(call)
    indices = a["indices"]
    turned = indices[:, shuffled(indices.shape[1], call.case.seed, indices.device)]
    for what, other in (("with slots shuffled", turned), ("with slots reversed", indices.flip(1))):
        yield from alike(what, call.answer({**a, "indices": other}), answer)


def row_relocation(call: Call) -> Iterator[Claim]:
    """Rows or pages moved in the cache, the indices or the block table rewritten: == , for addresses are no values."""
    a, answer = call.plain()
    moved = _relocated(call, a)
    yield from equal(call, "after rows moved in the cache", call.answer(moved), answer)


def _relocated(call: Call, a: Arguments) -> dict[str, Any]:
    if call.name == "sparse_mqa":
        if call.contract.duplicates == "collapsed":
            raise DoesNotApply("it puts equal indices together, so the order of its sums follows the addresses")
        rows = a["kv"].shape[:-1].numel()
        order = shuffled(rows, call.case.seed, a["kv"].device)
        moved = torch.empty_like(a["kv"]).flatten(0, -2)
        moved[order] = a["kv"].flatten(0, -2)
        indices = counted_indices(a)
        valid = (indices >= 0) & (indices < rows)
        new = order[indices.clamp(0, rows - 1).long()].to(indices.dtype)
        return {**a, "kv": moved.view_as(a["kv"]), "indices": torch.where(valid, new, indices)}
    cache = "k_cache" if "k_cache" in a else "cache" if "cache" in a else "pages"
    pages: Tensor = a[cache]
    order = shuffled(len(pages), call.case.seed, pages.device)
    moved = torch.empty_like(pages)
    moved[order] = pages
    table = a["block_table"]
    valid = (table >= 0) & (table < len(pages))
    new = order[table.clamp(0, len(pages) - 1).long()].to(table.dtype)
    return {**a, cache: moved, "block_table": torch.where(valid, new, table)}


def batch_order(call: Call) -> Iterator[Claim]:
    """Requests in another order give their answers in that order: == if batch invariance is declared, else ~."""
    a, answer = call.plain()
    groups = rows_by_request(call, a)
    backwards = list(range(len(groups)))[::-1]
    moved = call.answer(selected(call, a, backwards))
    places = torch.cat([groups[r] for r in backwards])
    yield from _unchanged(call, "of requests in another order", moved, answer, places)


def alone(call: Call) -> Iterator[Claim]:
    """A request alone has the answer it has in a batch: == if batch invariance is declared, else ~."""
    a, answer = call.plain()
    groups = rows_by_request(call, a)
    for request, places in enumerate(groups):
        if len(places):
            single = call.answer(selected(call, a, [request]))
            yield from _unchanged(call, f"of request {request} alone", single, answer, places)


def rerun(call: Call) -> Iterator[Claim]:
    """The same call again gives the same bits, if that is declared; else answers within budget of each other."""
    a, answer = call.plain()
    for _ in range(RERUNS["cuda" if call.device.startswith("cuda") else "cpu"]):
        yield from equal(call, "of the same call again", call.answer(a), answer)


def _unchanged(call: Call, what: str, got: Answer, want: Answer, of: Tensor) -> list[Claim]:
    """All rows of one answer are rows ``of`` of the other, bit for bit where batch invariance is declared."""
    if not call.invariant:
        return alike(what, got, want, slice(None), of)
    return equal(call, what, got, want, slice(None), of)
