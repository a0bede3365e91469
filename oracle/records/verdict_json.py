"""A verdict as a JSON record, and read back. Floats that JSON has no number for are strings: "nan", "inf", "-inf"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..case import Case
from ..verdict import STATUSES, Finding, Verdict, Worst


def case_record(case: Case) -> dict[str, Any]:
    """JSON-ready: the id and every field."""
    return {
        "id": case.id,
        "operator": case.operator,
        "geometry": case.geometry,
        "heads": case.heads,
        "lengths": {"q": case.q_lens, "k": case.k_lens},
        "topk": case.topk,
        "dtype": case.dtype,
        "kind": case.kind,
        "layout": case.layout,
        "options": case.options,
        "seed": case.seed,
    }


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """JSON-ready: every field, the worst ratio and the command that runs it again; ``parse_verdict`` reads it back."""
    return {
        "case": case_record(verdict.case),
        "implementation": verdict.implementation,
        "status": verdict.status,
        "reason": verdict.reason,
        "proved": verdict.proved,
        "findings": [
            {
                "check": finding.check,
                "message": finding.message,
                "proved": finding.proved,
                "p_value": finding.p_value,
                "where": finding.where,
                "convention": finding.convention,
            }
            for finding in verdict.findings
        ],
        "measures": verdict.measures,
        "worst_ratio": verdict.worst_ratio,
        "worst": [
            {
                "output": worst.output,
                "index": worst.index,
                "observed": worst.observed,
                "expected": worst.expected,
                "budget": worst.budget,
                "ratio": worst.ratio,
            }
            for worst in verdict.worst
        ],
        "error_map": verdict.error_map,
        "repro": verdict.repro,
        "origin": verdict.origin,
        "seconds": verdict.seconds,
        "device": verdict.device,
    }


def finite(value: Any) -> Any:
    """The value with floats that JSON has no number for as strings, and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


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
        str(record.get("convention", "")),
    )


def _worst(record: Mapping[str, Any]) -> Worst:
    index = tuple(int(place) for place in record["index"])
    observed, expected, budget = (float(record[name]) for name in ("observed", "expected", "budget"))
    return Worst(str(record["output"]), index, observed, expected, budget)
