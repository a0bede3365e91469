"""Engines that are wrong in one way each, by overriding one seam of the right one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, PrefillMetadata, StepBatch, StepMetadata, Trace, dispatch, need
from ...reference.routing import Mode, context_plan
from .backend import Maker
from .engine import Engine, Outcome
from .faulty_layers import FrozenRoute
from .segment import Segment
from .sequences import GraphMode, Step
from .setup import BLOCK, Setup


class FreezesTheRoute(Engine):
    """Takes the route of the capture at every replay."""

    layer = FrozenRoute

    def _capture_pieces(self, size: int, length: int) -> None:
        super()._capture_pieces(size, length)
        for place in self._places():
            layer = self.at(place)
            assert isinstance(layer, FrozenRoute) and self.host is not None
            layer.frozen = dispatch(self.rules, self.deployment, self.host, layer.new_trace(self.host))


class _Keeps(Engine):
    """Keeps what it replaces alive, so that a graph that still writes there hurts nobody else."""

    def keep(self, tensor: Tensor) -> Tensor:
        self.__dict__.setdefault("_kept", []).append(tensor)
        return tensor


class ReallocatesTheBuffer(_Keeps):
    """Allocates the top-k buffer anew in every step."""

    def prepare(self, step: Step, number: int) -> Outcome:
        self.buffer.indices = torch.full_like(self.keep(self.buffer.indices), -1)
        return super().prepare(step, number)


class RebuildsMetadata(_Keeps):
    """Builds new metadata tensors instead of copying into those that the graph knows."""

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        for name in ("slots", "positions", "block_table", "seq_lens"):
            setattr(self.static, name, self.keep(getattr(self.static, name)).clone())
        super().fill(metadata, inputs, size)


class KeepsThePageTable(Engine):
    """Never fills the page table."""

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        before = self.static.block_table.clone()
        super().fill(metadata, inputs, size)
        self.static.block_table.copy_(before)


class KeepsTheInputs(Engine):
    """Copies the inputs in once, for the first step that is replayed."""

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        first = self.__dict__.setdefault("_first", inputs)
        fits = len(first[0].q) == len(inputs[0].q)
        super().fill(metadata, first if fits else inputs, size)


class PadsIntoARow(Engine):
    """Gives padded tokens the slot of a real row."""

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        super().fill(metadata, inputs, size)
        self.static.slots[len(need(metadata, "slots")) : size] = 8 * BLOCK


class KeepsPaddedSlots(Engine):
    """Leaves the slots of an earlier, larger step behind the real rows."""

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        before = self.static.slots.clone()
        super().fill(metadata, inputs, size)
        tokens = len(need(metadata, "slots"))
        self.static.slots[tokens:size] = before[tokens:size]


class FakesPrefills(Engine):
    """Leaves "still prefilling" set where the step before was larger: the last decode counts as a prefill."""

    def build(self, batch: StepBatch, mode: Mode = "NONE") -> StepMetadata:
        metadata = super().build(batch, mode)
        requests = batch.batch.requests
        larger = self.__dict__.get("_tokens", 0) > batch.batch.num_tokens
        self.__dict__["_tokens"] = batch.batch.num_tokens
        if metadata.num_prefills or not larger:
            return metadata
        last = requests[-1]
        plan = context_plan(self.rules, self.deployment, [last.context_len])
        return replace(
            metadata,
            num_decodes=len(requests) - 1,
            num_decode_tokens=batch.batch.num_tokens - last.query_len,
            num_prefills=1,
            prefill_max_seq_len=last.seq_len,
            prefill=PrefillMetadata(use_dense_mha=True, max_query_len=last.query_len, chunks=plan),
        )


class PlansOnce(Engine):
    """Schedules the context chunks of the first step that has any, and keeps the schedule."""

    def metadata_between(self, done: Outcome) -> StepMetadata:
        metadata = super().metadata_between(done)
        if metadata.prefill is None or not metadata.prefill.chunks:
            return metadata
        chunks = self.__dict__.setdefault("_chunks", metadata.prefill.chunks)
        return replace(metadata, prefill=replace(metadata.prefill, chunks=chunks))


class LeavesPadding(Engine):
    """Leaves whatever lay in the padded rows of the attention's output."""

    def leave(self, place: int, attended: Tensor, done: Outcome) -> None:
        self.static.attended[place][: done.tokens] = attended


