"""A policy table against the rest of the chain: backend priority, capability, static gate, guard, force.

An entry beyond the guard is a note: the table says what is faster, the guard what fits. A table that contradicts itself
is an error, and what overruns or overrides a limit of its own a warning. That dense MHA takes the short end of an entry
is no finding; that it takes all of it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ...reference.routing import Rules, TableKey, context_rows
from ..config import load, names
from .boundaries import Boundaries, edges, pure_limit
from .chain import any_deployment, chain_findings, context_findings, threshold_of
from .findings import Finding
from .intervals import Entry, Reach, entries, holes, reach

#: Top-k for head dims that no shipped model has.
_TOPK = 2048
#: The links in the order they are asked, and how each is looked at.
STAGES = (
    ("priority", "which backend's rows are asked"),
    ("capability", "whether the layer has MHA at all"),
    ("gate", "which head dims, devices and caches a provider takes"),
    ("policy", "contradictions, shadowed entries, gaps"),
    ("guard", "entries dead, partly dead, or alive at one query length"),
    ("force", "sparse_mla_force_mqa turns every entry off; not set here"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One entry and what is left of it by number of prefills."""

    entry: Entry
    reaches: tuple[Reach, ...]
    topk: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The lengths that a test of one table row has to probe, and one token more each."""

    group: str
    prefills: int
    boundaries: Boundaries


@dataclass(frozen=True, slots=True)
class TableAudit:
    """Rows and boundary lengths of one version, the longest pure prompts by number of prefills, and findings."""

    rules: str
    prefills: tuple[int, ...]
    rows: tuple[Row, ...]
    limits: tuple[int | None, ...]
    probes: tuple[Probe, ...]
    findings: tuple[Finding, ...]


def audit_rules(
    rules: Rules,
    prefills: Sequence[int],
    *,
    faults: Sequence[tuple[str, str]] = (),
    head_dims: tuple[int, int] | None = None,
) -> TableAudit:
    """Audit one version. ``faults``: rows that its file has twice. ``head_dims``: only rows of these."""
    keys = sorted(key for key in rules.tables if head_dims in (None, key[:2]))
    models = {key: _model(key) for key in keys}
    chunk = context_rows(rules, any_deployment(rules)).value
    rows = []
    for key in keys:
        topk = models[key][1]
        for entry in entries(key, rules.tables[key]):
            reaches = (reach(rules, entry, each, topk=topk, chunk=chunk) for each in prefills)
            rows.append(Row(entry, tuple(reaches), topk))
    limits = tuple(pure_limit(rules, each) for each in prefills)
    probes = tuple(
        _probe(rules, key, each, limit, *models[key])
        for key in keys
        for each, limit in zip(prefills, limits, strict=True)
    )
    found = (
        *(Finding("contradiction", where, "error", message) for where, message in faults),
        *chain_findings(rules, {key: models[key][0] for key in keys}),
        *context_findings(rules),
        *_limits(rules, rows, prefills, limits),
        *(finding for row in rows for finding in _of_row(row, prefills)),
        *_gaps(rows),
    )
    return TableAudit(rules.name, tuple(prefills), tuple(rows), limits, probes, found)


def _probe(rules: Rules, key: TableKey, prefills: int, limit: int | None, heads: int | None, topk: int) -> Probe:
    found = edges(rules.tables[key], threshold_of(rules, key, heads), topk=topk, limit=limit)
    return Probe(f"{key[0]}/{key[1]} {key[2]} TP{key[3]}", prefills, found)


def merge(audits: Sequence[TableAudit]) -> dict[Finding, list[str]]:
    """Every finding once, with the versions that have it, oldest first."""
    found: dict[Finding, list[str]] = {}
    for audit in audits:
        for finding in dict.fromkeys(audit.findings):
            found.setdefault(finding, []).append(audit.rules)
    return found


def _model(key: TableKey) -> tuple[int | None, int]:
    """Heads and top-k of the first shipped model with these head dims."""
    for name in names():
        model = load(name)
        if (model.qk_head_dim, model.v_head_dim) == key[:2] and model.index_topk:
            return model.heads, model.index_topk
    return None, _TOPK


def _limits(
    rules: Rules, rows: Sequence[Row], prefills: Sequence[int], limits: Sequence[int | None]
) -> Iterator[Finding]:
    if not rows or rules.mask_workspace is None:
        return
    room = rules.mask_workspace.max_bytes
    longest = max(row.entry.interval[0] for row in rows)
    guarded = replace(rules, mask_workspace=replace(rules.mask_workspace, guarded=True))
    for each, limit in zip(prefills, limits, strict=True):
        if limit is not None:
            message = f"the longest pure prompt that the guard lets through has {limit} tokens"
            yield Finding("pure-limit", "mask workspace", "note", message, each, (limit, limit))
            continue
        last = pure_limit(guarded, each)
        if last is not None and last < longest:
            message = f"no guard: pure prompts above {last} tokens overrun the {room} bytes of the workspace"
            yield Finding("overrun", "mask workspace", "warning", message, each, (last + 1, longest))


def _of_row(row: Row, prefills: Sequence[int]) -> Iterator[Finding]:
    name, longest = row.entry.row, row.entry.interval[0]
    if row.entry.fault is not None:
        yield Finding("contradiction", name, "error", row.entry.fault)
        return
    if row.reaches[0].wanted is None:
        message = f"dense MHA decides before it: at most {row.topk} keys"
        yield Finding("shadowed", name, "note", message, None, (row.entry.low, longest))
        return
    for each, left in zip(prefills, row.reaches, strict=True):
        assert left.wanted is not None
        first, last = left.wanted
        if left.alive is None:
            yield Finding("dead-row", name, "note", f"no mask of {first} queries fits", each, left.wanted)
        elif left.alive[0] == left.alive[1]:
            message = f"alive at {first} new tokens only"
            yield Finding("single-point", name, "note", message, each, left.alive)
        elif left.alive[1] < last:
            dead = (left.alive[1] + 1, last)
            yield Finding("dead-part", name, "note", f"dead above {left.alive[1]} new tokens", each, dead)


def _gaps(rows: Sequence[Row]) -> Iterator[Finding]:
    for (group, which), same in groupby(rows, key=lambda row: (row.entry.group, row.entry.which)):
        listed = list(same)
        for low, high in holes([row.entry for row in listed], listed[0].topk):
            message = f"sequences of {low}..{high}: MQA whatever the query, MHA on both sides"
            yield Finding("gap", f"{group} {which}", "note", message, None, (low, high))
