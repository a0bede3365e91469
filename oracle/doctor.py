"""What this machine can run, and why it cannot run the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..optimized.implementation import Implementation
from .case import Case
from .config import load
from .environment import environment
from .features import features

_GEOMETRY = "deepseek-v3.2"


@dataclass(frozen=True, slots=True)
class Prospect:
    """Whether an implementation would run a representative case."""

    implementation: str
    case: Case
    reason: str
    """Empty if it would."""

    @property
    def supported(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Examination:
    device: str
    environment: dict[str, Any]
    features: dict[str, Any]
    prospects: tuple[Prospect, ...]

    @property
    def summary(self) -> dict[str, int]:
        supported = sum(prospect.supported for prospect in self.prospects)
        return {
            "implementations": len(self.prospects),
            "supported": supported,
            "unsupported": len(self.prospects) - supported,
        }


def examine(implementations: Iterable[Implementation], *, device: str) -> Examination:
    """Asks each implementation for a bf16 case with the head dims of DeepSeek-V3.2, and loads those that accept."""
    prospects = tuple(_prospect(implementation, device) for implementation in implementations)
    return Examination(device, environment(), features(device), prospects)


def representative(operator: str) -> Case:
    """One decode and one prefill request with cached context, a slice of 16 heads."""
    selects = operator in ("sparse_mqa", "topk_select", "masked_mha")
    return Case(
        operator=operator,
        geometry=_GEOMETRY,
        heads=16,
        q_lens=(1, 32),
        k_lens=(128, 128),
        topk=64 if selects else 0,
        dtype="fp32" if operator == "topk_select" else "bf16",
    )


def _prospect(implementation: Implementation, device: str) -> Prospect:
    from .facts import facts

    case = representative(implementation.operator)
    try:
        reason = implementation.supports(facts(case, load(case.geometry), device))
    except Exception as error:  # one broken implementation must not hide the others
        return Prospect(implementation.name, case, f"supports() raised {type(error).__name__}: {error}")
    if reason is None:
        try:
            implementation.load()
        except Exception as error:
            reason = f"does not load: {type(error).__name__}: {error}"
    return Prospect(implementation.name, case, reason or "")
