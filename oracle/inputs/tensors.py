"""What a kernel is given: tensors in guarded memory, options, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..case import Case
from ..geometry import Geometry
from .arena import Arena

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
}
#: Least and largest power of two that values of kind ``powers`` are multiplied by: well inside the format, and where it
#: is bf16 or fp32 far outside of fp16. In e4m3 the largest codes are met.
POWERS: dict[str, tuple[int, int]] = {"bf16": (-40, 40), "fp16": (-6, 6), "fp32": (-40, 40), "e4m3": (-2, 4)}


def power_of(choice: Tensor, powers: tuple[int, int], sign: int = 1) -> Tensor:
    """2 to the least power, 1 or 2 to the largest, as ``choice`` is 0, 1 or 2, exact in fp32; ``sign=-1`` inverts."""
    exponent = torch.tensor([powers[0], 0, powers[1]], device=choice.device)[choice] * sign
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)


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

    def fingerprint(self) -> dict[str, str | int]:
        """A 64-bit sum over the bytes of every tensor, its guards included; computed on the device."""
        return {name: guarded.fingerprint() for name, guarded in self.arena.tensors.items()}

    def damage(self) -> list[str]:
        """Guard bytes of the inputs that were overwritten, in words; empty if none were."""
        return [line for guarded in self.arena.tensors.values() for line in guarded.damage()]
