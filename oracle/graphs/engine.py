"""A small engine: it captures the layers of a model, and runs batches through graphs or eagerly.

    PIECEWISE   per layer: [rotate, write caches, prepare the query]  index, route, attend  [output projection]
    FULL        all of it in one graph, for uniform decodes of one token

What stands in brackets is captured; the rest runs at every replay, on this step's metadata. Methods are the seams at
which a faulty engine may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import (
    LayerInputs,
    Pages,
    Parts,
    PreparedQuery,
    Routed,
    SparseMLALayer,
    StepBatch,
    StepMetadata,
    Trace,
    build_metadata,
)
from ...reference.rope import rope_tables, rotate_interleaved
from ...reference.routing import Batch, Mode, Request
from ..layer.rig import Rig, RigSizes
from .backend import Graph, Maker
from .segment import Segment, tensors_of
from .sequences import GraphMode, Step
from .setup import LONGEST, Setup
from .static import Static, named, rows
from .traces import refreshed

Key = tuple[Mode, int, str]
#: Inputs of a request and layer, which several engines of one comparison share.
_DRAWN: dict[tuple[RigSizes, int, int], dict[str, Tensor]] = {}


@dataclass(slots=True, eq=False, kw_only=True)
class Outcome:
    """One step: outputs [s, o] a layer, traces, and what the eager part of each layer was handed."""

    number: int
    mode: Mode
    size: int
    step: StepBatch
    metadata: StepMetadata
    inputs: list[LayerInputs]
    outputs: list[Tensor] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    handed: list[dict[str, Tensor]] = field(default_factory=list)
    decisions: list[tuple[bool, str]] = field(default_factory=list)
    """Per layer: whether the MQA query was prepared, and the route that was dispatched."""
    graphs: tuple[Key, ...] = ()
    """Those that were replayed."""

    @property
    def tokens(self) -> int:
        return self.step.batch.num_tokens


class Engine(Rig):
    """Layers with random weights over shared caches, and their graphs."""

    layer: Callable[[Parts], SparseMLALayer] = SparseMLALayer

    def __init__(self, setup: Setup, maker: Maker, mode: GraphMode, sizes: Sequence[int]) -> None:
        device = setup.sizes.device
        positions = torch.arange(LONGEST)
        cos, sin = rope_tables(positions, dim=setup.deployment.qk_rope_head_dim, theta=10000.0)
        self.cos, self.sin = cos.to(device), sin.to(device)
        super().__init__(setup.rules, setup.deployment, setup.sizes, operators=setup.operators(), make=self.layer)
        self.setup, self.maker, self.mode, self.captured_sizes = setup, maker, mode, tuple(sizes)
        # Page 0 is the null page: padding may name it, no request holds it.
        self.pages = Pages(setup.sizes.blocks, setup.deployment.block_size)
        self.pages.free.remove(0)
        self.static = Static.of(setup, [LayerInputs(**self.sequence(0, place, 0, 1)) for place in self._places()])
        self.w_o = [self._projection(place) for place in self._places()]
        self.graphs: dict[Key, Graph] = {}
        self.segments: dict[Key, Segment] = {}
        self.host: StepMetadata | None = None
        """The metadata that a captured function sees, host fields and all."""

    def _places(self) -> range:
        return range(len(self.sizes.kinds))

    # Memory

    def buffers(self) -> dict[str, Tensor]:
        """Everything that stays, by name."""
        found = self.static.names() | {"cos": self.cos, "sin": self.sin}
        buffer = self.buffer
        found |= {
            f"topk.{name}": getattr(buffer, name) for name in ("indices", "steps", "layers", "requests", "stamps")
        }
        for place, layer in enumerate(self.parts_of()):
            found |= {f"w_uk.{place}": layer.w_uk, f"w_o.{place}": self.w_o[place]}
            for cache in (layer.latent, layer.index):
                if cache is not None:
                    base = f"{cache.name}.{place}"
                    found |= {base: cache.values, f"{base}.owners": cache.owners, f"{base}.positions": cache.positions}
            if layer.index is not None:
                found[f"index.{place}.scales"] = layer.index.scales
        return found

    def caches(self) -> dict[str, Tensor]:
        """Cache rows by name."""
        caches = [(place, layer.latent) for place, layer in enumerate(self.parts_of())]
        indexes = [(place, layer.index) for place, layer in enumerate(self.parts_of()) if layer.index is not None]
        return {f"{one.name} cache of layer {place}": one.values for place, one in (*caches, *indexes)}

    def parts_of(self) -> list[Parts]:
        return [layer.parts for layer in self.layers]  # type: ignore[attr-defined]

    # Capture

    def capture(self, length: int) -> None:
        """Capture every size, the largest first, with a prompt or decodes of ``length`` tokens that write nothing."""
        for size in sorted(self.captured_sizes, reverse=True):
            if self.mode in ("FULL", "FULL_AND_PIECEWISE"):
                self._capture_full(size, length)
            if self.mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
                self._capture_pieces(size, length)

    def _capture_full(self, size: int, length: int) -> None:
        decodes = Batch(tuple(Request(1, length - 1, False) for _ in range(size)))
        self.dummy(decodes, size, "FULL")
        self._capture(("FULL", size, "model"), self.whole(size))

    def _capture_pieces(self, size: int, length: int) -> None:
        self.dummy(Batch((Request(length, 0),)), size, "PIECEWISE")
        for place in self._places():
            self._capture(("PIECEWISE", size, f"before.{place}"), self.before(place, size))
            self._capture(("PIECEWISE", size, f"finish.{place}"), self.finish(place, size))

    def _capture(self, key: Key, function: Callable[[], Any]) -> None:
        self.graphs[key] = self.maker.capture(" ".join(map(str, key)), function, self.buffers())
        self.captured(key)

    def captured(self, key: Key) -> None:
        """Keep what the graph left."""
        outputs = self.graphs[key].outputs
        if isinstance(outputs, Segment):
            self.segments[key] = outputs

    def dummy(self, batch: Batch, size: int, mode: Mode) -> None:
        """What a graph is captured with: the host sees ``batch``, the device ``size`` rows that write nothing."""
        pages = Pages(self.sizes.blocks, self.deployment.block_size)
        ids = tuple(range(1, 1 + len(batch.requests)))
        for number, request in zip(ids, batch.requests, strict=True):
            pages.reserve(number, min(request.seq_len, self.deployment.block_size))
        step = StepBatch(step=0, ids=ids, batch=batch)
        held = {number: pages.held[number] * (LONGEST // self.deployment.block_size) for number in ids}
        pages.held = held
        self.host = build_metadata(self.rules, self.deployment, step, pages, mode=mode, capturing=True)
        static = self.static
        for name, neutral in (("positions", 0), ("request_rows", 0), ("owners", -1), ("seq_lens", 0)):
            getattr(static, name)[:size] = neutral
        static.slots[:size] = self.dummy_slot()
        static.block_table[:size] = 0
        static.clock.fill_(0)

    def dummy_slot(self) -> int:
        """Where the rows of a dummy batch are written."""
        return -1

    # What is captured

    def metadata_in_graph(self, size: int) -> StepMetadata:
        """The host's view in a graph of ``size`` rows."""
        assert self.host is not None
        host = self.host
        if host.mode == "FULL":
            host = replace(
                host,
                ids=tuple(range(size)),
                num_decodes=size,
                num_decode_tokens=size,
                num_prefills=0,
                query_lens=(1,) * size,
                context_lens=(0,) * size,
                prefill_max_seq_len=0,
                prefill=None,
            )
        requests = size if host.mode == "FULL" else len(host.ids or ())
        return replace(self.static.told(host, size, requests), capturing=True)

    def before(self, place: int, size: int) -> Callable[[], Segment]:
        """The first piece of a layer."""

        def function() -> Segment:
            layer = self.at(place)
            metadata = self.metadata_in_graph(size)
            inputs = rows(self.static.inputs[place], size)
            trace = layer.new_trace(metadata)
            k_pe, prepared = layer.before(inputs, metadata, trace)
            return Segment(inputs.kv_c, k_pe, prepared, trace)

        return function

    def finish(self, place: int, size: int) -> Callable[[], Tensor]:
        """The last piece of a layer."""
        return lambda: self.project(place, self.static.attended[place][:size])

    def whole(self, size: int) -> Callable[[], tuple[list[Tensor], list[Trace]]]:
        """All layers."""

        def function() -> tuple[list[Tensor], list[Trace]]:
            outputs, traces = [], []
            for place in self._places():
                metadata = self.metadata_in_graph(size)
                attended, trace = self.at(place).forward(rows(self.static.inputs[place], size), metadata)
                self.static.attended[place][:size] = attended
                outputs.append(self.project(place, self.static.attended[place][:size]))
                traces.append(trace)
            return outputs, traces

        return function

    def project(self, place: int, attended: Tensor) -> Tensor:
        """Output [s, o]: scaled by the largest value of the step, as a quantising projection scales, and back."""
        largest = attended.abs().amax().clamp_min(torch.finfo(attended.dtype).tiny)
        return torch.einsum("shv,hvo->so", attended / largest, self.w_o[place]) * largest

    # Steps

    def schedule(self, step: Step, number: int) -> tuple[StepBatch, list[LayerInputs]]:
        """Preempt, switch, reserve pages, and draw the inputs."""
        for name in step.preempted:
            self.preempt(_id(name))
        self.switch(step.force)
        requests = [Request(count, self.lengths.get(_id(name), 0)) for name, count in step.queries]
        ids = tuple(_id(name) for name, _ in step.queries)
        batch = StepBatch(step=number, ids=ids, batch=Batch(tuple(requests))).arranged(self.rules, self.deployment)
        for request, span in zip(batch.ids, batch.batch.requests, strict=True):
            self.pages.reserve(request, span.seq_len)
            self.lengths[request] = span.seq_len
        return batch, [self.inputs(batch, place) for place in self._places()]

    def switch(self, force: bool) -> None:
        """Turn ``sparse_mla_force_mqa`` on or off."""
        self.deployment = replace(self.deployment, force_mqa=force)
        for layer in self.layers:
            layer.parts = replace(layer.parts, deployment=self.deployment)  # type: ignore[attr-defined]

    def choose(self, metadata: StepMetadata, tokens: int) -> tuple[Mode, int]:
        """The graph of a batch: mode and size."""
        size = next((size for size in self.captured_sizes if size >= tokens), 0)
        uniform = not metadata.num_prefills and set(metadata.query_lens or ()) == {1}
        if size and uniform and self.mode in ("FULL", "FULL_AND_PIECEWISE"):
            return "FULL", size
        if size and self.mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
            return "PIECEWISE", size
        return "NONE", tokens

    def build(self, batch: StepBatch, mode: Mode = "NONE") -> StepMetadata:
        """Exact metadata of a step."""
        return build_metadata(self.rules, self.deployment, batch, self.pages, mode=mode, device=self.sizes.device)

    def prepare(self, step: Step, number: int) -> Outcome:
        """Schedule a step and fill the static buffers; ``play`` runs it, as often as one likes."""
        batch, inputs = self.schedule(step, number)
        metadata = self.build(batch)
        tokens = batch.batch.num_tokens
        mode, size = self.choose(metadata, tokens)
        if step.eager:
            mode, size = "NONE", tokens
        metadata = replace(metadata, mode=mode)
        if mode != "NONE":
            self.fill(metadata, inputs, size)
        return Outcome(number=number, mode=mode, size=size, step=batch, metadata=metadata, inputs=inputs)

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        """Put a step into the static buffers."""
        self.static.fill(metadata, inputs, size)

    def play(self, outcome: Outcome) -> Outcome:
        """Run a prepared step."""
        done = replace(outcome, outputs=[], traces=[], handed=[], decisions=[])
        if outcome.mode == "NONE":
            return self.eager(done)
        self.host = replace(outcome.metadata, capturing=True)
        return self._play_full(done) if outcome.mode == "FULL" else self._play_pieces(done)

    def eager(self, done: Outcome) -> Outcome:
        """Without graphs, on exact metadata and the step's own inputs."""
        metadata = replace(done.metadata, mode="NONE")
        for place in self._places():
            layer = self.at(place)
            trace = layer.new_trace(metadata)
            k_pe, prepared = layer.before(done.inputs[place], metadata, trace)
            attended = layer.after(done.inputs[place], k_pe, prepared, metadata, trace)
            self._close(done, place, prepared, trace)
            done.outputs.append(self.project(place, attended.to(self.static.attended[place].dtype)))
        return done

    def _play_full(self, done: Outcome) -> Outcome:
        key: Key = ("FULL", done.size, "model")
        outputs, traces = self._replay(key, done)
        done.outputs = [self.hand_out(output, done.tokens) for output in outputs]
        done.traces = [refreshed(trace, done.number, done.tokens) for trace in traces]
        return done

    def _play_pieces(self, done: Outcome) -> Outcome:
        for place in self._places():
            segment = self._replay(("PIECEWISE", done.size, f"before.{place}"), done)
            trace = refreshed(segment.trace, done.number, done.tokens)
            attended = self.broken(place, segment, done, trace)
            self.leave(place, attended, done)
            output = self._replay(("PIECEWISE", done.size, f"finish.{place}"), done)
            done.outputs.append(self.hand_out(output, done.tokens))
        return done

    def broken(self, place: int, segment: Segment, done: Outcome, trace: Trace) -> Tensor:
        """What stands between the pieces: it runs at every replay, on the first rows."""
        layer, tokens = self.at(place), done.tokens
        metadata = self.metadata_between(done)
        inputs = rows(self.static.inputs[place], tokens)
        prepared = segment.first(tokens)
        assert segment.k_pe is not None
        k_pe = segment.k_pe[:tokens]
        if segment.kv_c is not None:
            inputs = replace(inputs, kv_c=segment.kv_c[:tokens])
        done.handed.append({"k_pe": k_pe, **named(inputs), **tensors_of(prepared)})
        attended = layer.after(inputs, k_pe, prepared, metadata, trace)
        self._close(done, place, prepared, trace)
        return attended

    def metadata_between(self, done: Outcome) -> StepMetadata:
        """What the eager part is told: this step's host fields, and its rows of the static buffers."""
        return self.static.told(done.metadata, done.tokens, len(done.step.ids))

    def leave(self, place: int, attended: Tensor, done: Outcome) -> None:
        """Put the attention's output where the last piece reads it; nothing may lie in the padded rows."""
        self.static.attended[place][: done.tokens] = attended
        self.static.attended[place][done.tokens : done.size] = 0

    def hand_out(self, output: Tensor, tokens: int) -> Tensor:
        """The real rows, out of the graph's memory."""
        return output[:tokens].clone()

    def _replay(self, key: Key, done: Outcome) -> Any:
        graph = self.graphs[key]
        graph.replay()
        done.graphs = (*done.graphs, key)
        return graph.outputs

    def _close(self, done: Outcome, place: int, prepared: PreparedQuery, trace: Trace) -> None:
        routes = [event.decision.value for event in trace.events if isinstance(event, Routed)]
        done.decisions.append((prepared.mqa is not None, routes[-1] if routes else "none"))
        done.traces.append(trace)

    def at(self, place: int) -> SparseMLALayer:
        layer = self.layers[place]
        assert isinstance(layer, SparseMLALayer)
        return layer

    # The model

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE by table, as engines do: the host computes no angle in a graph."""
        return rotate_interleaved(x, self.cos[positions], self.sin[positions])

    def sequence(self, request: int, place: int, start: int, stop: int) -> dict[str, Tensor]:
        """As the rig draws them, drawn once."""
        key = (self.sizes, request, place)
        if key not in _DRAWN:
            drawn = super().sequence(request, place, 0, self.sizes.max_tokens)
            if "index_weights" in drawn and self.sizes.dtype != torch.float64:
                drawn["index_weights"] = drawn["index_weights"].float()  # as every kernel takes them
            _DRAWN[key] = drawn
        return {name: value[start:stop] for name, value in _DRAWN[key].items()}

    def _projection(self, place: int) -> Tensor:
        dims = self.deployment
        generator = torch.Generator().manual_seed(104729 + place)
        weight = torch.randn(dims.local_heads, dims.v_head_dim, 8, generator=generator, dtype=torch.float64)
        weight /= (dims.local_heads * dims.v_head_dim) ** 0.5
        return weight.to(torch.promote_types(self.sizes.dtype, torch.float32)).to(self.sizes.device)


def _id(name: str) -> int:
    return ord(name) - ord("a") + 1
