"""How good diagnosis is: every fault of the catalogue is diagnosed on its first failing case, and the answers counted.

Entries of the dictionary that return the very same on the inputs are one answer, found before anything is ranked; who
cannot be told apart there is no miss. Each fault is diagnosed a second time by the families with free parameters alone,
without any entry of the catalogue: what is explained then is not recognised but understood.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...fixtures import PATH
from ..audit.committed import recorded as audited
from ..case import Case
from ..cause.again import here
from ..check import check
from ..errors import OracleError
from ..faults import FAULTS, Fault
from ..shrink import Trials, shrink
from . import layer_measure
from .dictionary import catalogue
from .exact import LAYOUTS
from .hypothesis import Hypothesis
from .marks import marks
from .observation import Raised, observe
from .ranking import Known, Ranked, grouped, scored
from .truth import alike, ideas_of, stage_of_fault

FILE = PATH / "faults" / "diagnosis.json"
SCHEMA = "attnoracle.diagnosis/1"
#: Seconds for shrinking one case; one that takes longer is counted as cut off, and as large as it was then.
SECONDS = 60.0
#: Every n-th fault is put to the families alone as well.
EVERY = 10


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one fault."""

    fault: str
    planted_in: str
    case: str
    rank: int
    """Place of the right answer, from 1; 0 if it is not there."""
    first: str
    """The idea that came first."""
    words: str
    explained: float
    equals: tuple[str, ...]
    """Entries that return the same as the first one."""
    stage: str
    stage_right: bool
    alone: float | None
    """What the families explain without the catalogue; None where that was not looked at."""
    alone_stage: bool
    """Whether their best explanation that fits has the right stage."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Size:
    """How small the first failing case of a fault became."""

    fault: str
    case: str
    tokens: int
    heads: int
    runs: int
    seconds: float
    """Of the processor: what else the machine does is left out."""
    cut_off: bool
    """Whether ``SECONDS`` of the clock ended it."""


def diagnosed(fault: Fault, case: Case, known: Known, *, thorough: bool) -> Trial:
    """One fault on one case."""
    started = time.perf_counter()
    verdict = check(case, fault.implementation(), sequence="sequence" in fault.options)
    found: list[Hypothesis] = marks(verdict, fault.implementation, "cpu")
    ranked: list[Ranked] = []
    alone: list[Ranked] = []
    if not found:
        try:
            every = scored(observe(case, fault.implementation()), known, thorough=thorough)
        except Raised:
            every = []
        own = {entry.name for entry in catalogue(case.operator)}
        alone = grouped([one for one in every if one.hypothesis.name not in own])
        ranked = grouped(every)
    right, stage = set(ideas_of(fault)), stage_of_fault(fault)
    answers = [({one.name}, one.stage) for one in found] or [
        ({one.hypothesis.name, *(other.name for other in one.also)}, one.hypothesis.stage) for one in ranked
    ]
    place = next((i for i, (names, _) in enumerate(answers, 1) if names & right), 0)
    first = found[0] if found else ranked[0].hypothesis if ranked else None
    # One that cannot be told from the right one is at the right stage, whichever of them is named first.
    at = place == 1 or bool(first and alike(first.stage, stage, case.operator))
    best = alone[0] if alone else None
    return Trial(
        fault=fault.name,
        planted_in=fault.planted_in,
        case=case.id,
        rank=place,
        first=first.name if first else "",
        words=first.words if first else "",
        explained=1.0 if found else round(ranked[0].explained, 5) if ranked else 0.0,
        equals=tuple(sorted(other.name for other in ranked[0].also)) if ranked else (),
        stage=stage,
        stage_right=at,
        alone=(round(best.explained, 5) if best else 0.0) if thorough and not found else None,
        alone_stage=bool(thorough and best and best.fits and alike(best.hypothesis.stage, stage, case.operator)),
        seconds=round(time.perf_counter() - started, 3),
    )


def shrunk(fault: Fault, case: Case) -> Size:
    """The smallest case of one fault."""
    sequence = "sequence" in fault.options
    trials = Trials(here(fault.implementation, "cpu", sequence=sequence))
    started = time.process_time()
    found = shrink(case, trials, most_seconds=SECONDS)
    spent, cut = time.process_time() - started, found.seconds >= SECONDS
    return Size(fault.name, found.case.id, _tokens(found.case), found.case.heads, found.runs, round(spent, 3), cut)


def _tokens(case: Case) -> int:
    """Tokens of a case: queries of the selection and the merge, keys where there are any more of them."""
    return max(case.queries, case.keys)


def plan() -> list[tuple[Fault, Case]]:
    """Every fault with the case on which the audit saw it first, those of one case together.

    The cases come in the order of their hashes, so that a measurement that was broken off is a fair sample.
    """
    cases = {name: Case.parse(entry["case"]) for name, entry in audited()["faults"].items()}
    pairs = [(fault, cases[fault.name]) for fault in FAULTS if fault.name in cases]
    return sorted(pairs, key=lambda pair: (hashlib.sha256(pair[1].id.encode()).hexdigest(), pair[1].id))


def run(
    journal: Path,
    *,
    shrinking: bool,
    wanted: Callable[[str], bool] = lambda name: True,
    part: int = 0,
    parts: int = 1,
) -> None:
    """Measure what the journal does not have yet, one line a fault; ``part`` of ``parts``, whole cases each."""
    done = {json.loads(line)["fault"] for line in journal.read_text().splitlines()} if journal.exists() else set()
    known: Known = {}
    last = ""
    pairs = plan()
    order = {fault.name: place for place, fault in enumerate(FAULTS)}
    number = {case: place for place, case in enumerate(dict.fromkeys(case.id for _, case in pairs))}
    for fault, case in pairs:
        if fault.name in done or not wanted(fault.name) or number[case.id] % parts != part:
            continue
        if case.id != last:
            known, last = {}, case.id
        try:
            entry: Trial | Size = (
                shrunk(fault, case)
                if shrinking
                else diagnosed(fault, case, known, thorough=order[fault.name] % EVERY == 0)
            )
        except OracleError as error:
            print(f"{fault.name}: {error}")
            continue
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def load_journal(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What was measured of one kind, by all parts; each fault once."""
    lines = [line for path in sorted(folder.glob(f"{kind}-*.jsonl")) for line in path.read_text().splitlines()]
    return list({entry["fault"]: entry for entry in map(json.loads, lines)}.values())


