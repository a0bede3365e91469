"""How long one production case takes to verify: reference, budget and verdict of 4096 queries x 128 heads x top-2048.

    python -m attnoracle.benchmarks.verify_production [--json FILE] [--device cuda]

Times the judge alone, after the implementation has answered: median of several runs after one that warms up, and the
peak of device memory beyond inputs and outputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch

from ..oracle.config import load
from ..oracle.environment import environment
from ..oracle.guests.known import find
from ..oracle.inputs import make
from ..oracle.operators import operator
from ..oracle.suites import suite

RUNS = 5
GIB = 2.0**30


def measure(device: str, implementation: str = "sparse_mqa/triton") -> dict[str, Any]:
    """Median and spread of the judge's seconds, and its peak memory in GiB."""
    case = next(case for case in suite("production") if case.operator == "sparse_mqa")
    one = find(implementation)
    inputs = make(case, load(case.geometry), device)
    arguments = inputs.kwargs()
    outputs = one.prepare(**arguments)()
    seconds, judgement = [], None
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        judgement = operator(case.operator).judge(arguments, outputs, one.contract, True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    assert judgement is not None
    return {
        "case": case.id,
        "implementation": implementation,
        "findings": len(judgement.findings),
        "measures": judgement.measures,
        "first_seconds": seconds[0],
        "median_seconds": statistics.median(seconds[1:]),
        "fastest_seconds": min(seconds[1:]),
        "slowest_seconds": max(seconds[1:]),
        "peak_gib_beyond_inputs_and_output": (torch.cuda.max_memory_allocated() - base) / GIB,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the verification of one production case on a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("verify_production needs a CUDA device; there is none here", file=sys.stderr)
        return 2
    document = {
        "schema": {"name": "attnoracle.verify_production", "version": 1},
        "command": "python -m attnoracle.benchmarks.verify_production",
        "environment": environment(),
        "results": [measure(arguments.device)],
    }
    text = json.dumps(document, indent=2)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
