"""A small model of sparse-MLA layers, driven step by step under the layer contract.

The rig holds what an engine holds between steps: pages, caches, the shared top-k buffer, how far each request is. The
inputs of a token depend only on its request, its position and its layer, so the same tokens come again however a
sequence is cut into steps, and the outputs of two such cuts can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...reference.dense_mha import dense_mha
from ...reference.indexer_scores import indexer_scores
from ...reference.layer import (
    IndexCache,
    LatentCache,
    LayerInputs,
    Operators,
    Pages,
    Parts,
    RowCache,
    SparseMLALayer,
    StepBatch,
    StepMetadata,
    TopkBuffer,
    Trace,
    build_metadata,
)
from ...reference.masked_mha import masked_mha
from ...reference.merge_lse import merge_lse
from ...reference.rope import rope_tables, rotate_interleaved
from ...reference.routing import Batch, Deployment, LayerKind, Mode, Request, Rules
from ...reference.sparse_mqa import sparse_mqa
from ...reference.topk_select import topk_select
from .contract import LayerUnderTest, Monitor
from .evidence import Violation

#: Every operator of a layer, by the reference.
REFERENCE_OPERATORS: Operators = {
    "dense_mha": dense_mha,
    "masked_mha": masked_mha,
    "sparse_mqa": sparse_mqa,
    "indexer_scores": indexer_scores,
    "topk_select": topk_select,
    "merge_lse": merge_lse,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RigSizes:
    """Sizes that routing does not see, and number formats."""

    kinds: tuple[LayerKind, ...] = ("full",)
    """One layer each; the first must be full."""
    index_heads: int = 2
    index_dim: int = 8
    blocks: int = 64
    max_tokens: int = 512
    """Rows of the top-k buffer, and the longest sequence."""
    dtype: torch.dtype = torch.float64
    latent_dtype: torch.dtype = torch.float64
    index_dtype: torch.dtype = torch.float64
    k_scale: float = 1.0
    q_scale: float | None = None
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What one step gave: outputs [s, h, v] a layer, in the order of the arranged step."""

    step: StepBatch
    metadata: StepMetadata
    outputs: tuple[Tensor, ...]
    traces: tuple[Trace, ...]
    violations: tuple[Violation, ...]

    def output(self, request: int, layer: int = -1) -> Tensor:
        """The rows of one request."""
        number, _ = self.step.token_rows()
        rows = (number == self.step.ids.index(request)).nonzero().flatten()
        return self.outputs[layer][rows.to(self.outputs[layer].device)]


