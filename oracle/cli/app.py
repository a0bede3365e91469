"""The command line: parses, calls one command, and turns what went wrong into an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..environment import version
from ..errors import OracleError
from ..reports.summary import BROKEN, NOTHING
from .audit import audit
from .bench import bench
from .bisect import app as bisect
from .bringup import bringup
from .campaign import campaign
from .capture import capture
from .check import check
from .compare import compare
from .contract import contract
from .diagnose import diagnose
from .doctor import doctor
from .engine import engine
from .exchange import exchange
from .graphs import graphs
from .history import history
from .replay import replay
from .report import report
from .repro import repro
from .route import route
from .shrink import shrink
from .terminal import PipeClosed, close_stdout, leave, open_streams, say

#: What a shell reports for a program that a closed pipe ended.
_PIPE_CLOSED = 141

#: Every command with its line in the help, in the order of the README.
COMMANDS: dict[str, tuple[Callable[..., None] | typer.Typer, str]] = {
    "check": (check, "Check implementations against the references."),
    "contract": (contract, "Propose what a kernel promises, by probing it."),
    "repro": (repro, "Run one case or bundle again and show the outcome in full."),
    "shrink": (shrink, "Find the smallest case that fails in the same way."),
    "diagnose": (diagnose, "Say why a kernel is wrong on a case."),
    "bisect": (bisect, "Find the commit, release, size, knob or stage that matters."),
    "campaign": (campaign, "Search all cases for a time, guided by what was not seen."),
    "compare": (compare, "Say who of two is off, where, and by how much."),
    "route": (route, "Explain, map and compare routes; audit routing tables."),
    "graphs": (graphs, "Hold CUDA graphs, real or emulated, against eager steps."),
    "replay": (replay, "Replay an incident from the field, faulty and cured."),
    "engine": (engine, "Ask an engine's own code what ours is asked."),
    "capture": (capture, "Run a script and watch an engine's sparse-MLA layers in it."),
    "bringup": (bringup, "Say what a model's config means and costs; write a suite."),
    "bench": (bench, "Time implementations side by side, once they passed."),
    "audit": (audit, "Plant faults and see which checks kill them."),
    "report": (report, "Make pages of runs: HTML, Markdown, JUnit."),
    "history": (history, "Show cells over time, those that moved last first."),
    "exchange": (exchange, "Write and judge workloads of flashinfer-bench."),
    "doctor": (doctor, "Say what this machine can run, and why not the rest."),
}


class InOrder(TyperGroup):
    """Lists the commands as the table does; a group of commands would come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


app = typer.Typer(
    name="attnoracle",
    cls=InOrder,
    help="Does this sparse-MLA attention compute what it should, and if not, where and why not?",
    epilog="Exit codes: 0 all well; 1 a fault found; 2 wrong usage, or nothing could be judged; 3 attnoracle failed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _name, (_command, _short) in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name, short_help=_short)
    else:
        app.command(_name, short_help=_short)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"attnoracle {version()}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never raises but for a bug of the caller."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(given, prog_name="attnoracle", obj=given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except PipeClosed:
        close_stdout()
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        return 130
    except OracleError as error:
        print(f"attnoracle: {error}", file=sys.stderr)
        return NOTHING
    except Exception as error:
        traceback.print_exc()
        print(
            f"attnoracle: this is a failure of attnoracle itself, not of what it checks: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return BROKEN
    return 0


def program() -> NoReturn:
    """``main`` as a program of its own."""
    leave(main())
