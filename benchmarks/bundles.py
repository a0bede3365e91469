"""Bundles of planted Triton faults, made on a GPU and replayed elsewhere: ``python -m attnoracle.benchmarks.bundles``.

``make FOLDER`` shrinks the first failing case of each fault on the GPU and writes a bundle a fault; ``replay FOLDER``
runs what is there again, on a CPU by default, and says for each whether the failure is the same and, if not, why. Some
faults of each operator that has a shipped Triton kernel are taken, or those named.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..oracle.audit.committed import recorded
from ..oracle.bundle import read, replay, write
from ..oracle.case import Case
from ..oracle.cause.again import here
from ..oracle.device import settle
from ..oracle.errors import OracleError
from ..oracle.faults import FAULTS, Fault
from ..oracle.faults import fault as by_name
from ..oracle.shrink import Trials, shrink

#: Faults taken of one operator.
EACH = 3
SECONDS = 20.0


def chosen(names: Sequence[str] = ()) -> list[Fault]:
    """The faults named, or the first ``EACH`` of every operator that are planted in a shipped Triton kernel."""
    if names:
        return [by_name(name) for name in names]
    taken: Counter[str] = Counter()
    found = []
    for one in FAULTS:
        if (
            one.planted_in == "triton"
            and one.expected_check not in ("rerun", "sequence")
            and taken[one.operator] < EACH
        ):
            taken[one.operator] += 1
            found.append(one)
    return found


def make(folder: Path, faults: Sequence[Fault], device: str) -> dict[str, str]:
    """A bundle in ``folder/<fault>`` for each fault; what became of each, by name."""
    cases = recorded()["faults"]
    told = dict[str, str]()
    for one in faults:
        try:
            found = shrink(
                Case.parse(cases[one.name]["case"]), Trials(here(one.implementation, device)), most_seconds=SECONDS
            )
            write(folder / one.name, found.verdict, one.implementation(), original=found.original.id)
            told[one.name] = found.case.id
        except OracleError as error:
            told[one.name] = f"no bundle: {error}"
        print(f"{one.name}: {told[one.name]}", flush=True)
    return told


def replayed(folder: Path, device: str) -> dict[str, str]:
    """What the replay of each bundle says, by fault."""
    told = dict[str, str]()
    for place in sorted(path for path in folder.iterdir() if (path / "bundle.json").is_file()):
        found = replay(read(place), by_name(place.name).implementation, device)
        told[place.name] = found.outcome
        print(f"{place.name}: {found}", flush=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attnoracle.benchmarks.bundles", description=__doc__)
    parser.add_argument("what", choices=("make", "replay"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="[default: cuda to make, cpu to replay]")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = settle(given.device or ("cuda" if given.what == "make" else "cpu"))
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.what == "make":
        told = make(given.folder, chosen(given.fault), device)
    else:
        told = replayed(given.folder, device)
        print(", ".join(f"{count} {outcome}" for outcome, count in Counter(told.values()).most_common()))
    if given.json:
        given.json.write_text(json.dumps({"device": device, given.what: told}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
