"""The layer contract on a live layer: what it did in a step, seen from outside, and held against the rules.

The layer's own methods are wrapped while a watch is attached, and put back after. Who wrote a row of the shared top-k
buffer is found out with a mark: before the indexer runs, its rows are set to a number that no selection holds; a row
that still holds it afterwards was not written, and gets its old content back. Nothing else of the engine is changed.

What is checked are the rules of the contract whose evidence is visible from here: the route that ran, that every token
attends once, the skip, and that selections are fresh and valid where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import BufferRead, OperatorCall, SkipDecided, StepBatch, TopkBuffer, Trace, to_slots
from ...reference.routing import Batch, Decision, Deployment, LayerKind, Mode, Request, Rules, decide_route
from ..layer.contract import check_traces
from ..layer.evidence import Rule, Violation
from ..layer.reads import selection_valid, topk_computed
from ..layer.rules import route_executed, skip_allowed
from . import captured
from .shape import Shape, need, need_of_step, reach, replace_at, restore_at

#: No selection: positions are not negative, and -1 stands for none.
MARK = -(2**31) + 77
#: Rules of the contract whose evidence a watch sees.
WATCHED: tuple[Rule, ...] = (route_executed, skip_allowed, topk_computed, selection_valid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what is kept."""

    cases: int = 4
    """Captured calls a layer."""
    queries: int = 64
    """Of a call, the first so many."""
    bytes: int = 64 * 2**20
    """Of all captured calls together."""


@dataclass(slots=True, eq=False)
class _Watched:
    """A layer, and what it held before."""

    layer: Any
    place: int
    kind: LayerKind
    before: dict[str, Any] = field(default_factory=dict)
    kept: int = 0


