"""``attnoracle report``: the documents of a run again, from the JSON of one or of several."""

from __future__ import annotations

import json as json_
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput
from ..reports.page import Attached
from ..verdict import Verdict
from . import options
from .judging import Documents
from .terminal import console

#: Documents that a page is made of.
SCHEMAS = ("attnoracle.check", "attnoracle.diagnose", "attnoracle.route", "attnoracle.audit")

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="What --json of check wrote; of diagnose, route, audit: joins the page."),
]
Audit = Annotated[
    str | None, typer.Option("--audit", metavar="FILE", help="What audit --json wrote: the same as among the files.")
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
    from ..records.verdict_json import parse_verdict
    from ..reports.summary import Summary
    from ..reports.table import report as table

    documents = Documents(None, junit, markdown, html)
    given = [(path, _document(path)) for path in [*files, *([audit] if audit else [])]]
    runs = [one for _, one in given if _schema(one) == "attnoracle.check"]
    if not runs:
        raise BadInput(f"{', '.join(files)}: expected at least one document of attnoracle check")
    try:
        verdicts = [parse_verdict(record) for one in runs for record in one["verdicts"]]
        seconds = sum(float(one["summary"]["seconds"]) for one in runs)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{', '.join(files)}: expected the verdicts of attnoracle check: {error}") from None
    summary = Summary.of(verdicts, seconds)
    command = runs[0]["command"] if len(given) == 1 else ["attnoracle", *context.obj]
    try:
        documents.write(
            command, summary, verdicts, environment=runs[0]["environment"], attached=_attached(given, verdicts)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{', '.join(files)}: expected them as --json writes them: {error!r}") from None
    if not any((html, markdown, junit)):
        table(console(), verdicts, summary)
    raise typer.Exit(summary.exit_code)


def _attached(given: Sequence[tuple[str, dict[str, Any]]], verdicts: Sequence[Verdict]) -> Attached:
    """What the other documents add to the page. Raises BadInput for a diagnosis of a failure that is not there."""
    failures = {(verdict.implementation, verdict.case.id) for verdict in verdicts if verdict.bad}
    audits = [one for _, one in given if _schema(one) == "attnoracle.audit"]
    if len(audits) > 1:
        raise BadInput("two documents of attnoracle audit: expected one")
    diagnoses = []
    for path, one in given:
        for record in one.get("diagnoses", ()):
            key = (str(record.get("implementation")), str(record["case"]["id"]))
            if key not in failures:
                raise BadInput(f"{path}: diagnoses {' on '.join(key)}, which is no failure of the run; leave it out")
            diagnoses.append(record)
    routes = [record for _, one in given if _schema(one) == "attnoracle.route" for record in one["routes"]]
    return Attached(audits[0] if audits else None, diagnoses, routes)


def _document(path: str) -> dict[str, Any]:
    try:
        found = json_.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: expected JSON: {error}") from None
    if not isinstance(found, dict) or _schema(found) not in SCHEMAS:
        raise BadInput(f"{path}: expected a document of {', '.join(SCHEMAS)}, as --json writes it")
    return found


def _schema(document: dict[str, Any]) -> Any:
    schema = document.get("schema")
    return schema.get("name") if isinstance(schema, dict) else None
