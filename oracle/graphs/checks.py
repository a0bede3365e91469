"""The checks of one step, each a function of what the graph engine, its eager shadow and the truth did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite

import torch
from torch import Tensor

from ...reference.layer import OperatorCall, SkipDecided, need
from ..layer.contract import check_metadata, check_traces
from .backend import Graph
from .budget import budget
from .engine import Engine, Key, Outcome
from .recording import FOREIGN, Place
from .static import BY_REQUEST, BY_TOKEN, named
from .traces import refreshed, signature
from .violation import Violation

MHA = ("dense_mha", "masked_mha")
#: Rules of the layer contract that have a check of their own here.
_CONTRACT = {
    "query": "rope-once",
    "route": "route-trace",
    "coverage": "route-trace",
    "metadata-foreign": "metadata-current",
    "metadata-missing": "metadata-current",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One step of the three engines: the one with graphs, the same without, and the right layers run eagerly."""

    graphed: Engine
    shadow: Engine
    got: Outcome
    without: Outcome | None
    """What the shadow did; None where it raised."""
    truth: Outcome
    before: tuple[Engine, ...] = ()

    @property
    def number(self) -> int:
        return self.got.number

    def violation(self, check: str, frozen: str, now: str) -> Violation:
        return Violation(check, self.number, frozen, now)


def captured(engine: Engine) -> Iterator[Violation]:
    """What can be said of the graphs before anything is replayed."""
    for key, segment in engine.segments.items():
        prepared = segment.prepared
        missing = [name for name, value in (("kv_c", segment.kv_c), ("k_pe", segment.k_pe)) if value is None]
        missing += ["MQA query"] * (prepared.mqa is None)
        if missing:
            frozen = f"graph {_spell(key)} left no {' and no '.join(missing)}"
            yield Violation("superset", 0, frozen, "a replay may take a route that needs it")
    for key, graph in engine.graphs.items():
        for op in graph.ops:
            foreign = [leaf for leaf in op.arguments if isinstance(leaf, Place) and leaf.of == FOREIGN]
            if foreign:
                frozen = f"graph {_spell(key)} reads {foreign[0]} in {op.name} at {op.where}"
                yield Violation(
                    "captured-metadata", 0, frozen, "it is no static buffer: only the capture's batch knows it"
                )


def addresses(known: Mapping[str, int], now: Mapping[str, Tensor], number: int) -> Iterator[Violation]:
    """Buffers that moved since the capture."""
    for name, tensor in now.items():
        if name in known and tensor.data_ptr() != known[name]:
            frozen = f"the capture knows {name} at one address"
            yield Violation("addresses", number, frozen, "step by step it lies at another, and graphs use the old one")


def metadata_current(seen: Seen) -> Iterator[Violation]:
    """The static buffers against the exact metadata and inputs of the step."""
    got, static = seen.got, seen.graphed.static
    exact = seen.truth.metadata
    tokens, requests = got.tokens, len(got.step.ids)
    for name, neutral in (BY_TOKEN | BY_REQUEST).items():
        count, wanted = (tokens if name in BY_TOKEN else requests), need(exact, name)
        buffer: Tensor = getattr(static, name)
        real = buffer[:count, : wanted.shape[1]] if wanted.dim() > 1 else buffer[:count]
        wanted = wanted.clamp_min(0) if name == "block_table" else wanted
        yield from _compared(seen, name, real, wanted)
        used = name in ("slots", "owners") or (got.mode == "FULL" and name != "request_rows")
        padded = buffer[count : got.size]
        if used and padded.numel() and bool((padded != neutral).any()):
            frozen = f"padded rows {count} to {got.size - 1} of {name} hold {_head(padded)}"
            yield seen.violation("metadata-current", frozen, f"padding is to hold {neutral}")
    for place, (buffers, given) in enumerate(zip(static.inputs, seen.truth.inputs, strict=True)):
        for name, buffer in named(buffers).items():
            yield from _compared(seen, f"{name}.{place}", buffer[:tokens], named(given)[name])
    yield from _compared(seen, "clock", static.clock[None], torch.tensor([got.number]))


