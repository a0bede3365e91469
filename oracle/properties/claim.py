"""What a property says about two tensors, and whether it is so."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class DoesNotApply(Exception):
    """Why a property says nothing about this implementation or case, in one line."""


class Broken(Exception):
    """The implementation gave no answer that a property could look at: it raised, or returned something else."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Two tensors that have to be equal, or within a bound of each other."""

    what: str
    got: Tensor
    want: Tensor
    allowed: Tensor | None = None
    """None: bit for bit, any NaN equal to any other."""

    @property
    def size(self) -> int:
        return self.got.numel()

    def worst(self) -> float:
        """Largest difference in units of what is allowed: above 1 the claim is wrong. Infinite for differing bits."""
        if self.got.shape != self.want.shape:
            return float("inf")
        if not self.got.numel():
            return 0.0
        got, want = _comparable(self.got), _comparable(self.want)
        equal = (got == want) | (torch.isnan(got) & torch.isnan(want))
        if self.allowed is None:
            return 0.0 if bool(equal.all()) else float("inf")
        # NaN where a number belongs has no distance: its ratio is NaN, and counts as infinite.
        ratio = torch.where(equal, 0.0, (got - want).abs() / self.allowed)
        return float(torch.nan_to_num(ratio, nan=float("inf"), posinf=float("inf")).max())

    def told(self) -> str:
        """What is wrong, in words."""
        if self.got.shape != self.want.shape:
            return f"{self.what}: shape {list(self.got.shape)}, expected {list(self.want.shape)}"
        worst = self.worst()
        if worst < float("inf"):
            return f"{self.what}: off by {worst:.3g} times what rounding explains"
        got, want = _comparable(self.got), _comparable(self.want)
        differ = int(((got != want) & ~(torch.isnan(got) & torch.isnan(want))).sum())
        return f"{self.what}: {differ} of {self.size} elements differ where nothing may"


def _comparable(values: Tensor) -> Tensor:
    """Values in a dtype that torch compares and subtracts; float8 and integers are exact in it."""
    return (
        values.to(torch.float32).double()
        if values.is_floating_point() and values.dtype.itemsize == 1
        else (values.double())
    )


def same(what: str, got: Tensor, want: Tensor) -> Claim:
    """Equal bits."""
    return Claim(what, got, want)


def near(what: str, got: Tensor, want: Tensor, allowed: Tensor | float) -> Claim:
    """Equal within a bound, which broadcasts."""
    got, want = got.double(), want.double()
    bound = torch.as_tensor(allowed, dtype=torch.float64, device=got.device).expand(got.shape)
    return Claim(what, got, want.expand(got.shape), bound)
