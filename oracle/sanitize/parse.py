"""Reads what compute-sanitizer prints, of all four tools, in the forms that versions 2022 to 2026 have.

::

    ========= Invalid __global__ read of size 16 bytes
    =========     at matmul_kernel+0xec0 in matmul_triton2.py:43            2025: kernel, offset, file
    =========     at 0xda0 in /path/fused_moe.py:175:fused_moe_kernel       2022: offset, file, kernel
    =========     by thread (18,0,0) in block (0,0,0)
    =========     Access to 0x74505bcccca0 is out of bounds                 or: Address 0x74505bcccca0 …
    ========= ERROR SUMMARY: 1 error

A report without its summary line is no report: the tool or the program ended early, and nothing was shown. Sources of
the forms: triton-viz#158, sglang#2599, cudf#23900, kokkos#6217, cccl#2104, llama.cpp#27678, and NVIDIA's documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_LINE = re.compile(r"^========= ?(.*)$")
_KINDS = (
    (re.compile(r"Invalid \S+ \S+(?: \S+)*? of size [\d,]+ bytes"), "error"),
    (re.compile(r"Uninitialized \S+ memory read of size [\d,]+ bytes"), "error"),
    (re.compile(r"Barrier error detected\. .+"), "error"),
    (re.compile(r"Error: Race reported between \w+ access"), "error"),
    (re.compile(r"Warning: Race reported between \w+ access"), "warning"),
    (re.compile(r"(?:ERROR|Error): ?Potential \w+ hazard detected .+"), "error"),
    (re.compile(r"(?:WARN|Warning): ?(?:\([^)]*\) )?Potential \w+ hazard detected .+"), "warning"),
    (re.compile(r"Program hit .+"), "error"),
    (re.compile(r"Leaked [\d,]+ bytes at .+"), "error"),
)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: (.+)")
_COUNT = re.compile(r"(\d[\d,]*) (?:errors?|hazards? displayed)")
_RACES = re.compile(r"\((\d+) errors?, (\d+) warnings?\)")
_NEWER = re.compile(r"\bat (?P<kernel>[^\s(][^\n]*?)\+0x[0-9a-f]+(?: in (?P<place>\S+:\d+))?")
_OLDER = re.compile(r"\bat 0x[0-9a-f]+ in (?P<place>[^:\s]+:\d+):(?P<kernel>.+?)(?: \[\d+ hazards?\])?$")
_THREAD = re.compile(r"by thread (\([\d, ]+\)) in block (\([\d, ]+\))")
_BOUNDS = re.compile(
    r"(?:is out of bounds|is misaligned|and is [\d,]+ bytes? (?:before|after) .+|is inside the nearest .+)"
)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One record of a report."""

    kind: str
    """Its first line, without the place."""
    severity: str
    """``error`` or ``warning``."""
    kernel: str = ""
    place: str = ""
    """File and line."""
    thread: str = ""
    detail: str = ""

    def told(self) -> str:
        where = " in ".join(filter(None, (self.kernel, self.place)))
        return ", ".join(filter(None, (f"{self.kind} at {where}" if where else self.kind, self.thread, self.detail)))


@dataclass(frozen=True, slots=True)
class Report:
    """What one tool found in one program."""

    tool: str
    hazards: tuple[Hazard, ...]
    errors: int | None
    """By the summary line, those not shown included; None where there is none, so that nothing was shown."""
    warnings: int = 0
    trouble: str = ""
    """What the tool says of itself."""
    meeting: frozenset[str] = frozenset()
    """Kernels that hand shared memory over at mbarriers."""

    @property
    def finished(self) -> bool:
        return self.errors is not None


def parse(text: str, tool: str) -> Report:
    """The report in what was printed; lines of the program itself are passed over."""
    found: list[Hazard] = []
    errors: int | None = None
    warnings = 0
    trouble = ""
    current: Hazard | None = None
    for raw in text.splitlines():
        line = _LINE.match(raw)
        if line is None:
            continue
        said = line[1].strip()
        summary = _SUMMARY.match(said)
        if summary:
            if said.startswith("LEAK"):
                continue
            races, count = _RACES.search(summary[1]), _COUNT.match(summary[1])
            if races:
                errors, warnings = (errors or 0) + int(races[1]), warnings + int(races[2])
            elif count:
                errors = (errors or 0) + int(count[1].replace(",", ""))
            current = None
            continue
        started = _begun(said)
        if started is not None:
            found.append(started)
            current = started
        elif current is not None and said:
            current = found[-1] = _continued(found[-1], said)
        elif said.startswith(("Error:", "Internal Sanitizer Error", "Target application")):
            trouble = trouble or said
        if not said:
            current = None
    return Report(tool, tuple(found), errors, warnings, trouble)


def _begun(said: str) -> Hazard | None:
    for pattern, severity in _KINDS:
        match = pattern.match(said)
        if match:
            return _placed(Hazard(re.sub(r"^(?:Error|Warning|ERROR|WARN): ?", "", match[0]), severity), said)
    return None


def _continued(hazard: Hazard, said: str) -> Hazard:
    """A record with one more of its lines."""
    thread = _THREAD.search(said)
    if thread and not hazard.thread:
        return replace(hazard, thread=f"thread {thread[1]} of block {thread[2]}")
    if said.startswith("at ") and not hazard.kernel:
        return _placed(hazard, said)
    if said.startswith("and ") and " access at " in said:
        other = _placed(Hazard("", ""), said)
        access = said.split()[1].lower()
        return replace(hazard, detail=hazard.detail or f"and {access} at {other.place or other.kernel}")
    bounds = _BOUNDS.search(said)
    if bounds and "Host Frame" not in said:
        return replace(hazard, detail=", ".join(filter(None, (hazard.detail, bounds[0]))))
    return hazard


def _placed(hazard: Hazard, said: str) -> Hazard:
    match = _OLDER.search(said) or _NEWER.search(said)
    if match is None:
        return hazard
    return replace(hazard, kernel=match["kernel"].strip(), place=match["place"] or "")
