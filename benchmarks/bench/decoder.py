"""One layer that decodes in a graph, as an engine's does: a step of every request is one replay.

Lengths, positions and slots lie on the device, and the graph moves them on by a token before it runs the layer; every
request holds its pages from the start. Caches and inputs are drawn on the device: what is timed is the layer, not the
prompts before it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from ...oracle.graphs.makers import maker
from ...oracle.layer.rig import Rig, RigSizes
from ...reference.layer import (
    LayerInputs,
    Operators,
    Parts,
    SparseMLALayer,
    StepBatch,
    StepMetadata,
    build_metadata,
    to_slots,
)
from ...reference.rope import rope_tables, rotate_interleaved
from ...reference.routing import Batch, Deployment, Request, Rules, decide_route, decide_skip

#: Metadata that every step changes.
MOVING = ("positions", "slots", "seq_lens")


class Decoder(Rig):
    """``requests`` decodes of one layer, from ``context`` tokens each to at most ``longest``."""

    def __init__(
        self, rules: Rules, deployment: Deployment, sizes: RigSizes, operators: Operators, *, requests: int,
        context: int, longest: int,
    ) -> None:  # fmt: skip
        cos, sin = rope_tables(torch.arange(longest), dim=deployment.qk_rope_head_dim, theta=10000.0)
        self._cos, self._sin = (table.to(sizes.device, torch.float32) for table in (cos, sin))
        super().__init__(rules, deployment, sizes, operators=operators)
        self.requests, self.context, self.host_length = requests, context, context
        for number in range(requests):
            self.pages.reserve(number, longest)
        clock = torch.zeros((), dtype=torch.int64, device=sizes.device)
        self.metadata = replace(self.built(context, sizes.device), clock=clock)
        self.drawn = self._draw()
        self.graph = maker(sizes.device).capture("decode step", self.one_token, self._buffers())
        self.rewind()

    def one_token(self) -> Tensor:
        """What is captured: one token further, and the layer's output [requests, h, v]."""
        told = self.metadata
        assert told.positions is not None and told.seq_lens is not None and told.slots is not None
        assert told.block_table is not None and told.request_rows is not None and told.clock is not None
        for moving in (told.positions, told.seq_lens, told.clock):
            moving.add_(1)
        told.slots.copy_(to_slots(told.block_table, told.request_rows, told.positions, self.pages.block_size))
        out, _ = self.layers[0].forward(self.drawn, told)
        return out

    def rewind(self) -> None:
        """Back to where the next step is that of the first new token."""
        first = self.built(self.context - 1, self.sizes.device)
        for name in MOVING:
            getattr(self.metadata, name).copy_(getattr(first, name))
        assert self.metadata.clock is not None
        self.metadata.clock.zero_()

    def built(self, length: int, device: str = "cpu") -> StepMetadata:
        """The metadata of a step in which every request has ``length`` tokens already."""
        return build_metadata(
            self.rules, self.deployment, self._batch(length), self.pages, mode="FULL", capturing=True, device=device
        )

    def decide(self) -> None:
        """What the host does anew at each step: the batch, its route, whether the indexer skips, the metadata."""
        batch = self._batch(self.host_length)
        route = decide_route(self.rules, self.deployment, batch.batch)
        decide_skip(self.rules, self.deployment, route, layer="layers.0", mode="FULL")
        self.built(self.host_length)
        self.host_length += 1

    def behind(self, steps: int) -> list[str]:
        """Names of what the device holds after so many steps and the host would have built otherwise."""
        wanted = self.built(self.context + steps - 1)
        return [name for name in MOVING if not torch.equal(getattr(self.metadata, name).cpu(), getattr(wanted, name))]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE by table, as engines do: the host computes no angle in a graph."""
        return rotate_interleaved(x, self._cos[positions], self._sin[positions])

    def _batch(self, length: int) -> StepBatch:
        asked = tuple(Request(1, length, False) for _ in range(self.requests))
        step = StepBatch(step=1, ids=tuple(range(self.requests)), batch=Batch(asked))
        return step.arranged(self.rules, self.deployment)

    def _draw(self) -> LayerInputs:
        """Inputs of all requests, the same at every step, and caches that are full."""
        dims, sizes = self.deployment, self.sizes
        generator = torch.Generator(sizes.device).manual_seed(sizes.seed)
        draw = partial(torch.randn, generator=generator, device=sizes.device)
        parts = self._parts()
        for cache in (parts.latent, parts.need_index_cache()):
            cache.values.copy_(draw(cache.values.shape))
        rows = self.requests
        return LayerInputs(
            q=draw(rows, dims.local_heads, dims.qk_head_dim).to(sizes.dtype),
            kv_c=draw(rows, dims.kv_lora_rank).to(sizes.dtype),
            k_pe=draw(rows, dims.qk_rope_head_dim).to(sizes.dtype),
            index_q=draw(rows, sizes.index_heads, sizes.index_dim).to(sizes.dtype),
            index_k=draw(rows, sizes.index_dim).to(sizes.dtype),
            index_weights=draw(rows, sizes.index_heads),  # in fp32, as every kernel takes them
        )

    def _parts(self) -> Parts:
        (layer,) = self.layers
        assert isinstance(layer, SparseMLALayer)
        return layer.parts

    def _buffers(self) -> dict[str, Tensor]:
        """The memory that stays, by name."""
        parts = self._parts()
        index = parts.need_index_cache()
        found = {"latent": parts.latent.values, "index": index.values, "w_uk": parts.w_uk, "w_uv": parts.w_uv}
        for record in (self.metadata, self.drawn):
            held = {field.name: getattr(record, field.name) for field in fields(record)}
            found |= {name: value for name, value in held.items() if isinstance(value, Tensor)}
        return found | {"cos": self._cos, "sin": self._sin, "topk": self.buffer.indices}