def _compared(seen: Seen, name: str, held: Tensor, wanted: Tensor) -> Iterator[Violation]:
    if not torch.equal(held.cpu(), wanted.cpu().to(held.dtype)):
        frozen = f"static {name} holds {_head(held)} from before"
        yield seen.violation("metadata-current", frozen, f"step {seen.number} has {_head(wanted)}")


def frozen_host(seen: Seen) -> Iterator[Violation]:
    """The recorded operations against those that the same code would record for this step."""
    for key in seen.got.graphs:
        graph, now = seen.graphed.graphs[key], seen.shadow.graphs.get(key)
        if now is not None and now.ops:
            found = difference(graph, now)
            if found is not None:
                yield seen.violation("frozen-host", f"graph {_spell(key)} {found[0]}", found[1])


def difference(graph: Graph, now: Graph) -> tuple[str, str] | None:
    """The first thing that a graph froze and its function would do otherwise now: what, and what instead."""
    for old, new in zip_longest(graph.ops, now.ops):
        if old is None or new is None:
            one = old or new
            end = "froze" if new is None else "lacks"
            return f"{end} {one.name} at {one.where}", f"this step {'lacks it' if new is None else 'runs it'}"
        if old.name != new.name:
            return f"froze {old.name} at {old.where}", f"this step would run {new.name} at {new.where}"
        for a, b in zip_longest(old.arguments, new.arguments):
            if a != b and not (isinstance(a, float) and isinstance(b, float) and a != a and b != b):
                return f"froze {_leaf(a)} in {old.name} at {old.where}", f"this step would put {_leaf(b)}"
    return None


def full_scores(seen: Seen) -> Iterator[Violation]:
    """A full graph scores and holds uniform decodes."""
    if seen.got.mode != "FULL":
        return
    lengths = {request.query_len for request in seen.got.step.batch.requests}
    if lengths != {1} or seen.truth.metadata.num_prefills:
        frozen = "full graphs were captured for decodes of one token"
        yield seen.violation("full-scores", frozen, f"this step has query lengths {sorted(lengths)}")
    for trace in seen.got.traces:
        skipped = any(isinstance(event, SkipDecided) and event.decision.value for event in trace.events)
        selects = any(isinstance(event, OperatorCall) and event.operator == "topk_select" for event in trace.events)
        if trace.kind != "shared" and (skipped or not selects):
            yield seen.violation("full-scores", f"the capture of {trace.layer} skipped scoring", "a full graph scores")


def route_trace(seen: Seen) -> Iterator[Violation]:
    """Routes, skips and operators against the eager step."""
    for got, truth in zip(seen.got.traces, seen.truth.traces, strict=True):
        for ran, wanted in zip_longest(signature(got), signature(truth)):
            if ran != wanted:
                frozen = f"{got.layer} under {seen.got.mode}: {ran or 'nothing more'}"
                yield seen.violation("route-trace", frozen, f"an eager step: {wanted or 'nothing more'}")
                break


def prepare_dispatch(seen: Seen) -> Iterator[Violation]:
    """The two evaluations of the route."""
    if seen.got.mode != "NONE":
        return
    decodes = bool(seen.truth.metadata.num_decode_tokens)
    for place, (absorbed, route) in enumerate(seen.got.decisions):
        if absorbed != (decodes or route not in MHA):
            frozen = f"layer {place} {'prepared an' if absorbed else 'prepared no'} MQA query"
            yield seen.violation("prepare-dispatch", frozen, f"it dispatched {route}")


