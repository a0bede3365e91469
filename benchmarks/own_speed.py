"""The oracle's own speed: checks a second, time to a verdict, memory, and how both grow; a slower oracle shows.

    python -m attnoracle.benchmarks.own_speed [--device cpu|cuda] [--json FILE] [--against FILE]

Times are told in units of a calibration that is timed in the same run (a float64 matrix product and a sort, what a
reference and the checks are made of), so that two machines compare; seconds stand beside them. ``--against`` compares
with an earlier file, and one figure more than ``LIMIT`` times that of the file is a regression: exit 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..oracle.case import Case
from ..oracle.check import check
from ..oracle.device import settle
from ..oracle.environment import environment
from ..oracle.errors import BadInput
from ..oracle.guests.known import find
from ..oracle.reports.json_report import document, dumps
from .bench.timing import once
from .peak import peak_of

#: From which factor on a figure has become worse, in time or in memory.
LIMIT = 1.5
TIMES = 5
_TAIL = ":bf16:randn:contiguous:-:s0"
#: One axis at a time, each doubled: tokens, heads and keys of every main operator. Implementations are plain torch, so
#: that the reference, the budget and the checks are most of what is timed.
CASES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "dense_mha by tokens": (("h2:q32:k256:top0", "h2:q64:k256:top0", "h2:q128:k256:top0"), "eager"),
    "dense_mha by heads": (("h2:q64:k256:top0", "h4:q64:k256:top0", "h8:q64:k256:top0"), "eager"),
    "dense_mha by keys": (("h2:q64:k256:top0", "h2:q64:k512:top0", "h2:q64:k1024:top0"), "eager"),
    "masked_mha by keys": (("h2:q64:k256:top64", "h2:q64:k512:top64", "h2:q64:k1024:top64"), "sdpa-math"),
    "sparse_mqa by tokens": (("h8:q16:k512:top64", "h8:q32:k512:top64", "h8:q64:k512:top64"), "gather"),
    "sparse_mqa by heads": (("h8:q16:k512:top64", "h16:q16:k512:top64", "h32:q16:k512:top64"), "gather"),
    "sparse_mqa by keys": (("h8:q16:k512:top64", "h8:q16:k2048:top64", "h8:q16:k8192:top64"), "gather"),
    "indexer_scores by keys": (("h8:q16:k256:top0", "h8:q16:k512:top0", "h8:q16:k1024:top0"), "torch"),
    "topk_select by keys": (("h1:q16:k1024:top64", "h1:q16:k2048:top64", "h1:q16:k4096:top64"), "sort"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One case: seconds to its verdict, the same in units of the calibration, and what memory it took beyond before."""

    series: str
    case: str
    seconds: float
    units: float
    peak_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Regression:
    """A figure that became worse by ``factor``."""

    series: str
    case: str
    what: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        return self.now / self.before

    def __str__(self) -> str:
        return f"{self.series}, {self.case}: {self.what} {self.factor:.2f} times that of before"


def calibration(device: str) -> float:
    """Median seconds of a float64 product of 384 columns and a sort of a million numbers."""
    where = torch.device(device)
    a, b = torch.randn(384, 384, dtype=torch.float64, device=where), torch.randn(1 << 18, device=where)
    return _median(lambda: (a @ a, b.sort()), device, 15)


def measure(cases: Mapping[str, tuple[Sequence[str], str]] = CASES, *, device: str, times: int = TIMES) -> list[Figure]:
    """Every case of every series. Raises BadInput where one does not pass: a wrong verdict has no speed."""
    unit = calibration(device)
    found = []
    for series, (texts, backend) in cases.items():
        operator = series.partition(" ")[0]
        for text in texts:
            case = Case.parse(f"{operator}:glm-5:{text}{_TAIL}")
            one = find(f"{operator}/{backend}")
            verdict, peak = peak_of(lambda case=case, one=one: check(case, one, device=device), device)  # type: ignore[misc]
            if verdict.status != "PASS":
                raise BadInput(f"{one.name} on {case.id}: expected PASS, got {verdict.status} {verdict.reason}")
            seconds = _median(lambda case=case, one=one: check(case, one, device=device), device, times)  # type: ignore[misc]
            found.append(Figure(series, case.id, seconds, seconds / unit, peak))
    return found


