"""``attnoracle report``: the documents of a run again, from the JSON of one or of several."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from . import options
from .judging import Documents
from .terminal import console

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="What check --json wrote; several are put together.")
]
Audit = Annotated[
    str | None, typer.Option("--audit", metavar="FILE", help="What audit --json wrote: its kill matrix joins the page.")
]


def report(
    context: typer.Context,
    files: Files,
    html: options.Html = None,
    markdown: options.Markdown = None,
    junit: options.JUnit = None,
    audit: Audit = None,
) -> None:
    """Make pages of runs: HTML, Markdown, JUnit; without any of them, the table."""
    from ..records import parse_verdict
    from ..reports.summary import Summary
    from ..reports.table import report as table

    documents = Documents(None, junit, markdown, html)
    read = [_document(path, "attnoracle.check") for path in files]
    try:
        verdicts = [parse_verdict(record) for one in read for record in one["verdicts"]]
        seconds = sum(float(one["summary"]["seconds"]) for one in read)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{', '.join(files)}: expected the verdicts of attnoracle check: {error}") from None
    kills = _document(audit, "attnoracle.audit") if audit else None
    summary = Summary.of(verdicts, seconds)
    command = read[0]["command"] if len(read) == 1 else ["attnoracle", *context.obj]
    documents.write(command, summary, verdicts, environment=read[0]["environment"], audit=kills)
    if not any((html, markdown, junit)):
        table(console(), verdicts, summary)
    raise typer.Exit(summary.exit_code)


def _document(path: str, schema: str) -> dict[str, Any]:
    try:
        found = json_.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: expected JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema", {}).get("name") != schema:
        raise BadInput(f"{path}: expected a document of {schema}, as --json writes it")
    return found
