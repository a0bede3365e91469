"""One length at which the two routes were timed, and which of them is faster there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from .timing import Timing

#: Of one point: who is faster, where the quartiles of the two do not overlap.
Outcome = Literal["MHA", "MQA", "noise"]


@dataclass(frozen=True, slots=True)
class Point:
    """Both routes on one request of ``query`` new tokens in ``seq``."""

    query: int
    seq: int
    mha: Timing
    mqa: Timing
    mqa_kernel: str

    @property
    def outcome(self) -> Outcome:
        if self.mha.high < self.mqa.low:
            return "MHA"
        return "MQA" if self.mqa.high < self.mha.low else "noise"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"outcome": self.outcome, "ratio": self.mqa.median / self.mha.median}
