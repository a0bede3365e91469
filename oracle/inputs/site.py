"""What every builder works with: the case, its dimensions, its tokens and the memory to build in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..case import Case
from ..geometry import Geometry
from .arena import Arena
from .attention import Form
from .batch import Batch
from .tensors import DTYPES, POWERS


@dataclass(frozen=True, slots=True)
class Site:
    """One call under construction."""

    case: Case
    geometry: Geometry
    batch: Batch
    arena: Arena

    @property
    def device(self) -> torch.device:
        return self.arena.device

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.case.dtype]

    @property
    def heads(self) -> Tensor:
        return torch.arange(self.case.heads, device=self.device)

    @property
    def causal(self) -> bool:
        return "noncausal" not in self.case.options

    def form(self, shared: bool) -> Form:
        """The MQA form (``shared``) or the MHA form of this geometry."""
        geometry = self.geometry
        width, value_width = (
            (geometry.latent_dim, geometry.kv_lora_rank) if shared else (geometry.qk_head_dim, geometry.v_head_dim)
        )
        # Tiles of fp8_ds_mla have a least scale of 1e-4: below it all codes are 0.
        powers = (0, 30) if "ds-mla" in self.case.options else POWERS[self.case.dtype]
        return Form(self.case.seed, geometry.softmax_scale, width, value_width, shared, powers)

    def int32(self, name: str, values: Tensor) -> Tensor:
        """A guarded int32 copy of integer ``values``."""
        return self.arena.place(name, values.to(torch.int32))