def growth(figures: Sequence[Figure]) -> dict[str, dict[str, float]]:
    """By series: seconds and bytes of the largest case over those of the smallest; 4 is linear in what was doubled
    twice (16 for keys of sparse MQA, which are quadrupled)."""
    found = {}
    for series in dict.fromkeys(one.series for one in figures):
        chosen = [one for one in figures if one.series == series]
        found[series] = {
            "seconds": chosen[-1].seconds / chosen[0].seconds,
            "bytes": chosen[-1].peak_bytes / max(1, chosen[0].peak_bytes),
        }
    return found


def regressions(before: Sequence[Mapping[str, Any]], now: Sequence[Figure]) -> list[Regression]:
    """Figures that are ``LIMIT`` times those of before or more; cases that one side lacks are left out.

    A time is of a series, the sum over its cases: single ones of some milliseconds differ by more between two runs.
    """
    old = {(one["series"], one["case"]): one for one in before}
    shared = [one for one in now if (one.series, one.case) in old]
    found = []
    for series in dict.fromkeys(one.series for one in shared):
        each = [one for one in shared if one.series == series]
        then = sum(old[one.series, one.case]["units"] for one in each)
        if sum(one.units for one in each) >= LIMIT * then:
            found.append(Regression(series, "all cases", "time", then, sum(one.units for one in each)))
    for one in shared:
        peak = old[one.series, one.case]["peak_bytes"]
        if peak and one.peak_bytes >= LIMIT * peak:
            found.append(Regression(one.series, one.case, "memory", peak, one.peak_bytes))
    return found


def _median(run: Callable[[], Any], device: str, times: int) -> float:
    run()
    return statistics.median(once(run, torch.device(device))[1] for _ in range(times))


def read(path: Path) -> list[dict[str, Any]]:
    """The figures of an earlier file. Raises BadInput for what is none."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        figures: list[dict[str, Any]] = loaded["results"]
        if loaded["schema"]["name"] != "attnoracle.own_speed" or not all(
            {"series", "units"} <= set(x) for x in figures
        ):
            raise KeyError("schema")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"--against {path}: expected a file that this wrote, {type(error).__name__}: {error}") from None
    return figures


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="own_speed", description="How fast verdicts come, and whether slower than before."
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--against", metavar="FILE", type=Path, help="an earlier --json")
    asked = parser.parse_args(words)
    try:
        before = read(asked.against) if asked.against else []
        device = settle(asked.device)
        figures = measure(device=device)
    except BadInput as error:
        print(f"own_speed: {error}", file=sys.stderr)
        return 2
    worse = regressions(before, figures)
    rate = len(figures) / sum(one.seconds for one in figures)
    for series, factor in growth(figures).items():
        chosen = [one for one in figures if one.series == series]
        seconds = "  ".join(f"{1e3 * one.seconds:7.1f} ms" for one in chosen)
        print(f"{series:<24}{seconds}   x{factor['seconds']:.1f} time, x{factor['bytes']:.1f} memory")
    print(f"{rate:.1f} checks a second in one process")
    for one in worse:
        print(f"SLOWER  {one}")
    if asked.json:
        summary = {"checks_per_second": rate, "growth": growth(figures), "regressions": len(worse), "limit": LIMIT}
        lists = {"results": [one.as_dict() for one in figures], "regressions": [asdict(one) for one in worse]}
        command = ["own_speed", "--device", device]
        asked.json.write_text(dumps(document("own_speed", command, environment(), summary, **lists)), encoding="utf-8")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
