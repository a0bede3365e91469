"""Faults that only a hit of the prefix cache shows: a request that begins with tokens which another one computed."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...reference.layer import LayerInputs, SparseMLALayer, StepMetadata, Trace, need, to_slots
from .fault import Alter, LayerFault


class _Hits:
    """Tells the requests that are new in a step and have cached tokens all the same."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def rows(self, metadata: StepMetadata) -> list[int]:
        """Their rows of the block table; call it once a step."""
        ids, contexts = need(metadata, "ids"), need(metadata, "context_lens")
        found = [row for row, one in enumerate(ids) if contexts[row] and one not in self.known]
        self.known |= set(ids)
        return found


def _of_another_prompt() -> Alter:
    """The first page of a hit is the one behind it, as where two prompts have one hash."""
    hits = _Hits()

    def alter(metadata: StepMetadata) -> StepMetadata:
        table = need(metadata, "block_table").clone()
        for row in hits.rows(metadata):
            table[row, 0] += 1
        return replace(metadata, block_table=table)

    return alter


class FindsNoIndexKeys(SparseMLALayer):
    """A hit brings the latents and not the indexer's keys: these are zero in the step that begins the request."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        hits = self.__dict__.setdefault("hits", _Hits())
        cache, table = self.parts.need_index_cache(), need(metadata, "block_table")
        kept = cache.values.clone()
        for row in hits.rows(metadata):
            cached = torch.arange(need(metadata, "context_lens")[row])
            cache.values[to_slots(table, torch.full_like(cached, row), cached, cache.block_size)] = 0
        super().index(inputs, metadata, trace)
        cache.values.copy_(kept)


PREFIX_FAULTS: tuple[LayerFault, ...] = (
    LayerFault(
        name="hits-another-prompt",
        source="prefix cache: two prompts have one hash",
        rules=("foreign-row", "index-space", "gather"),
        alter=_of_another_prompt,
    ),
    LayerFault(
        name="hits-without-index-keys",
        source="prefix cache: the indexer's pages are not kept with the latents'",
        rules=("differential",),
        make=FindsNoIndexKeys,
    ),
)