def summary(
    trials: Iterable[Mapping[str, Any]], sizes: Iterable[Mapping[str, Any]], layer: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The figures: in all, and by where the faults are planted."""
    trials, sizes = list(trials), list(sizes)
    places = ("simulated", "reference-pipeline", "triton")
    small = [size for size in sizes if size["tokens"] <= 4 and size["heads"] <= 2]
    return {
        "diagnosis": {"all": _shares(trials)}
        | {place: _shares([t for t in trials if t["planted_in"] == place]) for place in places}
        | {"layouts": _shares([t for t in trials if t["case"].partition(":")[0] in LAYOUTS])},
        "layer": layer_measure.summary(layer),
        "shrinking": {
            "faults": len(sizes),
            "at_most_4_tokens_2_heads": len(small),
            "cut_off": sum(size["cut_off"] for size in sizes),
            "median_tokens": statistics.median(size["tokens"] for size in sizes) if sizes else None,
            "median_heads": statistics.median(size["heads"] for size in sizes) if sizes else None,
            "median_runs": statistics.median(size["runs"] for size in sizes) if sizes else None,
            "median_seconds": round(statistics.median(size["seconds"] for size in sizes), 2) if sizes else None,
        },
    }


def _shares(trials: list[Mapping[str, Any]]) -> dict[str, Any]:
    count = len(trials)
    numeric = [t for t in trials if t["alone"] is not None]

    def share(hits: int, of: int) -> float:
        return round(hits / of, 4) if of else 0.0

    return {
        "faults": count,
        "first": share(sum(t["rank"] == 1 for t in trials), count),
        "top_three": share(sum(1 <= t["rank"] <= 3 for t in trials), count),
        "right_stage": share(sum(t["stage_right"] for t in trials), count),
        "told_apart_from_all_others": share(sum(t["rank"] == 1 and not t["equals"] for t in trials), count),
        "families_alone_of": len(numeric),
        "families_alone_explain": share(sum(t["alone"] >= 0.98 for t in numeric), len(numeric)),
        "families_alone_right_stage": share(sum(t["alone_stage"] for t in numeric), len(numeric)),
    }


def text(
    diagnosis: list[dict[str, Any]],
    shrinking: list[dict[str, Any]],
    layer: list[dict[str, Any]],
    environment: Mapping[str, Any],
) -> str:
    """The committed file: the figures, and a line for every fault."""
    facts = {name: environment[name] for name in ("attnoracle", "git", "date", "python", "torch", "triton", "cpus")}
    order = {fault.name: place for place, fault in enumerate(FAULTS)}
    parts = [f'  "schema": {json.dumps(SCHEMA)}', f'  "environment": {json.dumps(facts)}']
    parts.append(f'  "catalogue": {len(plan())}')
    parts.append(f'  "summary": {json.dumps(summary(diagnosis, shrinking, layer), indent=2)}'.replace("\n", "\n  "))
    for name, entries in (("faults", diagnosis), ("shrunk", shrinking), ("layer", layer)):
        rows = sorted(entries, key=lambda entry: order.get(entry["fault"], len(order)))
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        parts.append(f'  "{name}": [\n{lines}\n  ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


__all__ = ("FILE", "Size", "Trial", "load_journal", "plan", "run", "summary", "text")
