"""Verdicts read back from the records that JSON reports hold; the inverse of ``json_report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..case import Case
from ..verdict import STATUSES, Finding, Verdict, Worst


def parse_verdict(record: Mapping[str, Any]) -> Verdict:
    """The verdict of a record. Raises ValueError, KeyError or TypeError for what is none."""
    if record["status"] not in STATUSES:
        raise ValueError(f"expected a status, one of {', '.join(STATUSES)}; got {record['status']!r}")
    return Verdict(
        case=Case.parse(record["case"]["id"]),
        implementation=str(record["implementation"]),
        status=record["status"],
        reason=str(record["reason"]),
        findings=tuple(_finding(one) for one in record["findings"]),
        measures={str(name): float(value) for name, value in record["measures"].items()},
        worst=tuple(_worst(one) for one in record["worst"]),
        error_map=tuple(tuple(float(ratio) for ratio in row) for row in record.get("error_map", ())),
        seconds=float(record["seconds"]),
        device=str(record["device"]),
        origin=str(record.get("origin", "")),
    )


def _finding(record: Mapping[str, Any]) -> Finding:
    p = record["p_value"]
    return Finding(
        str(record["check"]),
        str(record["message"]),
        bool(record["proved"]),
        None if p is None else float(p),
        str(record["where"]),
    )


def _worst(record: Mapping[str, Any]) -> Worst:
    index = tuple(int(place) for place in record["index"])
    observed, expected, budget = (float(record[name]) for name in ("observed", "expected", "budget"))
    return Worst(str(record["output"]), index, observed, expected, budget)