class WritesTheNullBlock(Engine):
    """Points the rows of its dummy batches at slot 0."""

    def dummy_slot(self) -> int:
        return 0


class BakesTheLongest(Engine):
    """Gathers as many pages as the longest sequence of the batch at hand has."""

    def metadata_in_graph(self, size: int) -> StepMetadata:
        metadata = super().metadata_in_graph(size)
        pages = -(-_longest(self.host) // BLOCK)
        return replace(metadata, block_table=need(metadata, "block_table")[:, :pages])


class BakesTheSplits(Engine):
    """Splits the keys of sparse MQA by the longest sequence of the batch at hand."""

    def __init__(self, setup: Setup, maker: Maker, mode: GraphMode, sizes: Sequence[int]) -> None:
        super().__init__(setup, maker, mode, sizes)
        _wrap(self, "sparse_mqa", self._split)

    def _split(self, operator: Callable[..., Any], *, indices: Tensor, **inputs: Any) -> Any:
        if self.host is not None and self.host.mode == "FULL":
            splits = -(-_longest(self.host) // BLOCK)
            indices = indices[:, : splits * BLOCK]
        return operator(indices=indices.contiguous(), **inputs)


class ReliesOnWeightZero(Engine):
    """Reads row 0 for an invalid index and multiplies it by a weight of 0."""

    def __init__(self, setup: Setup, maker: Maker, mode: GraphMode, sizes: Sequence[int]) -> None:
        super().__init__(setup, maker, mode, sizes)
        if mode != "NONE":
            _wrap(self, "sparse_mqa", self._gathers)

    def _gathers(self, operator: Callable[..., Any], *, kv: Tensor, indices: Tensor, **inputs: Any) -> Any:
        out, lse = operator(kv=kv, indices=indices, **inputs)
        unused = torch.where((indices < 0)[..., None], kv[indices.clamp_min(0)], 0).sum(1)
        return out + 0.0 * unused[:, None, : inputs["value_dim"]].to(out.dtype), lse


class BakesThePositions(Engine):
    """Counts positions on from a number that the host knew."""

    def metadata_in_graph(self, size: int) -> StepMetadata:
        metadata = super().metadata_in_graph(size)
        first = need(metadata, "context_lens")[0]
        return replace(metadata, positions=torch.arange(first, first + size, device=self.static.positions.device))


class ReadsTheCapturesLengths(_Keeps):
    """Reads sequence lengths from a tensor of the batch that it was captured with."""

    def dummy(self, batch: Any, size: int, mode: Mode) -> None:
        super().dummy(batch, size, mode)
        lengths = [request.seq_len for request in batch.requests]
        self.__dict__["_lengths"] = self.keep(torch.tensor(lengths, device=self.sizes.device))

    def metadata_in_graph(self, size: int) -> StepMetadata:
        metadata = super().metadata_in_graph(size)
        held: Tensor = self.__dict__["_lengths"]
        return replace(metadata, seq_lens=held) if len(held) == size else metadata


class SharesAWorkspace(Engine):
    """Keeps its RoPE table in a workspace that an eager step uses as scratch."""

    def eager(self, done: Outcome) -> Outcome:
        table = self.__dict__.setdefault("_table", self.cos.clone())
        self.cos.copy_(table)
        finished = super().eager(done)
        self.cos.neg_()
        return finished


class MaterialisesByRoute(Engine):
    """Keeps kv_c of the captured part only where the captured batch takes MHA."""

    def before(self, place: int, size: int) -> Callable[[], Segment]:
        function = super().before(place, size)

        def by_route() -> Segment:
            segment = function()
            assert self.host is not None
            if self.host.prefill is None:
                segment.kv_c = None
            return segment

        return by_route


class HandsOnACopy(_Keeps):
    """Hands its eager part a copy of kv_c that the first replay made."""

    def broken(self, place: int, segment: Segment, done: Outcome, trace: Trace) -> Tensor:
        assert segment.kv_c is not None
        copies = self.__dict__.setdefault("_copies", {})
        kv_c = copies.setdefault((place, done.size), segment.kv_c.clone())
        return super().broken(place, replace(segment, kv_c=kv_c), done, trace)


class SizesByTheFirst(Engine):
    """Keeps a scratch buffer for the attention's output as large as the first step needed."""

    def leave(self, place: int, attended: Tensor, done: Outcome) -> None:
        scratch: Tensor = self.__dict__.setdefault("_scratch", torch.empty_like(attended))
        scratch[: len(attended)].copy_(attended)
        super().leave(place, scratch[: len(attended)], done)


class HandsOutThePool(Engine):
    """Hands out the graph's own memory."""

    def hand_out(self, output: Tensor, tokens: int) -> Tensor:
        return output[:tokens]


class Accumulates(Engine):
    """Adds its projection to a buffer that only the filling of a step clears."""

    def __init__(self, setup: Setup, maker: Maker, mode: GraphMode, sizes: Sequence[int]) -> None:
        super().__init__(setup, maker, mode, sizes)
        self.sums = [torch.zeros(len(held), 8, dtype=held.dtype, device=held.device) for held in self.static.attended]

    def buffers(self) -> dict[str, Tensor]:
        return super().buffers() | {f"sum.{place}": total for place, total in enumerate(self.sums)}

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        super().fill(metadata, inputs, size)
        for total in self.sums:
            total.zero_()

    def finish(self, place: int, size: int) -> Callable[[], Tensor]:
        function = super().finish(place, size)
        return lambda: self.sums[place][:size].add_(function())


class ClampsToTheFirst(Engine):
    """Clips the attention's output at the largest value of the first step, as a scale that is calibrated once."""

    def __init__(self, setup: Setup, maker: Maker, mode: GraphMode, sizes: Sequence[int]) -> None:
        super().__init__(setup, maker, mode, sizes)
        self.most = [torch.full((), torch.inf, dtype=held.dtype, device=held.device) for held in self.static.attended]

    def buffers(self) -> dict[str, Tensor]:
        return super().buffers() | {f"most.{place}": most for place, most in enumerate(self.most)}

    def leave(self, place: int, attended: Tensor, done: Outcome) -> None:
        super().leave(place, attended, done)
        if not bool(self.most[place].isfinite()):
            self.most[place].copy_(attended.abs().mean())

    def project(self, place: int, attended: Tensor) -> Tensor:
        return super().project(place, torch.minimum(torch.maximum(attended, -self.most[place]), self.most[place]))


class FullForAnything(Engine):
    """Takes the full graph for every batch that fits."""

    def choose(self, metadata: StepMetadata, tokens: int) -> tuple[Mode, int]:
        size = next((size for size in self.captured_sizes if size >= tokens), 0)
        return ("FULL", size) if size else super().choose(metadata, tokens)


class SizesByPrefills(Engine):
    """Takes the graph by the tokens of the prefills and forgets the decodes beside them."""

    def choose(self, metadata: StepMetadata, tokens: int) -> tuple[Mode, int]:
        beside = need(metadata, "num_decode_tokens") if metadata.num_prefills else 0
        return super().choose(metadata, tokens - beside)


def _longest(host: StepMetadata | None) -> int:
    """Tokens of the longest sequence that the host knows of."""
    assert host is not None
    return max(int(q + c) for q, c in zip(need(host, "query_lens"), need(host, "context_lens"), strict=True))


def _wrap(engine: Engine, name: str, wrapped: Callable[..., Any]) -> None:
    """Put a function around an operator of every layer."""
    for place in engine._places():
        layer = engine.at(place)
        operator = layer.parts.operators[name]

        def call(operator: Callable[..., Any] = operator, **inputs: Any) -> Any:
            return wrapped(operator, **inputs)

        layer.parts = replace(layer.parts, operators={**layer.parts.operators, name: call})
