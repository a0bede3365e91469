"""A router that is code, held to rules that are data, on batches around every length at which these change their mind.

The router sees what an engine's does: new tokens and whole lengths of every request of a step, decodes first, and
behind them the empty rows by which a full graph of decodes fills its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import get_args

from ...reference.routing import Batch, Deployment, Request, Route, Rules, decide_route
from ..errors import BadInput
from .batches import draw_batch, draw_padding
from .boundaries import boundaries
from .grammar import batch_text

#: ``router(query_lens, seq_lens)`` gives the route of the prefills, ``none`` for a batch without any.
Router = Callable[[Sequence[int], Sequence[int]], str]
ROUTES: tuple[str, ...] = get_args(Route)
#: Differences that are looked into.
KEPT = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """One batch of which router and rules say different things; nothing can be left out of it."""

    batch: Batch
    padding: int
    """Requests without a token behind the others."""
    due: str
    reasons: tuple[str, ...]
    got: str
    """A route, or what the router raised."""

    @property
    def text(self) -> str:
        return batch_text(self.batch) + (f" and {self.padding} empty" if self.padding else "")


@dataclass(frozen=True, slots=True)
class Held:
    """What came of it."""

    batches: int
    wrong: int
    differences: tuple[Difference, ...]


def hold(router: Router, rules: Rules, deployment: Deployment, *, batches: int = 2000, seed: int = 0) -> Held:
    """Ask a router all pairs of lengths at a boundary, and ``batches`` random batches of several requests.

    Raises BadInput for a deployment with prefill context parallelism, where lengths alone do not decide.
    """
    if deployment.pcp > 1:
        raise BadInput(f"hold: expected --pcp 1, where lengths decide, got {deployment.pcp}")
    wrong, kept, asked = 0, list[Difference](), 0
    for batch, padding in _batches(rules, deployment, batches, seed):
        asked += 1
        found = _difference(router, rules, deployment, batch, padding)
        if found is not None:
            wrong += 1
            # A first difference a route that was due and a route that came; others say the same again.
            if len(kept) < KEPT and all((one.due, one.got) != (found.due, found.got) for one in kept):
                kept.append(_smallest(router, rules, deployment, found))
    return Held(asked, wrong, tuple(kept))


def _batches(rules: Rules, deployment: Deployment, count: int, seed: int) -> Iterator[tuple[Batch, int]]:
    probes = boundaries(rules, deployment).probes(deployment.max_model_len)
    for query in probes:
        for seq in probes:
            if seq >= query:
                yield Batch.of([(query, seq - query)]), 0
    random = Random(seed)
    for _ in range(count):
        batch = draw_batch(random, rules, deployment, (1, 2, *probes), flags=False)
        if max(request.seq_len for request in batch.requests) <= deployment.max_model_len:
            yield batch, draw_padding(random, rules, deployment, batch, "FULL")


def _difference(router: Router, rules: Rules, deployment: Deployment, batch: Batch, padding: int) -> Difference | None:
    due = decide_route(rules, deployment, batch).route
    queries = (*(request.query_len for request in batch.requests), *[0] * padding)
    lengths = (*(request.seq_len for request in batch.requests), *[0] * padding)
    try:
        got = str(router(queries, lengths))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    else:
        if got not in ROUTES:
            raise BadInput(f"router: expected one of {', '.join(ROUTES)}, got {got!r} for {queries}, {lengths}")
    return None if got == due.value else Difference(batch, padding, due.value, due.reasons, got)


def _smallest(router: Router, rules: Rules, deployment: Deployment, found: Difference) -> Difference:
    """Without requests and padding that the difference does without."""
    going = True
    while going:
        going = False
        requests = found.batch.requests
        fewer: list[tuple[tuple[Request, ...], int]] = [(requests, n) for n in (0, 1) if n < found.padding]
        if len(requests) > 1:
            fewer += [((*requests[:n], *requests[n + 1 :]), found.padding) for n in range(len(requests))]
        for left, padding in fewer:
            smaller = _difference(router, rules, deployment, Batch(left), padding)
            if smaller is not None and (smaller.due, smaller.got) == (found.due, found.got):
                found, going = smaller, True
                break
    return found
