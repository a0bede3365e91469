"""Sequences of batches in one line each, to read, to write, to shrink and to keep.

    MODE SIZES at LENGTH: step; step; …       PIECEWISE 8,16 at 20: a20; b6; force a1 b1; eager c5; -a d12

MODE is NONE, PIECEWISE, FULL (uniform decodes; the rest eager) or FULL_AND_PIECEWISE. SIZES are the captured numbers of
tokens, LENGTH what they were captured with: a prompt of so many tokens in pieces, decodes of such a length in full.
A step names requests by letter and their new tokens (``a6``), and those whose pages are taken away before it (``-a``).
``eager`` runs it without a graph, ``force`` under ``sparse_mla_force_mqa``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ...fixtures import PATH
from ..errors import BadInput, unknown
from .setup import LONGEST, MOST

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
FOLDER = PATH / "graphs"
_LINE = re.compile(r"\s*(?P<mode>\S+)(?:\s+(?P<sizes>[\d,]+)\s+at\s+(?P<length>\d+))?\s*:(?P<steps>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens of each request, requests preempted before, and switches."""

    queries: tuple[tuple[str, int], ...]
    preempted: tuple[str, ...] = ()
    eager: bool = False
    force: bool = False

    def __str__(self) -> str:
        words = ["eager"] * self.eager + ["force"] * self.force
        words += [f"-{name}" for name in self.preempted] + [f"{name}{count}" for name, count in self.queries]
        return " ".join(words)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.queries)


@dataclass(frozen=True, slots=True)
class Sequence:
    """A graph mode, what was captured, and the steps that follow."""

    mode: GraphMode
    sizes: tuple[int, ...]
    captured_at: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        captured = f" {','.join(map(str, self.sizes))} at {self.captured_at}" if self.sizes else ""
        return f"{self.mode}{captured}: {'; '.join(map(str, self.steps))}"

    def __post_init__(self) -> None:
        if self.mode not in get_args(GraphMode):
            raise unknown("graph mode", self.mode, get_args(GraphMode))
        if (self.mode == "NONE") != (not self.sizes):
            raise BadInput(
                f"sequence {str(self)!r}: expected captured sizes in every mode but NONE, 'MODE 4,8 at 20: …'"
            )
        if self.sizes and not (1 <= self.captured_at <= LONGEST and 1 <= min(self.sizes) <= max(self.sizes) <= MOST):
            raise BadInput(f"sequence {str(self)!r}: expected sizes of 1 to {MOST} and a length of 1 to {LONGEST}")
        known: dict[str, int] = {}
        for number, step in enumerate(self.steps, 1):
            follow(f"sequence {str(self)!r}, step {number}", step, known)


def follow(where: str, step: Step, known: dict[str, int]) -> None:
    """Move the lengths of the requests on by a step. Raises BadInput for one that cannot be."""
    for name in step.preempted:
        if name not in known:
            raise BadInput(f"{where}: expected to preempt a request that runs, got {name}; running: {sorted(known)}")
        del known[name]
    names = [name for name, _ in step.queries]
    if not names or len(set(names)) != len(names) or step.tokens > MOST:
        raise BadInput(f"{where}: expected distinct requests of at most {MOST} new tokens in all, got {str(step)!r}")
    for name, count in step.queries:
        known[name] = known.get(name, 0) + count
        if count < 1 or known[name] > LONGEST:
            raise BadInput(f"{where}: expected 1 to {LONGEST} tokens in all for {name}, got {known[name]}")


def parse(text: str) -> Sequence:
    """Raises BadInput with what was expected."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise BadInput(f"sequence {text!r}: expected 'MODE SIZES at LENGTH: step; step', like 'FULL 4 at 9: a5; a1'")
    sizes = tuple(sorted(int(size) for size in (match["sizes"] or "").split(",") if size))
    steps = tuple(_step(text, part) for part in match["steps"].split(";"))
    return Sequence(cast(GraphMode, match["mode"]), sizes, int(match["length"] or 0), steps)


def _step(text: str, part: str) -> Step:
    queries, preempted, words = [], [], set()
    for word in part.split():
        if word in ("eager", "force"):
            words.add(word)
        elif re.fullmatch(r"-[a-z]", word):
            preempted.append(word[1])
        elif re.fullmatch(r"[a-z]\d+", word):
            queries.append((word[0], int(word[1:])))
        else:
            raise BadInput(f"sequence {text!r}: expected a6, -a, eager or force, got {word!r}")
    return Step(tuple(queries), tuple(preempted), "eager" in words, "force" in words)


@dataclass(frozen=True, slots=True)
class Theme:
    """Sequences that show one thing, and the models they run on."""

    name: str
    about: str
    subjects: tuple[str, ...]
    sequences: tuple[Sequence, ...]


@lru_cache
def themes() -> tuple[Theme, ...]:
    """The shipped sequences, and those that random search has found."""
    return tuple(theme for path in sorted(FOLDER.glob("*.toml")) for theme in _read(path))


def _read(path: Path) -> list[Theme]:
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Theme(name, row["about"], tuple(row["subjects"]), tuple(parse(line) for line in row["sequences"]))
        for name, row in data.items()
    ]
