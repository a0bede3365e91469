"""Runs a command again in an environment of its own, where other releases of some packages are installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME==VERSION", help="Run where this release is installed. Repeatable."),
]
Cache = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Keeps environments. [default: user's cache folder]")
]
_OWN = ("--with", "--cache")


def run_with(arguments: Sequence[str], pins: Sequence[str], cache: Path | None) -> int:
    """The exit code of ``attnoracle`` with these arguments, run there; its output goes where this one's does.

    Raises BadInput for a pin that names no release, and for one that cannot be installed.
    """
    from ..bisect.packages import default_cache, interpreter, parse_pin

    python = interpreter((cache or default_cache()).absolute(), dict(map(parse_pin, pins)))
    command = [str(python), "-m", "attnoracle.oracle", *without(arguments)]
    return subprocess.run(command, check=False, env=os.environ).returncode


def without(arguments: Sequence[str]) -> list[str]:
    """The arguments but for the options of this module."""
    left: list[str] = []
    given = iter(arguments)
    for one in given:
        if one in _OWN:
            next(given, None)
        elif not one.startswith(tuple(f"{name}=" for name in _OWN)):
            left.append(one)
    return left
