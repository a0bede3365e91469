"""How many hidden faults a campaign finds, guided and at random, on the same budget:

    python -m attnoracle.benchmarks.hidden_faults --minutes 10 --json hidden.json

Ten faults of the catalogue act on lengths that the quick suite does not draw (``oracle/faults/hidden.py``). Each search
starts from an empty corpus, one after the other, on the same workers; with ``--keep FOLDER`` it goes on from that one.
``--at-once`` runs both at the same time, each with its own workers, where there are cores for both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..oracle.campaign.corpus import Corpus
from ..oracle.cli.app import main as attnoracle
from ..oracle.environment import environment
from ..oracle.faults.hidden import HIDDEN
from ..oracle.reports.json_report import document, dumps

ORACLE = (__package__ or "").rpartition(".")[0] + ".oracle"


def searched(guide: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The document of one campaign."""
    target = folder / f"{guide}.json"
    with Corpus(folder / guide) as corpus:
        judged = len(corpus.results)
    if options.cases and judged >= options.cases and target.exists():
        return _read(target)
    left = max(1, (options.cases or 0) - judged)
    budget = ["--cases", str(left)] if options.cases else ["--minutes", str(options.minutes)]
    words = [
        *("campaign", *budget, "--implementation", "hidden:*", "--guide", guide, "--device", "cpu", "--quiet"),
        *("--geometry", options.geometry, "--seed"),
        *(str(options.seed), "--jobs", str(options.jobs), "--corpus", str(folder / guide), "--json", str(target)),
    ]
    code = subprocess.run([sys.executable, "-m", ORACLE, *words]).returncode if options.at_once else attnoracle(words)
    if code not in (0, 1):
        sys.exit(f"hidden_faults: the campaign ended with exit code {code}")
    return _read(target)


def _read(target: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found


def results(campaigns: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a fault: what each search found of it."""
    entries = []
    for one in HIDDEN:
        entry: dict[str, Any] = {"name": one.name, "fault": one.fault, "operator": one.operator, "acts": one.lengths}
        for guide, told in campaigns.items():
            mine = [found for found in told["findings"] if found["implementation"] == f"hidden:{one.name}"]
            entry[guide] = {
                "found": bool(mine),
                "place": min((found["place"] for found in mine), default=None),
                "case": mine[0]["case"] if mine else None,
                "conclusion": mine[0]["conclusion"] if mine else None,
            }
        entries.append(entry)
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of each search")
    parser.add_argument("--cases", type=int, help="instead of minutes")
    parser.add_argument("--geometry", default="tiny")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for both corpora, to go on from")
    parser.add_argument("--at-once", action="store_true", help="both searches at the same time")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder)
        guides = ("coverage", "random")
        with ThreadPoolExecutor(len(guides) if options.at_once else 1) as at_work:
            told_by = at_work.map(lambda guide: searched(guide, options, place), guides)
            campaigns = dict(zip(guides, told_by, strict=True))
    faults = results(campaigns)
    keys = ("seconds", "cases_per_second", "classes", "pass", "fail", "weak")
    summary: dict[str, Any] = {
        guide: {
            "found": sum(entry[guide]["found"] for entry in faults),
            "of": len(faults),
            "cases": told["summary"]["corpus"]["cases"],
            **{key: told["summary"].get(key, 0) for key in keys},
        }
        for guide, told in campaigns.items()
    }
    summary |= {"minutes": None if options.cases else options.minutes, "jobs": options.jobs, "seed": options.seed}
    summary["geometry"] = options.geometry
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    options.json.write_text(dumps(document("hidden-faults", command, environment(), summary, faults=faults)))
    for guide in campaigns:
        told = summary[guide]
        print(f"{guide:9} {told['found']:2} of {told['of']}  {told['cases']} cases, {told['classes']} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
