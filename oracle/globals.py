"""Global state of torch that an implementation must leave as it found it, since the next one would inherit it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GlobalState:
    """A snapshot; ``restore`` puts it back and names what had changed."""

    default_dtype: torch.dtype
    matmul_precision: str
    tf32: bool
    threads: int
    grad: bool
    generator: Tensor

    @classmethod
    def take(cls) -> GlobalState:
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.get_rng_state(),
        )

    def restore(self) -> list[str]:
        """Put everything back; the names of what an implementation changed."""
        now = GlobalState.take()
        changed = []
        if now.default_dtype is not self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
            changed.append("torch's default dtype")
        if now.matmul_precision != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
            changed.append("torch's float32 matmul precision (TF32)")
        if now.tf32 != self.tf32:
            torch.backends.cudnn.allow_tf32 = self.tf32
            changed.append("cuDNN's TF32 switch")
        if now.threads != self.threads:
            torch.set_num_threads(self.threads)
            changed.append("torch's thread count")
        if now.grad != self.grad:
            torch.set_grad_enabled(self.grad)
            changed.append("torch's grad mode")
        if not torch.equal(now.generator, self.generator):
            torch.set_rng_state(self.generator)
            changed.append("the state of torch's random generator")
        return changed
