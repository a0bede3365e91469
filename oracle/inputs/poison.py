"""Values for what no right kernel lets matter: rows that no query references, keys outside every window.

``nan`` shows any use at all, even with weight 0. ``huge`` is finite: it shows use in a maximum or a sum and survives
kernels that multiply by a zero weight. ``stale`` is plausible: it shows only as a wrong answer, as another request's
page would.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import rng

#: From token or row numbers [m] to fp32 poison [m, width].
Poison = Callable[[Tensor], Tensor]
POISONS = ("nan", "huge", "stale")
#: Finite in every format, and far from the overflow of an fp32 dot product with ordinary values: a kernel may add -inf
#: to the score of what it leaves out, and infinity would make that NaN.
HUGE = {torch.float16: 60000.0, torch.float8_e4m3fn: 448.0}
#: In formats of more range.
WIDE = 1e30
#: Of scales of keys: beside huge keys the least that is seen, beside codes far from overflow too.
HUGE_SCALE = {torch.float8_e4m3fn: 1e25}


def poison_of(options: tuple[str, ...], seed: int, allowed: tuple[str, ...] = POISONS) -> str:
    """The poison that the options force, else one of ``allowed`` by the seed."""
    for name in POISONS:
        if f"poison-{name}" in options:
            return name
    return allowed[(rng.key(seed, "poison") & 0xFFFF) % len(allowed)]


def huge_key(kind: str, least: int) -> float:
    """What ``huge`` keys hold where ``dtype`` has no bound of its own: queries of ``powers`` are up to 2**-least."""
    return WIDE * 2.0**least if kind == "powers" else WIDE


def poison(name: str, seed: int, role: str, width: int, dtype: torch.dtype, huge: float = WIDE) -> Poison:
    """The poison ``name`` for a tensor of ``dtype``."""

    def rows(number: Tensor) -> Tensor:
        column = torch.arange(width, device=number.device)
        place = (number[:, None], column)
        if name == "nan":
            return torch.full((len(number), width), float("nan"), device=number.device)
        if name == "huge":
            return rng.signs(rng.key(seed, f"{role}-poison"), *place) * HUGE.get(dtype, huge)
        return rng.normal(rng.key(seed, f"{role}-poison"), *place)

    return rows
