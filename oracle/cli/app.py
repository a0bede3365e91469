"""The command line: parses, calls one command, and turns what went wrong into an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

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

app = typer.Typer(
    name="attnoracle",
    help="Does this sparse-MLA attention compute what it should, and if not, where and why not?",
    epilog="Exit codes: 0 all well; 1 a fault found; 2 wrong usage, or nothing could be judged; 3 attnoracle failed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(check)
app.command()(repro)
app.command()(shrink)
app.command()(diagnose)
app.command()(audit)
app.command()(campaign)
app.command()(replay)
app.command()(doctor)
app.command()(contract)
app.command()(report)
app.command()(history)
app.command()(route)
app.command()(bench)
app.command()(graphs)
app.add_typer(bisect)
app.command()(compare)
app.command()(capture)
app.command()(engine)
app.command()(bringup)
app.command()(exchange)


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
