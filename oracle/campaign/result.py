"""What a campaign keeps of one judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..records.verdict_json import finite, parse_verdict, verdict_record
from ..verdict import STATUSES, Status, Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """The status, how close it was, and the whole verdict of what failed."""

    status: Status
    ratio: float | None
    """Largest error over budget; None where no element was compared, or one was NaN."""
    margin: float | None
    """Of a selection: the smallest distance between the last score in and the first out, where they differ."""
    seconds: float
    device: str
    verdict: Verdict | None = None
    """Of a failure."""

    @classmethod
    def of(cls, verdict: Verdict) -> Result:
        ratio, margin = verdict.worst_ratio, verdict.measures.get("smallest_margin")
        return cls(
            status=verdict.status,
            ratio=ratio if ratio is not None and math.isfinite(ratio) else None,
            margin=margin if margin else None,
            seconds=round(verdict.seconds, 4),
            device=verdict.device,
            verdict=verdict if verdict.bad else None,
        )

    @property
    def judged(self) -> bool:
        """Whether something was shown: the answer was compared on an input that can tell, or it did not come."""
        return self.status in ("PASS", "FAIL", "ERROR")

    def record(self) -> dict[str, Any]:
        """JSON-ready, without what is absent."""
        found: dict[str, Any] = {"status": self.status, "seconds": self.seconds, "device": self.device}
        if self.ratio is not None:
            found["ratio"] = float(f"{self.ratio:.6g}")
        if self.margin is not None:
            found["margin"] = float(f"{self.margin:.6g}")
        if self.verdict is not None:
            found["verdict"] = finite(verdict_record(self.verdict))
        return found

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Result:
        """The inverse. Raises ValueError, KeyError or TypeError for what is none."""
        if record["status"] not in STATUSES:
            raise ValueError(f"expected a status, got {record['status']!r}")
        ratio, margin = record.get("ratio"), record.get("margin")
        return cls(
            status=record["status"],
            ratio=None if ratio is None else float(ratio),
            margin=None if margin is None else float(margin),
            seconds=float(record["seconds"]),
            device=str(record["device"]),
            verdict=parse_verdict(record["verdict"]) if "verdict" in record else None,
        )