class Rig:
    """Layers with random weights over shared state. ``make`` turns the parts of a layer into the layer under test."""

    def __init__(
        self,
        rules: Rules,
        deployment: Deployment,
        sizes: RigSizes | None = None,
        *,
        operators: Operators = REFERENCE_OPERATORS,
        make: Callable[[Parts], LayerUnderTest] = SparseMLALayer,
    ) -> None:
        self.rules, self.deployment = rules, deployment
        self.sizes = sizes = sizes or RigSizes()
        self.pages = Pages(sizes.blocks, deployment.block_size)
        self.buffer = TopkBuffer(sizes.max_tokens, deployment.index_topk, device=sizes.device)
        self.lengths: dict[int, int] = {}
        self.prefixes: dict[int, tuple[tuple[int, int], ...]] = {}
        """See ``StepBatch``."""
        self.clock = 0
        self.scheduled: StepBatch | None = None
        """The step that ran last, arranged."""
        self.monitor = Monitor(rules, deployment)
        self._drawn: dict[tuple[int, int], dict[str, Tensor]] = {}
        self.given = [self.parts(place, kind, operators) for place, kind in enumerate(sizes.kinds)]
        """What each layer was made of, whatever it made of it."""
        self.layers = [make(parts) for parts in self.given]

    def step(
        self,
        queries: Sequence[tuple[int, int]],
        *,
        mode: Mode = "NONE",
        capturing: bool = False,
        decoding: bool = False,
        alter: Callable[[StepMetadata], StepMetadata] = lambda metadata: metadata,
    ) -> StepResult:
        """Run (request, new tokens) pairs through all layers; ``alter`` stands for a faulty metadata builder."""
        requests = [
            Request(count, self.lengths.get(number, 0), False if decoding else None) for number, count in queries
        ]
        self.clock += 1
        scheduled = StepBatch(
            step=self.clock,
            ids=tuple(number for number, _ in queries),
            batch=Batch(tuple(requests)),
            prefixes=dict(self.prefixes),
        )
        step = self.scheduled = scheduled.arranged(self.rules, self.deployment)
        for number, request in zip(step.ids, step.batch.requests, strict=True):
            self.pages.reserve(number, request.seq_len)
            self.lengths[number] = request.seq_len
        metadata = alter(self._metadata(step, mode, capturing))
        self.monitor.begin(step, metadata)
        outputs: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            outputs.append(self.monitor.run(layer, self.inputs(step, place, outputs)))
        traces = tuple(self.monitor.traces)
        return StepResult(
            step=step, metadata=metadata, outputs=tuple(outputs), traces=traces, violations=self.monitor.end()
        )

    def preempt(self, request: int) -> None:
        """Take a request's pages away; it starts over from its first token."""
        self.pages.release(request)
        del self.lengths[request]
        self.prefixes.pop(request, None)

    def adopt(self, request: int, donor: int, tokens: int) -> None:
        """Begin a request with the donor's first tokens, whose pages the two share from then on."""
        self.pages.share(request, donor, tokens)
        self.lengths[request] = tokens
        parts = [(writer, min(stop, tokens)) for writer, stop in (*self.prefixes.get(donor, ()), (donor, tokens))]
        self.prefixes[request] = tuple(part for n, part in enumerate(parts) if not n or part[1] > parts[n - 1][1])

    def inputs(self, step: StepBatch, place: int, outputs: Sequence[Tensor] = ()) -> LayerInputs:
        """The inputs of a layer for every token of a step.

        Random here, whatever the layers before gave; a rig that is a model computes them from ``outputs``.
        """
        spans = [
            self.sequence(number, place, request.context_len, request.seq_len)
            for number, request in zip(step.ids, step.batch.requests, strict=True)
        ]
        names = spans[0].keys()
        joined = {name: torch.cat([span[name] for span in spans]).to(self.sizes.device) for name in names}
        return LayerInputs(**joined)

    def sequence(self, request: int, place: int, start: int, stop: int) -> dict[str, Tensor]:
        """Inputs of positions ``start`` to ``stop`` of a request, the same at every call."""
        drawn = self._drawn_for(request, place)
        for writer, upto in reversed(self.prefixes.get(request, ())):
            if start < upto:
                given = self._drawn_for(writer, place)
                drawn = {name: torch.cat((given[name][:upto], x[upto:])) for name, x in drawn.items()}
        return {name: x[start:stop] for name, x in drawn.items()}

    def _drawn_for(self, request: int, place: int) -> dict[str, Tensor]:
        if (request, place) not in self._drawn:
            self._drawn[request, place] = self._inputs_of(request, place)
        return self._drawn[request, place]

    def _inputs_of(self, request: int, place: int) -> dict[str, Tensor]:
        """The inputs of every position that a request can have."""
        dims, sizes = self.deployment, self.sizes
        generator = torch.Generator().manual_seed(1_000_003 * sizes.seed + 1009 * request + place)
        draw = partial(torch.randn, generator=generator, dtype=torch.float64)
        shapes = {
            "q": (dims.local_heads, dims.qk_head_dim),
            "kv_c": (dims.kv_lora_rank,),
            "k_pe": (dims.qk_rope_head_dim,),
        }
        if sizes.kinds[place] != "shared":
            shapes |= {
                "index_q": (sizes.index_heads, sizes.index_dim),
                "index_k": (sizes.index_dim,),
                "index_weights": (sizes.index_heads,),
            }
        return {name: draw(sizes.max_tokens, *shape).to(sizes.dtype) for name, shape in shapes.items()}

    def _metadata(self, step: StepBatch, mode: Mode, capturing: bool) -> StepMetadata:
        return build_metadata(
            self.rules,
            self.deployment,
            step,
            self.pages,
            mode=mode,
            capturing=capturing,
            device=self.sizes.device,
        )

    def parts(self, place: int, kind: LayerKind, operators: Operators) -> Parts:
        """A layer with random weights; a rig that is a model sets its own."""
        dims, sizes = self.deployment, self.sizes
        generator = torch.Generator().manual_seed(7919 * sizes.seed + place)
        draw = partial(torch.randn, generator=generator, dtype=torch.float64)
        up = draw(dims.local_heads, dims.qk_nope_head_dim + dims.v_head_dim, dims.kv_lora_rank)
        up = (up / dims.kv_lora_rank**0.5).to(sizes.dtype).to(sizes.device)
        shape = (sizes.blocks, dims.block_size)
        return Parts(
            name=f"layers.{place}",
            position=place,
            rules=self.rules,
            deployment=dims,
            operators=operators,
            w_uk=up[:, : dims.qk_nope_head_dim],
            w_uv=up[:, dims.qk_nope_head_dim :],
            scale=dims.qk_head_dim**-0.5,
            rotate=self.rotate,
            latent=self._latent(),
            buffer=self.buffer,
            index=None
            if kind == "shared"
            else IndexCache(*shape, sizes.index_dim, dtype=sizes.index_dtype, device=sizes.device),
            kind=kind,
            q_scale=sizes.q_scale,
        )

    def _latent(self) -> LatentCache:
        dims, sizes = self.deployment, self.sizes
        shape, device = (sizes.blocks, dims.block_size), sizes.device
        if dims.cache == "fp8_ds_mla":
            return RowCache(*shape, dims.kv_lora_rank, dims.qk_rope_head_dim, device=device)
        return LatentCache(*shape, dims.latent_dim, dtype=sizes.latent_dtype, k_scale=sizes.k_scale, device=device)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Interleaved RoPE with theta 10000; nothing to do for NoPE dims."""
        if not x.shape[-1]:
            return x
        cos, sin = rope_tables(positions, dim=x.shape[-1], theta=10000.0)
        return rotate_interleaved(x, cos, sin)
