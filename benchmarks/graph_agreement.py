"""Do the emulated and the real graph agree? Fault by fault, and call by call.

    python -m attnoracle.benchmarks.graph_agreement faults|calls --json FILE

``faults`` plants every graph fault under real graphs in this process and under the emulator in another one, since
Triton is either compiled or interpreted in a process, and compares the checks that saw it. ``calls`` makes every call
of ``ILLEGAL`` in a real capture without stopping it beforehand, notes what CUDA says, and whether the process can
still compute, draw random numbers and capture afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..oracle.environment import environment
from ..oracle.graphs.cuda import CudaMaker
from ..oracle.graphs.faults import GRAPH_FAULTS
from ..oracle.graphs.matrix import Job, Result, faults, run
from ..oracle.graphs.violation import CaptureFailed
from ..oracle.reports.graphs_report import fault_records
from ..oracle.reports.json_report import document, dumps

Call = Callable[[Tensor], Any]
#: What a capturing stream is expected to refuse.
ILLEGAL: dict[str, Call] = {
    "Tensor.tolist": lambda x: x.tolist(),
    "Tensor.item": lambda x: x.sum().item(),
    "Tensor.cpu": lambda x: x.cpu(),
    "bool": lambda x: bool(x.sum() > 0),
    "torch.equal": lambda x: torch.equal(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "index by a mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: torch.unique(x),  # type: ignore[no-untyped-call]
    "repeat_interleave": lambda x: x.repeat_interleave(x.long().clamp(0, 1)),
    "torch.tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "a host tensor moved": lambda x: torch.arange(4).to(x.device),
    "host and device mixed": lambda x: x + torch.ones(4),
    "synchronize": lambda x: torch.cuda.synchronize(),
}
#: What it is expected to allow.
LEGAL: dict[str, Call] = {
    "masked_fill": lambda x: x.masked_fill(x > 0, 0),
    "one value by a mask": lambda x: x.clone().__setitem__(x > 0, 0.0),
    "a host number": lambda x: x + torch.tensor(2.0),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(x.long().clamp(1, 1), output_size=4),
    "matmul": lambda x: x.view(2, 2) @ x.view(2, 2),
    "sort": lambda x: x.sort(),
}


def call(name: str, function: Call, legal: bool) -> dict[str, Any]:
    """One call in a real capture, and the state of the process afterwards."""
    x = torch.arange(4.0, device="cuda")
    said, named = "", None
    try:
        CudaMaker(strict=False).capture(name, lambda: function(x), {"x": x})
    except CaptureFailed as error:
        said, named = error.told, None if error.call is None else str(error.call)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"call": name, "expected_legal": legal, "captured": not said, "named": named, "said": said} | _usable()


def _usable() -> dict[str, Any]:
    try:
        x = torch.ones(4, device="cuda")
        computes = float((x * 2).sum()) == 8.0
        draws = bool(torch.rand(4, device="cuda").isfinite().all())
        graph = CudaMaker().capture("after", lambda: x + 1, {"x": x})
        graph.replay()
        return {"usable": computes and draws and float(graph.outputs.sum()) == 8.0}
    except Exception as error:
        return {"usable": False, "why_not": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def calls() -> dict[str, Any]:
    """Every call, legal ones first."""
    records = [call(name, function, True) for name, function in LEGAL.items()]
    records += [call(name, function, False) for name, function in ILLEGAL.items()]
    agree = sum(one["captured"] is one["expected_legal"] for one in records)
    summary = {"calls": len(records), "agree": agree, "usable": sum(one["usable"] for one in records)}
    for one in records:
        mark = "agrees " if one["captured"] is one["expected_legal"] else "DIFFERS"
        state = "" if one["usable"] else "; the process is not usable any more"
        print(f"{mark} {one['call']}: {'captured' if one['captured'] else one['said'][:90]}{state}", flush=True)
    return {"summary": summary, "calls": records}


def compared(device: str) -> dict[str, Any]:
    """Every fault on ``device`` and in the emulator."""
    started = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        pending = beside.submit(_emulated)
        played = {job.name: _played(job) for job in faults(GRAPH_FAULTS, device)}
        there = pending.result()
    records, agree = [], 0
    for job in faults(GRAPH_FAULTS, device):
        (real,) = fault_records([played[job.name]])
        emulated = there.get(job.name, {})
        same = real["caught"] and bool(emulated.get("caught"))
        agree += same
        records.append(
            {
                "name": job.name,
                "expected_check": real["expected_check"],
                "agree": same,
                "real": {key: real[key] for key in ("caught", "seen_by", "told", "error")},
                "emulated": {key: emulated.get(key) for key in ("caught", "seen_by", "told", "error")},
            }
        )
        others = set(real["seen_by"]) ^ set(emulated.get("seen_by") or ())
        more = f"; only one of them also says {', '.join(sorted(others))}" if others else ""
        print(f"{'agrees ' if same else 'DIFFERS'} {job.name}: {real['told'][:90]}{more}", flush=True)
    seconds = round(time.monotonic() - started, 1)
    return {"summary": {"faults": len(records), "agree": agree, "seconds": seconds}, "agreement": records}


def _played(job: Job) -> Result:
    try:
        return run(job)
    except Exception as error:
        return Result(job=job, steps=(), error=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _emulated() -> dict[str, dict[str, Any]]:
    """The faults' records of a process without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "emulated.json"
        command = [sys.executable, "-m", "attnoracle.oracle", "graphs", "--device", "cpu", "--fault", "*"]
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(
            [*command, "-q", "--json", str(file)], env=environ, timeout=120, capture_output=True, check=False
        )
        if not file.is_file():
            return {}
        return {one["name"]: one for one in json.loads(file.read_text())["faults"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["faults", "calls"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    given = parser.parse_args()
    found = calls() if given.what == "calls" else compared(given.device)
    summary = found.pop("summary")
    Path(given.json).write_text(dumps(document("graph_agreement", sys.argv, environment(), summary, **found)))
    print(summary)
    return 0 if summary["agree"] == summary.get("faults", summary.get("calls")) else 1


if __name__ == "__main__":
    raise SystemExit(main())
