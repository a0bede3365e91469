"""Finds compute-sanitizer and runs it over the target in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..device import has_cuda
from ..errors import Unsupported
from .meetings import meeting
from .parse import Report, parse
from .target import DONE

#: Where a CUDA toolkit lies that is not on the path.
_HOMES = ("CUDA_HOME", "CUDA_PATH")
#: Seconds for one tool on one case: it slows kernels down ten to a hundred times.
PATIENCE = 600.0
#: Records that are printed; the summary counts all.
SHOWN = 20
#: (arguments, environment, seconds) to what was printed; None for a program that had to be ended.
Runner = Callable[[list[str], Mapping[str, str], float], str | None]


def sanitizer(device: str) -> str:
    """Path of the tool. Raises Unsupported where there is no GPU or no tool, with what to do."""
    if not device.startswith("cuda"):
        here = "the CPU was asked for" if has_cuda() else "torch sees none here; run it on one"
        raise Unsupported(f"--sanitize: compute-sanitizer needs a CUDA device, and {here}")
    homes = [Path(os.environ[name]) / "bin" for name in _HOMES if os.environ.get(name)]
    for folder in (None, *homes, Path("/usr/local/cuda/bin")):
        found = shutil.which("compute-sanitizer", path=None if folder is None else str(folder))
        if found:
            return found
    raise Unsupported(
        "--sanitize: compute-sanitizer is not on the path, in $CUDA_HOME or in /usr/local/cuda; it comes with the CUDA "
        "toolkit"
    )


def run(
    program: str, tool: str, case: str, implementation: str, *, patience: float = PATIENCE, runner: Runner | None = None
) -> Report:
    """The report of one tool on one call; ``trouble`` says why where it did not come to its end."""
    command = [program, "--tool", tool, "--print-limit", str(SHOWN), "--target-processes", "all"]
    if tool == "memcheck":
        command += ["--leak-check", "no"]
    command += [sys.executable, "-m", "attnoracle.oracle.sanitize.target", case, implementation]
    printed = (runner or _run)(command, environment(), patience)
    if printed is None:
        return Report(tool, (), None, trouble=f"did not come back within {patience:.0f} seconds")
    report = replace(parse(printed, tool), meeting=meeting(printed))
    if DONE not in printed.splitlines() and not report.errors:
        why = report.trouble or _last_words(printed)
        return Report(tool, report.hazards, None, report.warnings, f"the kernel's process ended early: {why}")
    return report


def environment() -> dict[str, str]:
    """That of the child: torch asks the driver for every tensor, kernels are compiled."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    search = os.pathsep.join(filter(None, sys.path))
    return kept | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": search}


def _run(command: list[str], environment: Mapping[str, str], patience: float) -> str | None:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode(errors="replace")


def _last_words(printed: str) -> str:
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith("=========")]
    return lines[-1].strip() if lines else "it printed nothing"