def static_inputs(seen: Seen) -> Iterator[Violation]:
    """What the eager part was handed: where it lies, and what it holds."""
    if seen.got.mode != "PIECEWISE":
        return
    kept = [buffer.untyped_storage().data_ptr() for buffer in seen.graphed.static.names().values()]
    for segment in seen.graphed.segments.values():
        prepared = segment.prepared
        left = (segment.kv_c, segment.k_pe, prepared.nope, prepared.pe, prepared.rotated)
        kept += [value.untyped_storage().data_ptr() for value in left if value is not None]
    for place, handed in enumerate(seen.got.handed):
        for name, value in handed.items():
            if value.untyped_storage().data_ptr() not in kept:
                frozen = f"layer {place} hands {name} to its eager part outside of every static buffer"
                yield seen.violation("static-inputs", frozen, "a replay does not renew it")
            elif seen.without is not None and not _same(value, seen.without.handed[place][name]):
                frozen = f"layer {place} hands {name} = {_head(value)} to its eager part"
                yield seen.violation(
                    "static-inputs", frozen, f"this step has {_head(seen.without.handed[place][name])}"
                )


def outputs(seen: Seen, history: list[Outcome]) -> Iterator[Violation]:
    """Outputs against the eager truth, within what reordering explains."""
    for place, (got, wanted) in enumerate(zip(seen.got.outputs, seen.truth.outputs, strict=True)):
        inputs = [outcome.inputs[place] for outcome in history]
        parts, w_o = seen.graphed.parts_of()[place], seen.graphed.w_o[place]
        packed = any(
            isinstance(event, OperatorCall) and event.query is not None and event.query.packed
            for event in seen.truth.traces[place].events
        )
        bound = budget(parts, inputs, w_o, seen.graphed.sizes.dtype, packed=packed)
        worst = float((got.double().cpu() - wanted.double().cpu()).abs().amax())
        if not isfinite(worst) or worst > bound:
            what = f"off by {worst / bound:.3g} times its budget" if isfinite(worst) else "not finite"
            frozen = f"layer {place} under {seen.got.mode} with {seen.got.size - seen.got.tokens} padded rows"
            yield seen.violation("outputs", frozen, f"its output is {what}")


def contract(seen: Seen) -> Iterator[Violation]:
    """The layer contract, on the traces of the replay."""
    engine, got = seen.graphed, seen.got
    rules, deployment = engine.rules, engine.deployment
    traces = [refreshed(trace, got.number, got.tokens) for trace in got.traces]
    found = [
        *check_metadata(got.metadata, got.step, rules, deployment),
        *check_traces(traces, got.step, rules, deployment, mode=got.mode),
    ]
    for broken in found:
        check = _CONTRACT.get(broken.rule, "layer-contract")
        yield seen.violation(check, f"{broken.layer}: {broken.parties[0]} ({broken.rule})", broken.parties[1])


def differ(a: Outcome, b: Outcome) -> str | None:
    """Where two runs of one step differ in a bit; None if nowhere."""
    for place, (one, other) in enumerate(zip(a.outputs, b.outputs, strict=True)):
        if not _same(one, other):
            rows = (one != other).reshape(len(one), -1).any(1).nonzero().flatten().tolist()
            return f"output of layer {place} differs in rows {', '.join(map(str, rows[:6]))}"
    return None


def changed_rows(before: Mapping[str, Tensor], now: Mapping[str, Tensor], allowed: Tensor) -> Iterator[tuple[str, int]]:
    """Cache rows that changed and may not have; ``allowed`` rows may."""
    for name, values in now.items():
        moved = _bytes(values) != _bytes(before[name])
        rows = moved.reshape(len(values), -1).any(1)
        rows[allowed.to(rows.device)] = False
        for row in rows.nonzero().flatten().tolist():
            yield name, row


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def _head(tensor: Tensor) -> str:
    values = tensor.flatten()[:4].tolist()
    spelt = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    return f"[{spelt}{', …' if tensor.numel() > 4 else ''}]"


def _leaf(value: object) -> str:
    return f"{value}" if isinstance(value, Place) else repr(value)


def _spell(key: Key) -> str:
    return f"{key[0]} {key[1]} {key[2]}"
