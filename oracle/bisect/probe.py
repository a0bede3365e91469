"""A look by a command in a process of its own: the verdict of ``attnoracle check`` on one case, or an exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cause.signature import signature_of
from ..errors import BadInput
from ..fleet.children import watched
from .look import Label, Look

#: Exit code by which a command says that a point cannot be judged, as for ``git bisect run``.
SKIP = 125


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished command: exit code (None: stopped at its limit), seconds and the end of its output."""

    code: int | None
    seconds: float
    tail: str


def run(command: Sequence[str] | str, *, cwd: Path | None, env: Mapping[str, str], timeout: float, log: str) -> Ran:
    """Run a command with everything it starts; a string goes through the shell. Ends them all at the limit."""
    started = time.monotonic()
    with tempfile.TemporaryFile() if not log else Path(log).open("w+b") as output:
        process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with watched(process):
            try:
                code: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - 4000))
        tail = output.read().decode(errors="replace")
    return Ran(code, time.monotonic() - started, tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Also what it left behind in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is run at every point: ``command`` of the user, or the check of ``case`` with ``target``."""

    case: str = ""
    target: tuple[str, ...] = ()
    """Options of ``attnoracle check`` that name the implementation."""
    command: str = ""
    measure: str = ""
    above: float | None = None
    """A look is bad where this measure lies above the value, whatever the status."""
    timeout: float = 600.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.case):
            raise BadInput("bisect: expected either --case with --implementation or --impl, or --run COMMAND")
        if (self.above is None) != (not self.measure) or (self.measure and self.command):
            raise BadInput("bisect: --measure and --above go together, and with --case")

    def arguments(self) -> list[str]:
        """Of ``attnoracle`` itself."""
        return ["check", "--case", self.case, *self.target, "--device", self.device, "-j", "1"]

    def look(self, *, python: str = sys.executable, cwd: Path | None, env: Mapping[str, str], log: str) -> Look:
        """Run it once."""
        if self.command:
            return judge_exit(run(self.command, cwd=cwd, env=env, timeout=self.timeout, log=log), log)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "verdict.json"
            command = [python, "-m", "attnoracle.oracle", *self.arguments(), "--quiet", "--json", str(file)]
            ran = run(command, cwd=cwd, env=env, timeout=self.timeout, log=log)
            document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        return self._judge(ran, document, log)

    def _judge(self, ran: Ran, document: dict[str, Any] | None, log: str) -> Look:
        if document is None:
            told = "ran into the time limit" if ran.code is None else f"exit code {ran.code}: {_last_line(ran.tail)}"
            return Look("skip", detail=f"no verdict, {told}", seconds=ran.seconds, log=log)
        if len(document["verdicts"]) != 1:
            told = f"expected one verdict, got {len(document['verdicts'])}"
            return Look("skip", detail=told, seconds=ran.seconds, log=log)
        verdict = document["verdicts"][0]
        status = verdict["status"]
        if status in ("UNSUPPORTED", "WEAK"):
            return Look("skip", detail=f"{status}: {verdict['reason']}", seconds=ran.seconds, log=log)
        if self.measure:
            return self._by_measure(verdict, ran, log)
        label: Label = "bad" if status in ("FAIL", "ERROR") else "good"
        sign = str(signature_of(verdict)) if label == "bad" else ""
        return Look(label, sign, _number(verdict["worst_ratio"]), verdict["reason"], ran.seconds, log)

    def _by_measure(self, verdict: dict[str, Any], ran: Ran, log: str) -> Look:
        known = {**verdict["measures"], "worst_ratio": verdict["worst_ratio"]}
        value = _number(known.get(self.measure))
        if value is None:
            told = f"no measure {self.measure!r} here; there are {', '.join(sorted(known))}"
            return Look("skip", detail=told, seconds=ran.seconds, log=log)
        assert self.above is not None
        over = value > self.above
        sign = f"{self.measure} > {self.above:g}" if over else ""
        return Look("bad" if over else "good", sign, value, f"{self.measure} {value:.4g}", ran.seconds, log)


def judge_exit(ran: Ran, log: str) -> Look:
    """0 is good, 125 a skip, what ran into the limit a skip, everything else bad with its exit code as signature."""
    if ran.code == 0:
        return Look("good", seconds=ran.seconds, log=log)
    if ran.code is None or ran.code == SKIP:
        told = "ran into the time limit" if ran.code is None else f"exit code {SKIP}"
        return Look("skip", detail=told, seconds=ran.seconds, log=log)
    return Look("bad", f"exit code {ran.code}", detail=_last_line(ran.tail), seconds=ran.seconds, log=log)


def shell(arguments: Sequence[str]) -> str:
    """Arguments as they are typed."""
    return shlex.join(arguments)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
