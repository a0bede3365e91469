"""What the engine tells every layer about a step, built on the host once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..routing import ContextChunk, Deployment, Mode, Rules, StepRoute, context_plan, decide_route
from .pages import Pages, to_slots
from .step import StepBatch


class MissingMetadata(ValueError):
    """A layer needs a field that the metadata does not hold; a default would hide who dropped it."""

    def __init__(self, field: str) -> None:
        super().__init__(f"step metadata: expected field {field!r}, got none; the builder of this backend must set it")
        self.field = field


def need(record: Any, field: str) -> Any:
    """The field of a metadata record. Raises MissingMetadata where it is None."""
    value = getattr(record, field)
    if value is None:
        raise MissingMetadata(field)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillMetadata:
    """Exists only for a batch with prefills and a layer with a dense prefill backend."""

    use_dense_mha: bool | None
    max_query_len: int | None
    chunks: tuple[ContextChunk, ...] | None
    """Requests count from the first prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetadata:
    """Fields are None where a builder dropped them; only ``prefill`` may be None by right."""

    step: int
    ids: tuple[int, ...] | None
    num_decodes: int | None
    num_decode_tokens: int | None
    num_prefills: int | None
    query_lens: tuple[int, ...] | None
    context_lens: tuple[int, ...] | None
    prefill_max_seq_len: int | None
    positions: Tensor | None
    """int64 [s]."""
    request_rows: Tensor | None
    """int64 [s]: row of ``block_table`` of every token."""
    slots: Tensor | None
    """int64 [s]: cache row of every token."""
    block_table: Tensor | None
    """int32 [b, pages]."""
    owners: Tensor | None
    """int64 [s]: id of the request of every token."""
    seq_lens: Tensor | None
    """int64 [b]: cached and new tokens of every request."""
    prefill: PrefillMetadata | None
    mode: Mode = "NONE"
    capturing: bool = False
    padding: int = 0
    """Rows after the tokens that a graph's fixed size adds."""
    clock: Tensor | None = None
    """int64 []: ``step`` on the device, for what a graph stamps; None outside of graphs."""


def build_metadata(
    rules: Rules,
    deployment: Deployment,
    step: StepBatch,
    pages: Pages,
    *,
    mode: Mode = "NONE",
    capturing: bool = False,
    padding: int = 0,
    device: torch.device | str = "cpu",
) -> StepMetadata:
    """Metadata of an arranged step whose requests hold their pages."""
    decided = decide_route(rules, deployment, step.batch)
    split = decided.split.value
    (number, positions), table = step.token_rows(), pages.table(step.ids)
    return StepMetadata(
        step=step.step,
        ids=step.ids,
        num_decodes=len(split.decodes),
        num_decode_tokens=split.num_decode_tokens,
        num_prefills=len(split.prefills),
        query_lens=tuple(request.query_len for request in step.batch.requests),
        context_lens=tuple(request.context_len for request in step.batch.requests),
        prefill_max_seq_len=split.prefill_max_seq_len,
        positions=positions.to(device),
        request_rows=number.to(device),
        slots=to_slots(table, number, positions, pages.block_size).to(device),
        block_table=table.to(device),
        owners=torch.tensor(step.ids)[number].to(device),
        seq_lens=torch.tensor([request.seq_len for request in step.batch.requests]).to(device),
        prefill=_build_prefill(rules, deployment, decided),
        mode=mode,
        capturing=capturing,
        padding=padding,
    )


def _build_prefill(rules: Rules, deployment: Deployment, decided: StepRoute) -> PrefillMetadata | None:
    split = decided.split.value
    if not split.prefills or not decided.backend.value:
        return None
    return PrefillMetadata(
        use_dense_mha=decided.dense.value,
        max_query_len=split.prefill_max_query_len,
        chunks=context_plan(rules, deployment, [request.context_len for request in split.prefills]),
    )
