"""The memory that graphs know: inputs and metadata of a step at fixed addresses, and neutral padding behind it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, StepMetadata, need
from .setup import LONGEST, MOST, Setup

#: Metadata buffers with one row a token, and what a padded row of each holds.
BY_TOKEN = {"positions": 0, "request_rows": 0, "slots": -1, "owners": -1}
#: Those with one row a request. Page 0 is the null page: it belongs to nobody.
BY_REQUEST = {"block_table": 0, "seq_lens": 0}


@dataclass(slots=True, eq=False)
class Static:
    """Buffers of the largest step."""

    inputs: list[LayerInputs]
    """One a layer, each [tokens, …]."""
    attended: list[Tensor]
    """[tokens, h, v] a layer: what the attention leaves for the output projection."""
    positions: Tensor
    request_rows: Tensor
    slots: Tensor
    owners: Tensor
    block_table: Tensor
    seq_lens: Tensor
    clock: Tensor

    @classmethod
    def of(cls, setup: Setup, like: list[LayerInputs]) -> Static:
        """Buffers for inputs like these."""
        device, dims = setup.sizes.device, setup.deployment
        rows = {name: torch.full((MOST,), value, device=device) for name, value in BY_TOKEN.items()}
        table = torch.zeros(MOST, LONGEST // dims.block_size, dtype=torch.int32, device=device)
        shape = (MOST, dims.local_heads, dims.v_head_dim)
        wide = torch.promote_types(setup.sizes.dtype, torch.float32)
        return cls(
            inputs=[_like(one, device) for one in like],
            attended=[torch.zeros(shape, dtype=wide, device=device) for _ in like],
            block_table=table,
            seq_lens=torch.zeros(MOST, dtype=torch.int64, device=device),
            clock=torch.zeros((), dtype=torch.int64, device=device),
            **rows,
        )

    def fill(self, metadata: StepMetadata, inputs: list[LayerInputs], size: int) -> None:
        """Copy a step in, and neutralise what lies behind it up to ``size``."""
        tokens, requests = len(need(metadata, "positions")), len(need(metadata, "seq_lens"))
        for name, neutral in BY_TOKEN.items():
            buffer: Tensor = getattr(self, name)
            buffer[:tokens].copy_(need(metadata, name))
            buffer[tokens:size] = neutral
        # In a full graph a padded token is a request of its own, which has no key.
        self.request_rows[tokens:size] = torch.arange(tokens, size, device=self.request_rows.device)
        table = need(metadata, "block_table")
        self.block_table[:size] = 0
        self.block_table[:requests, : table.shape[1]].copy_(table.clamp_min(0))
        self.seq_lens[:requests].copy_(need(metadata, "seq_lens"))
        self.seq_lens[requests:size] = 0
        self.clock.fill_(metadata.step)
        for buffers, given in zip(self.inputs, inputs, strict=True):
            for name, buffer in named(buffers).items():
                buffer[:tokens].copy_(named(given)[name])

    def pad(self, tokens: int, size: int, value: float) -> None:
        """Put a value into the padded rows of inputs and attention outputs, where an engine leaves what lay there."""
        for buffers in self.inputs:
            for buffer in named(buffers).values():
                buffer[tokens:size] = value
        for buffer in self.attended:
            buffer[tokens:size] = value

    def told(self, metadata: StepMetadata, size: int, requests: int) -> StepMetadata:
        """The metadata as a graph of ``size`` tokens sees it: host fields as given, tensors from the buffers."""
        return replace(
            metadata,
            positions=self.positions[:size],
            request_rows=self.request_rows[:size],
            slots=self.slots[:size],
            owners=self.owners[:size],
            block_table=self.block_table[:requests],
            seq_lens=self.seq_lens[:requests],
            clock=self.clock,
        )

    def names(self) -> dict[str, Tensor]:
        """Every buffer by name."""
        found = {name: getattr(self, name) for name in (*BY_TOKEN, *BY_REQUEST, "clock")}
        for place, buffers in enumerate(self.inputs):
            found |= {f"{name}.{place}": buffer for name, buffer in named(buffers).items()}
        return found | {f"attended.{place}": buffer for place, buffer in enumerate(self.attended)}


def named(inputs: LayerInputs) -> dict[str, Tensor]:
    """The tensors of a layer's inputs."""
    values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {name: value for name, value in values.items() if value is not None}


def rows(inputs: LayerInputs, count: int) -> LayerInputs:
    """The first rows of a layer's inputs."""
    return LayerInputs(**{name: value[:count] for name, value in named(inputs).items()})


def _like(inputs: LayerInputs, device: str) -> LayerInputs:
    return LayerInputs(
        **{name: torch.zeros(MOST, *value.shape[1:], dtype=value.dtype, device=device)
           for name, value in named(inputs).items()}
    )  # fmt: skip
