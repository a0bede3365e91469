"""A run as JSON. Floats that JSON has no number for are written as the strings "nan", "inf" and "-inf"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..case import Case
from ..verdict import Verdict
from .summary import Summary


def document(
    name: str, command: Sequence[str], environment: dict[str, Any], summary: dict[str, Any], **lists: Any
) -> dict[str, Any]:
    """The top level that every command's JSON has: schema, command, environment, summary, and its own lists."""
    schema = {"name": f"attnoracle.{name}", "version": 1}
    return {"schema": schema, "command": list(command), "environment": environment, "summary": summary, **lists}


def check_document(
    command: Sequence[str],
    environment: dict[str, Any],
    summary: Summary,
    verdicts: Sequence[Verdict],
    diagnoses: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``attnoracle.check``, version 1; with ``diagnoses`` where there are any."""
    lists = {"verdicts": [verdict_record(verdict) for verdict in verdicts]} | (
        {"diagnoses": list(diagnoses)} if diagnoses else {}
    )
    return document("check", command, environment, summary.as_dict(), **lists)


def dumps(value: Any) -> str:
    """JSON text with a final newline, valid by RFC 8259 whatever floats and strings are in it."""
    text = json.dumps(finite(value), indent=2, allow_nan=False, ensure_ascii=True)
    return f"{text}\n"


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
    """JSON-ready: every field, the worst ratio and the command that runs it again; ``json_reading`` reads it back."""
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
