"""How coverage grows with the cases of a campaign, and what a driver can plan: simulated, no kernel runs.

    python -m attnoracle.benchmarks.campaign_scale --cases 4096 --rate 10 --json scale.json

Cases are planned by the guide as a campaign would and taken as judged; the classes they cover are counted. With workers
that judge ``--rate`` cases a second each (a measured figure, given by hand) a number of cases becomes a time. What one
driver plans in a second is measured here, and is where more workers stop to help.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from ..optimized.catalogue import IMPLEMENTATIONS
from ..oracle.campaign.groups import GROUPS
from ..oracle.campaign.guide import ROUND, Guide, Mode
from ..oracle.campaign.result import Result
from ..oracle.campaign.space import Space, fitting_here
from ..oracle.config import names
from ..oracle.environment import environment
from ..oracle.reports.json_report import document, dumps

WORKERS = (1, 2, 4, 8, 16, 32, 64)


def grown(guide: Guide, cases: int) -> tuple[list[dict[str, Any]], float]:
    """Classes seen after every power of two of cases, and the processor seconds that planning took."""
    steps, spent, count = [], 0.0, 0
    for number in range(-(-cases // ROUND)):
        started = time.process_time()
        pairs = guide.plan(number)
        for pair in pairs:
            guide.learn(pair, Result("PASS", None, None, 0.0, "cpu"))
        spent += time.process_time() - started
        count += len(pairs)
        if count & (count - 1) == 0 or count >= cases:
            seen = {group: sum(len(groups[group]) for groups in guide.seen.values()) for group in GROUPS}
            steps.append({"cases": count, "classes": sum(seen.values()), **seen})
    return steps, spent


def times(steps: list[dict[str, Any]], rate: float, driver: float) -> list[dict[str, Any]]:
    """Seconds until so many cases, by the number of workers; a driver hands out ``driver`` cases a second at most."""
    found = []
    for workers in WORKERS:
        speed = min(workers * rate, driver)
        found.append(
            {
                "workers": workers,
                "cases_per_second": round(speed, 2),
                "saturated": workers * rate > driver,
                "seconds": {str(step["cases"]): round(step["cases"] / speed, 1) for step in steps},
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=4096)
    parser.add_argument("--rate", type=float, required=True, help="cases a second of one worker, measured")
    parser.add_argument("--backend", default="triton", help="implementations that take part")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    taking = tuple(one.name for one in IMPLEMENTATIONS if one.backend == options.backend)
    space = Space(taking, names(), largest=4096, most=1 << 30)
    curves = {}
    for mode in Mode:
        steps, spent = grown(Guide(space, 0, fitting_here(None), mode), options.cases)
        curves[mode.value] = {"steps": steps, "planned_per_second": round(steps[-1]["cases"] / spent, 1)}
    driver = curves["coverage"]["planned_per_second"]
    summary = {
        "cases": options.cases,
        "implementations": len(taking),
        "rate": options.rate,
        "planned_per_second": driver,
        "saturates_at_workers": round(driver / options.rate, 1),
    }
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    told = document(
        "campaign-scale",
        command,
        environment(),
        summary,
        growth=[{"guide": guide, **curve} for guide, curve in curves.items()],
        workers=times(curves["coverage"]["steps"], options.rate, driver),
    )
    options.json.write_text(dumps(told))
    print(f"one driver plans {driver:.0f} cases a second; {driver / options.rate:.0f} workers saturate it")
    for guide, curve in curves.items():
        for step in curve["steps"]:
            print(f"{guide:9} {step['cases']:6} cases  {step['classes']:7,} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