class Watch:
    """Watches the layers of a model. ``metadata(layer)`` gives a step's metadata: an object a step, None in dummy runs.

    ``attach`` layers in model order, run steps, ``detach``, and read ``violations``. Files go to ``folder``; None keeps
    nothing.
    """

    def __init__(
        self,
        rules: Rules,
        deployment: Deployment,
        metadata: Callable[[Any], Any],
        *,
        shape: Shape | None = None,
        folder: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.rules, self.deployment, self.metadata = rules, deployment, metadata
        self.shape, self.folder, self.limits = shape or Shape(), folder, limits or Limits()
        self.violations: list[Violation] = []
        self.saved: list[Path] = []
        self.mode: Mode = "NONE"
        """How steps run; set it where an engine replays full graphs."""
        self.steps = 0
        self._bytes = 0
        self._layers: list[_Watched] = []
        self._traces: list[Trace] = []
        self._stamps: dict[int, TopkBuffer] = {}
        self._step: StepBatch | None = None
        self._metadata: Any = None

    def attach(self, layer: Any) -> None:
        """Wrap a layer's indexer and attention. Raises BadInput for one that lacks a documented attribute."""
        shape = self.shape
        for path in (shape.name, shape.buffer, shape.mqa, shape.scale, shape.rank):
            need(layer, path)
        shares = bool(shape.shares and reach(layer, shape.shares))
        kind: LayerKind = "full" if reach(layer, shape.indexer) is not None and not shares else "shared"
        watched = _Watched(layer, len(self._layers), kind)
        if kind == "full":
            self._wrap(watched, shape.indexer, self._index)
        self._wrap(watched, shape.mqa, self._mqa)
        if reach(layer, shape.mha) is not None:
            self._wrap(watched, shape.mha, self._mha)
        self._layers.append(watched)

    def detach(self) -> None:
        """End the step and put every method back."""
        self.end_step()
        for watched in self._layers:
            for path, before in watched.before.items():
                restore_at(watched.layer, path, before)
        self._layers.clear()

    def end_step(self) -> tuple[Violation, ...]:
        """The violations of the step that ran last, which are also kept; the next step ends it as well."""
        if self._step is None:
            return ()
        found = check_traces(self._traces, self._step, self.rules, self.deployment, mode=self.mode, only=WATCHED)
        self.violations += found
        self._step = None
        return found

    def _wrap(self, watched: _Watched, path: str, around: Callable[..., Any]) -> None:
        *owners, last = path.split(".")
        owner = reach(watched.layer, ".".join(owners)) if owners else watched.layer
        inner, watched.before[path] = need(watched.layer, path), vars(owner).get(last)
        replace_at(watched.layer, path, lambda *args, **kwargs: around(watched, inner, *args, **kwargs))

    def _trace(self, watched: _Watched) -> Trace | None:
        """The layer's trace of the step; None in a run without metadata. Another metadata object is another step."""
        metadata = self.metadata(watched.layer)
        if metadata is None:
            return None
        if metadata is not self._metadata:
            self.end_step()
            self.steps += 1
            self._traces, self._metadata, self._step = [], metadata, _step_of(metadata, self.steps)
        for trace in self._traces:
            if trace.position == watched.place:
                return trace
        trace = Trace(
            step=self.steps,
            layer=str(need(watched.layer, self.shape.name)),
            position=watched.place,
            kind=watched.kind,
            supports_dense=True,
            runs_mha=reach(watched.layer, self.shape.mha) is not None,
        )
        self._traces.append(trace)
        return trace

    def _index(self, watched: _Watched, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trace = self._trace(watched)
        if trace is None or self._step is None:
            return inner(*args, **kwargs)
        total = self._step.batch.num_tokens
        buffer: Tensor = need(watched.layer, self.shape.buffer)
        rows = buffer[:total]
        before = rows.clone()
        rows.fill_(MARK)
        try:
            result = inner(*args, **kwargs)
        finally:
            left = (rows == MARK).all(1)
            rows[left] = before[left]
        written = (~left).cpu()
        stamps = self._provenance(buffer)
        stamps.steps[:total][written] = trace.step
        stamps.layers[:total][written] = watched.place
        stamps.stamps[:total][written] = 2
        number, _ = self._step.token_rows()
        stamps.requests[:total][written] = torch.tensor(self._step.ids)[number][written]
        skipped = not bool(written.any())
        trace.events.append(
            SkipDecided(Decision(skipped, ("the buffer was left as it was",) if skipped else ("scored",)))
        )
        if not skipped:
            trace.events.append(OperatorCall("topk_select", (0, total)))
        return result

    def _mqa(self, watched: _Watched, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trace = self._trace(watched)
        if trace is None:
            return inner(*args, **kwargs)
        q = args[0]
        latent = torch.cat(tuple(q), -1) if isinstance(q, tuple | list) else q
        tokens = (0, len(latent))
        buffer: Tensor = need(watched.layer, self.shape.buffer)
        stamps, rows = self._provenance(buffer), slice(*tokens)
        selected = buffer[rows].clone()
        trace.events.append(
            BufferRead(
                "sparse_mqa",
                tokens,
                selected,
                stamps.steps[rows].clone(),
                stamps.layers[rows].clone(),
                stamps.stamps[rows].clone(),
                stamps.requests[rows].clone(),
            )
        )
        trace.events.append(OperatorCall("sparse_mqa", tokens))
        result = inner(*args, **kwargs)
        self._keep(watched, trace, latent, args, selected, result)
        return result

    def _mha(self, watched: _Watched, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trace = self._trace(watched)
        if trace is None or self._step is None:
            return inner(*args, **kwargs)
        total = self._step.batch.num_tokens
        short = decide_route(self.rules, self.deployment, self._step.batch).split.value.prefill_max_seq_len
        name = "dense_mha" if short <= self.deployment.index_topk else "masked_mha"
        trace.events.append(OperatorCall(name, (total - len(args[0]), total)))
        return inner(*args, **kwargs)

    def _provenance(self, buffer: Tensor) -> TopkBuffer:
        """Who wrote the rows of a buffer, beside it."""
        key = buffer.data_ptr()
        if key not in self._stamps:
            self._stamps[key] = TopkBuffer(len(buffer), 1)
        return self._stamps[key]

    def _keep(
        self, watched: _Watched, trace: Trace, q: Tensor, args: tuple[Any, ...], selected: Tensor, result: Any
    ) -> None:
        """Save the call, as long as there is room."""
        if self.folder is None or watched.kept >= self.limits.cases or len(args) < 3:
            return
        cache, metadata = args[1], args[2]
        out, lse = result if isinstance(result, tuple) else (result, None)
        size = int(need_of_step(metadata, "block_size"))
        requests = need_of_step(metadata, "req_id_per_token")[: len(q)].long()
        slots = to_slots(need_of_step(metadata, "block_table"), requests[:, None], selected, size)
        inputs, outputs = captured.sparse_call(
            q,
            cache.reshape(-1, cache.shape[-1]),
            slots,
            out,
            lse,
            scale=float(need(watched.layer, self.shape.scale)),
            rank=int(need(watched.layer, self.shape.rank)),
            queries=self.limits.queries,
        )
        one = captured.Captured("sparse_mqa", inputs, outputs, {"layer": trace.layer, "step": str(trace.step)})
        if self._bytes + one.bytes > self.limits.bytes:
            return
        path = self.folder / f"step{trace.step}-{trace.layer.replace('/', '_')}-sparse_mqa.safetensors"
        captured.save(one, path)
        self._bytes += one.bytes
        watched.kept += 1
        self.saved.append(path)


def _step_of(metadata: Any, step: int) -> StepBatch:
    """What the scheduler runs, from the metadata; requests are named by their place in the batch."""
    starts = [int(x) for x in need_of_step(metadata, "query_start_loc")]
    lengths = [stop - start for start, stop in pairwise(starts)]
    seqs = [int(x) for x in need_of_step(metadata, "seq_lens")]
    requests = tuple(Request(query, seq - query) for query, seq in zip(lengths, seqs, strict=True) if query > 0)
    return StepBatch(step=step, ids=tuple(range(len(requests))), batch=Batch(requests))
