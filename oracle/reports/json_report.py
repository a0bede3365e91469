"""A run as JSON. Floats that JSON has no number for are written as the strings "nan", "inf" and "-inf"."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..records.verdict_json import finite, verdict_record
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
