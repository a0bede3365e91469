"""``attnoracle check --sanitize``: compute-sanitizer over the Triton kernels, on a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from ..config import load
from ..environment import environment
from ..errors import Unsupported
from ..reports.json_report import check_document, dumps
from .properties import Wished
from .selection import named_cases
from .terminal import check_target, console, write

#: Backends whose kernels are compiled here, by Triton.
COMPILED = ("triton", "hopper")


def run_sanitizer(context: typer.Context, candidates: Sequence[Any], wished: Wished, patience: float | None) -> int:
    """Run, report and return the exit code. Raises Unsupported without a GPU, without the tool, or without a kernel."""
    from ..facts import facts
    from ..properties.cases import cases_for
    from ..reports.progress import progress
    from ..reports.summary import Summary
    from ..reports.table import report
    from ..sanitize.judge import judged
    from ..sanitize.tool import PATIENCE, run, sanitizer

    check_target("--json", wished.json)
    program = sanitizer(wished.device)
    named = named_cases(wished.ids, suggestions=lambda: ()) if wished.ids else ()
    pairs = []
    for one in candidates:
        if not one.backend.startswith(COMPILED):
            continue
        cases = [case for case in named if case.operator == one.operator] or list(cases_for(one, "cuda", wished.seed))[
            :1
        ]
        pairs += [(case, one) for case in cases if one.supports(facts(case, load(case.geometry), "cuda")) is None]
    if not pairs:
        raise Unsupported("--sanitize: none of the chosen implementations is a Triton kernel that runs on this GPU")
    started = time.monotonic()
    verdicts = []
    with progress(console(stderr=True), len(pairs), quiet=wished.quiet) as advance:
        for case, one in pairs:
            reports = partial(_report, run, program, case.id, one.name, patience or PATIENCE)
            verdicts.append(judged(case, one.name, reports))
            advance(verdicts[-1])
    summary = Summary.of(verdicts, time.monotonic() - started)
    command = ["attnoracle", *context.obj]
    write(wished.json, lambda: dumps(check_document(command, environment(), summary, verdicts)))
    report(console(stderr=wished.json == "-"), verdicts, summary, failures_only=wished.quiet)
    return summary.exit_code


def _report(run: Any, program: str, case: str, name: str, patience: float, tool: str) -> Any:
    return run(program, tool, case, name, patience=patience)
