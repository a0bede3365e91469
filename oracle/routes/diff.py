"""Two versions of the rules compared: the batches, as ranges of lengths, that behave differently.

Every cell between two boundary lengths of either version behaves alike, so both sides of each boundary are probed and
the first differing length between two probes is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from ...reference.routing import Batch, Deployment, MaskWorkspace, Request, Rules, dense_capability, prefill_backend
from .behaviour import Behaviour, behave
from .boundaries import boundaries
from .closed import Closed, closed_routes

_KINDS = ("split", "route", "runs", "skip", "hazard")


@dataclass(frozen=True, slots=True)
class Change:
    """A range of batches whose behaviour differs; both ends of both ranges are inclusive."""

    batch: str
    """Which batches: ``q`` and ``s`` stand for the query and sequence length."""
    query: tuple[int, int]
    seq: tuple[int, int] | None
    """None: pure prefills, as long as their queries. The sequence is longer than its query in any case."""
    before: Behaviour
    after: Behaviour
    exact: bool = True
    """Whether ``seq`` holds for every query of the range, or only for its first one."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What differs: split, route (decided), runs (really run), skip, hazard."""
        return tuple(kind for kind in _KINDS if getattr(self.before, kind) != getattr(self.after, kind))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        told = {kind: [getattr(self.before, kind), getattr(self.after, kind)] for kind in self.kinds}
        return {"batch": self.batch, "query": self.query, "seq": self.seq, "exact": self.exact, "changes": told}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``settings``: what differs whatever the batch is, (name, before, after)."""

    settings: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]
    closed: tuple[tuple[Closed, ...], tuple[Closed, ...]] = ((), ())
    """What cannot run in this deployment before and after, whatever the batch."""

    def as_list(self) -> list[dict[str, Any]]:
        """JSON-ready."""
        return [change.as_dict() for change in self.changes]


def compare(before: Rules, after: Rules, deployment: Deployment) -> Comparison:
    """Fresh prompts alone, four at once and beside a decode; then single requests with cached context."""
    changes: list[Change] = []
    for name, prefills, make in (
        ("q", 1, lambda query: Batch((Request(query),))),
        ("4q", 4, lambda query: Batch((Request(query),) * 4)),
        ("1q1s1k_q", 1, lambda query: Batch((Request(1, 1023), Request(query)))),
    ):
        probes = _probes(before, after, deployment, prefills)
        for low, high, old, new in _ranges(before, after, deployment, probes, make):
            if old != new:
                changes.append(Change(name, (low, high), None, old, new))
    changes += _with_context(before, after, deployment)
    closed = closed_routes(before, deployment), closed_routes(after, deployment)
    return Comparison(_settings(before, after, deployment), tuple(changes), closed)


def _probes(before: Rules, after: Rules, deployment: Deployment, prefills: int) -> list[int]:
    most = deployment.max_model_len
    found = {1, most}
    for rules in (before, after):
        found.update(boundaries(rules, deployment, prefills).probes(most))
    return sorted(found)


def _ranges(
    before: Rules, after: Rules, deployment: Deployment, probes: Iterable[int], make: Callable[[int], Batch]
) -> list[tuple[int, int, Behaviour, Behaviour]]:
    """(first length, last length, behaviour before, behaviour after) in order, neighbours that are alike joined."""

    def ask(length: int) -> tuple[Behaviour, Behaviour]:
        batch = make(length)
        return behave(before, deployment, batch), behave(after, deployment, batch)

    points = list(probes)
    known = {point: ask(point) for point in points}
    starts = [points[0]]
    for left, right in pairwise(points):
        while known[left] != known[right]:
            low, high = left, right
            while high - low > 1:
                middle = (low + high) // 2
                known[middle] = ask(middle)
                low, high = (middle, high) if known[middle] == known[left] else (low, middle)
            starts.append(high)
            left = high
    ends = [start - 1 for start in starts[1:]] + [points[-1]]
    return [(start, end, *known[start]) for start, end in zip(starts, ends, strict=True)]


def _with_context(before: Rules, after: Rules, deployment: Deployment) -> list[Change]:
    """Requests with context: for each cell of query lengths the ranges of sequence lengths, alike cells joined.

    A cell that does not read the same at its last query as at its first is marked inexact. That takes a mask workspace
    so small that a chunk of context longer than the query fills it; no shipped version has one.
    """
    probes = _probes(before, after, deployment, 1)
    found: list[Change] = []
    for query, following in pairwise(probes):
        last = following - 1
        changes, others = (_ranges_of(each, probes, before, after, deployment) for each in (query, last))
        exact = [_from_query(each) for each in changes] == [_from_query(each) for each in others]
        for change in changes:
            _join(found, replace(change, query=(query, last), exact=exact))
    return found


def _ranges_of(query: int, probes: list[int], before: Rules, after: Rules, deployment: Deployment) -> list[Change]:
    points = sorted({query + 1, *(each for each in probes if each > query)})
    ranges = _ranges(before, after, deployment, points, partial(_one, query))
    return [Change("q..s..", (query, query), (low, high), old, new) for low, high, old, new in ranges if old != new]


def _from_query(change: Change) -> tuple[object, ...]:
    """What a change says apart from its queries; a first sequence right after the query is the least there can be."""
    assert change.seq is not None
    low = 0 if change.seq[0] == change.query[1] + 1 else change.seq[0]
    return low, change.seq[1], change.before, change.after


def _one(query: int, seq: int) -> Batch:
    return Batch((Request.of_sequence(query, seq),))


def _join(found: list[Change], change: Change) -> None:
    """Append, or widen the change of the cell before if it covers the same sequences in the same way.

    The first sequence of a cell follows its query, so a start right after the query counts as the same one.
    """
    assert change.seq is not None
    for index, other in enumerate(found):
        if other.seq is None or other.query[1] + 1 != change.query[0]:
            continue
        alike = (other.before, other.after, other.seq[1]) == (change.before, change.after, change.seq[1])
        alike = alike and other.exact and change.exact
        from_query = change.seq[0] == change.query[0] + 1 and other.seq[0] == other.query[0] + 1
        if alike and (other.seq[0] == change.seq[0] or from_query):
            found[index] = replace(other, query=(other.query[0], change.query[1]))
            return
    found.append(change)


def _settings(before: Rules, after: Rules, deployment: Deployment) -> tuple[tuple[str, str, str], ...]:
    told: list[tuple[str, str, str]] = []
    for name, decide in (("capability", dense_capability), ("dense prefill backend", prefill_backend)):
        old, new = decide(before, deployment), decide(after, deployment)
        if old.value != new.value:
            told.append((name, str(old), str(new)))
    if before.mask_workspace != after.mask_workspace:
        told.append(("mask workspace", _workspace(before.mask_workspace), _workspace(after.mask_workspace)))
    flags = ("fused_runs_mha", "fused_binds_skip", "indexer_skip", "context_rows_floor")
    told += [
        (flag, str(getattr(before, flag)), str(getattr(after, flag)))
        for flag in flags
        if getattr(before, flag) != getattr(after, flag)
    ]
    return tuple(told)


def _workspace(workspace: MaskWorkspace | None) -> str:
    if workspace is None:
        return "none"
    guard = "guarded" if workspace.guarded else "no guard"
    return f"{workspace.max_bytes} bytes, rows of a multiple of {workspace.word_multiple} words, {guard}"
