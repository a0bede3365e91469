"""``attnoracle repro``: one case or one bundle again, with everything that is known about the outcome."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..campaign.scenes import KINDS, is_own
from ..case import Case
from ..device import settle
from ..errors import BadInput
from ..fleet.pool import Pool
from ..reports.summary import FAULT, NOTHING, WELL, Summary
from ..reports.table import closing, print_block
from ..verdict import Verdict
from . import guests, options
from .groups import Which, grouped
from .judging import Documents, judge
from .selection import among_all, named_cases, pair, suite_cases
from .terminal import console, write

if TYPE_CHECKING:
    from ..bundle import Bundle

CaseOrBundle = Annotated[str, typer.Argument(metavar="CASE_OR_BUNDLE", help="Id of the case, or folder of a bundle.")]


@grouped
def repro(
    context: typer.Context,
    case: CaseOrBundle,
    *,
    which: Which,
    device: options.DeviceName = options.Device.auto,
    json: options.Json = None,
) -> None:
    """Run one case or bundle again and show the outcome in full.

    Of a bundle it says whether the failure is the same. Runs in this process, so that a debugger sees the kernel.
    """
    documents = Documents(json)
    command = ["attnoracle", *context.obj]
    if is_bundle(case):
        from ..bundle import read

        where, bundle = settle(device), read(Path(case))
        mine = which.of_the_case(bundle.case.operator, where, str(bundle.contract_path))
        raise typer.Exit(_bundle(bundle, which.names(mine), where, documents, command))
    if case.partition(":")[0] in KINDS:
        _scene(case, which.implementation or (), settle(device), documents, command)
    models = guests.geometries(which.geometry)
    cases = among_all(named_cases([case], suggestions=lambda: suite_cases("quick", 0, ())), models)
    where = settle(device)
    pairs = pair(cases, which.candidates(which.of_the_case(cases[0].operator, where)))
    with Pool(jobs=1, device=where) as pool:
        verdicts, summary = judge(pool, pairs, quiet=True)
    _tell(documents, command, verdicts, summary)


def _scene(case: str, names: Sequence[str], device: str, documents: Documents, command: Sequence[str]) -> NoReturn:
    """A sequence of batches again, as a campaign wrote it down."""
    from ..cause.again import judge as once_more

    if not names:
        raise BadInput(f"repro {case!r}: expected --implementation, like {case.partition(':')[0]}:fused")
    sequence = Case.parse(case)
    with Pool(jobs=1, device=device, judge=once_more) as pool:
        verdicts, summary = judge(pool, [(sequence, name) for name in names], quiet=True)
    _tell(documents, command, verdicts, summary)


def _tell(documents: Documents, command: Sequence[str], verdicts: Sequence[Verdict], summary: Summary) -> NoReturn:
    documents.write(command, summary, verdicts)
    screen = console(stderr=documents.owns_stdout)
    for i, verdict in enumerate(verdicts):
        if i:
            screen.print()
        print_block(screen, verdict, measures=True)
    screen.print(closing(summary))
    raise typer.Exit(summary.exit_code)


def is_bundle(text: str) -> bool:
    """Whether the argument names a folder; a case id holds colons and names none.

    Raises BadInput for what can be neither.
    """
    if Path(text).is_dir():
        return True
    if "/" in text or ":" not in text:
        raise BadInput(
            f"{text!r}: no such case and no such folder; attnoracle check --list shows ids, and --bundle DIR of check "
            "and shrink writes folders"
        )
    return False


def _bundle(bundle: Bundle, names: Sequence[str], device: str, documents: Documents, command: Sequence[str]) -> int:
    """Runs a bundle again: 1 while the failure is there (the same or another), 0 once gone, 2 if it cannot run."""
    from ..bundle import kernel, replay
    from ..environment import environment
    from ..records.verdict_json import verdict_record
    from ..reports.json_report import document, dumps

    if len(names) > 1:
        raise BadInput(f"--implementation: expected one for a bundle, got {len(names)}")
    if bundle.case.operator in KINDS:
        from ..bundle.scene import replay_scene

        if not names and is_own(bundle.implementation):
            raise BadInput(
                f"bundle {bundle.folder}: expected --implementation {bundle.implementation}; what a bundle names is "
                "not imported by itself"
            )
        result = replay_scene(bundle, names[0] if names else bundle.implementation, device)
    else:
        make = kernel(bundle, names[0] if names else "")
        with contextlib.redirect_stdout(sys.stderr):
            result = replay(bundle, make, device)
    verdict = result.verdict
    summary = {"outcome": result.outcome, "stored_tensors": result.stored, "bundled": bundle.signature.as_list()}
    write(
        documents.json,
        lambda: dumps(document("repro", command, environment(), summary, verdicts=[verdict_record(verdict)])),
    )
    screen = console(stderr=documents.owns_stdout)
    print_block(screen, verdict, measures=True)
    screen.print(f"\n{result}", soft_wrap=True)
    return FAULT if verdict.bad else NOTHING if result.outcome == "cannot" else WELL
