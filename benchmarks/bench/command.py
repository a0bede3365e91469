"""The body of ``attnoracle bench``: what the command line asks for, measured and reported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...oracle.case import Case
from ...oracle.cli.selection import implementations
from ...oracle.cli.terminal import console, say, write
from ...oracle.errors import BadInput
from . import plan


@dataclass(frozen=True, slots=True)
class Request:
    """One run as asked for."""

    command: Sequence[str]
    settings: Sequence[plan.Setting]
    patterns: Sequence[str]
    """Of implementations; empty: all."""
    device: str
    seconds: float
    json: str | None = None
    csv: str | None = None
    png: str | None = None


def settings_of(
    base: plan.Setting, batches: Sequence[str], sweeps: Sequence[str], configs: Sequence[str]
) -> list[plan.Setting]:
    """Each batch with each combination of the sweeps, then the grids. Raises BadInput if nothing is left."""
    from dataclasses import replace

    found = [one for batch in batches for one in plan.swept(replace(base, batch=batch), sweeps)]
    if not batches and sweeps:
        found = plan.swept(base, sweeps)
    for name in configs:
        found += plan.grids(name)
    if not found:
        shipped = ", ".join(plan.shipped())
        raise BadInput(f"bench: expected a batch such as q4k or q512s4k, --sweep, or --config (shipped: {shipped})")
    return found


def list_cases(settings: Sequence[plan.Setting]) -> None:
    """Print the ids of the cases."""
    say("".join(f"{case.id}\n" for case in _cases(settings)))


def run(request: Request) -> int:
    """Measure, report and write; the exit code: 1 if something was refused, 2 if nothing was timed."""
    cases = _cases(request.settings)
    candidates = implementations(request.patterns, sorted({case.operator for case in cases}))
    results, ceilings, environment = _measure(request, cases, candidates)
    from ...oracle.reports.json_report import document, dumps
    from .ratios import ratios
    from .report import as_csv, print_report

    compared = ratios(results)
    counts = {status: sum(r.status == status for r in results) for status in ("timed", "refused", "unsupported")}
    summary = {**counts, "shapes": len(cases), "device": request.device, "ceilings": ceilings.as_dict()}
    lists: dict[str, Any] = {
        "results": [result.as_dict() for result in results],
        "ratios": [ratio.as_dict() for ratio in compared],
    }
    write(request.json, lambda: dumps(document("bench", request.command, environment, summary, **lists)))
    write(request.csv, lambda: as_csv(results))
    name = environment["device"]["name"]
    where = (
        str(name) if request.device == "cuda" else f"{name}: CPU figures, Triton interpreted; they say nothing of a GPU"
    )
    if request.png:
        from .plot import draw

        draw(results, f"attnoracle bench on {where}", Path(request.png))
    owned = "-" in (request.json, request.csv)
    print_report(console(stderr=owned), results, ceilings, measured_on=where)
    if counts["refused"]:
        return 1
    return 0 if counts["timed"] else 2


def _cases(settings: Sequence[plan.Setting]) -> list[Case]:
    return list(dict.fromkeys(setting.case() for setting in settings))


def _measure(request: Request, cases: Sequence[Case], candidates: Sequence[Any]) -> tuple[list[Any], Any, Any]:
    import torch

    from ...oracle.environment import environment
    from . import ceilings
    from .measure import measure, require_memory

    pairs = [(case, [one for one in candidates if one.operator == case.operator]) for case in cases]
    if not any(ones for _, ones in pairs):
        raise BadInput("bench: the chosen implementations belong to none of the operators; see attnoracle doctor")
    for case in cases:
        require_memory(case, request.device)
    results = []
    with _bar(sum(len(ones) for _, ones in pairs)) as advance, contextlib.redirect_stdout(sys.stderr):
        found = ceilings.measure(torch.device(request.device))
        for case, ones in pairs:
            results += measure(case, ones, request.device, seconds=request.seconds, on_done=advance)
    return results, found, environment()


@contextlib.contextmanager
def _bar(total: int) -> Any:
    """Progress on stderr: a bar on a terminal, nothing elsewhere; the table comes soon enough."""
    people = console(stderr=True)
    if not people.is_terminal:
        yield lambda name: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("checking and timing"), BarColumn(bar_width=None), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=people, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)
