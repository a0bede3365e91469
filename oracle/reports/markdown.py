"""A run as GitHub-flavoured Markdown, for a job's summary or a comment on a pull request."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ..verdict import Verdict
from .plain import duration, line, plural, printable
from .summary import Summary
from .table import _COLUMNS as COLUMNS

#: Failures shown; GitHub cuts a summary off at 1 MiB.
_SHOWN = 20


def markdown(verdicts: Sequence[Verdict], summary: Summary, environment: dict[str, Any]) -> str:
    """The document. Whatever comes from outside stands in code spans and blocks, or is escaped."""
    counts = ", ".join(f"{count} {status.lower()}" for status, count in summary.counts.items() if count)
    sign = {0: "passes", 1: "**fails**"}.get(summary.exit_code, "judged nothing")
    parts = [
        f"### attnoracle {sign}: {plural(summary.total, 'verdict')} in {duration(summary.seconds)}",
        f"{counts or 'nothing to judge'}. {_machine(environment)}",
        _matrix(verdicts),
    ]
    bad = [verdict for verdict in verdicts if verdict.bad]
    parts += [_failure(verdict) for verdict in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        parts.append(f"{len(bad) - _SHOWN} more failures; `--json` has them all.")
    for note in summary.notes:
        parts.append(f"* {_escaped(note)}")
    return "\n\n".join(parts) + "\n"


def _machine(environment: dict[str, Any]) -> str:
    device = environment.get("device") or {}
    versions = ", ".join(f"{name} {environment[name]}" for name in ("torch", "triton") if environment.get(name))
    return _escaped(f"attnoracle {environment.get('attnoracle')}, {versions}, {device.get('name', 'unknown device')}")


def _matrix(verdicts: Sequence[Verdict]) -> str:
    rows: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.implementation].append(verdict)
    seen = [(status, name) for status, name in COLUMNS if any(verdict.status == status for verdict in verdicts)]
    head = ["implementation", *(name for _, name in seen), "worst", "time"]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for name in sorted(rows):
        counts = Counter(verdict.status for verdict in rows[name])
        ratio = max((r for v in rows[name] if (r := v.worst_ratio) is not None), default=None)
        cells = [str(counts[status] or "") for status, _ in seen]
        cells += ["" if ratio is None else f"{ratio:.3g}", duration(sum(v.seconds for v in rows[name]))]
        lines.append(f"| {_code(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _failure(verdict: Verdict) -> str:
    lines = [f"{finding.check}: {finding.message}" + (f"; at {finding.where}" if finding.where else "")
             for finding in verdict.findings] or [verdict.reason]  # fmt: skip
    body = _fenced("\n".join([*lines, "", verdict.repro]))
    title = f"<b>{verdict.status}</b> {_html(verdict.implementation)} on {_html(verdict.case.id)}"
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    text = printable(text)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _code(text: str) -> str:
    """A code span in a table cell; HTML, since a span of backticks cannot hold every pipe and backtick."""
    return f"<code>{_html(text)}</code>"


def _html(text: str) -> str:
    return html.escape(line(text)).replace("|", "&#124;").replace("`", "&#96;").replace("@", "&#64;")


def _escaped(text: str) -> str:
    return _html(text).replace("*", "&#42;").replace("_", "&#95;").replace("[", "&#91;")
