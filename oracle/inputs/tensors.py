"""What a kernel is given: tensors in guarded memory, options, and what is known about them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arena import Arena
from ..case import Case
from ..geometry import Geometry

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Keyword tensors and options of one call of an operator."""

    case: Case
    geometry: Geometry
    tensors: dict[str, Tensor]
    """By the operator's keyword; each a view into a guarded buffer."""
    options: dict[str, object]
    """The keywords that are no tensors: scale, causal, value_dim, k."""
    arena: Arena

    def kwargs(self) -> dict[str, object]:
        """All keywords of the call."""
        return {**self.tensors, **self.options}

    def facts(self, *, capability: tuple[int, int] | None = None, interpreted: bool | None = None) -> dict[str, object]:
        """The case as plain values, as ``Implementation.supports`` reads them.

        ``capability`` and ``interpreted`` (whether Triton kernels would run in its interpreter) are found if not given.
        """
        device, geometry, case = self.arena.device, self.geometry, self.case
        if capability is None and device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
        if interpreted is None:
            interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
        return {
            "operator": case.operator,
            "device": device.type,
            "capability": capability,
            "interpreted": interpreted,
            "dtype": case.dtype,
            "heads": case.heads,
            "d": geometry.qk_head_dim,
            "v": geometry.v_head_dim,
            "c": geometry.kv_lora_rank,
            "r": geometry.qk_rope_head_dim,
            "k": case.topk,
            "i": case.heads if case.operator == "indexer_scores" else geometry.index_n_heads,
            "e": geometry.index_head_dim,
            "q_lens": case.q_lens,
            "k_lens": case.k_lens,
            "causal": "noncausal" not in case.options,
            "layout": case.layout,
            "options": case.options,
        }

    def fingerprint(self) -> dict[str, str | int]:
        """A 64-bit sum over the bytes of every tensor, its guards included; computed on the device."""
        return {name: guarded.fingerprint() for name, guarded in self.arena.tensors.items()}

    def damage(self) -> list[str]:
        """Guard bytes of the inputs that were overwritten, in words; empty if none were."""
        return [line for guarded in self.arena.tensors.values() for line in guarded.damage()]
