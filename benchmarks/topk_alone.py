"""Top-k selection against bare ``torch.topk``, which knows no windows: on scores whose windows are whole rows.

    python -m attnoracle.benchmarks.topk_alone [--json FILE]      on a machine with a Hopper GPU

4,096 rows of 32,768 scores, k 2,048, of kinds that a search by counts finds easy and hard. Each answer is first held
to be exact: as many scores above the k-th largest as there are, and the rest equal to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..oracle.device import settle
from ..oracle.environment import environment
from ..oracle.errors import OracleError
from ..oracle.guests.known import find
from ..oracle.reports.json_report import document, dumps
from .bench.timing import interleaved

ROWS, COLUMNS, K = 4096, 32768, 2048
SECONDS = 0.1


def _scaled(x: Tensor) -> Tensor:
    return x * torch.exp2(torch.arange(len(x), device=x.device) % 24 - 12.0)[:, None]


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "randn": lambda x: x,
    "scaled row by row": _scaled,
    "clustered": lambda x: 1000.0 + 1e-3 * x,
    "half zeros after ReLU": lambda x: x.clamp(min=0.0),
    "mostly zeros after ReLU": lambda x: (x - 2.0).clamp(min=0.0),
    "seven values": lambda x: (2.0 * x).round().clamp(-3.0, 3.0),
    "all equal": lambda x: torch.zeros_like(x),
}


def exact(scores: Tensor, indices: Tensor) -> bool:
    """Whether every row of ``indices`` [s, k] names k different columns of largest scores."""
    taken = scores.gather(1, indices.long())
    best = scores.topk(indices.shape[1], dim=1).values
    different = indices.sort(1).values.diff(dim=1).gt(0).all()
    return bool(different and torch.equal(taken.sort(1, descending=True).values, best))


def measure(
    kind: str, *, rows: int = ROWS, columns: int = COLUMNS, k: int = K, backend: str = "hopper", on: str = "cuda"
) -> dict[str, Any]:
    """Medians of the implementation and of torch's alone on one kind. Raises OracleError for a wrong answer."""
    device = torch.device(on)
    generator = torch.Generator(device).manual_seed(0)
    scores = KINDS[kind](torch.randn(rows, columns, generator=generator, device=device)).contiguous()
    ks = torch.zeros(rows, dtype=torch.int32, device=device)
    ke = torch.full_like(ks, columns)
    select = find(f"topk_select/{backend}").load()
    if not exact(scores, select(scores, ks, ke, k=k)[0]):
        raise OracleError(f"topk_select/{backend} on {kind}: its selection is not of the largest scores")
    ours, theirs = interleaved(
        [lambda: select(scores, ks, ke, k=k), lambda: torch.topk(scores, k, dim=1)], device, seconds=SECONDS
    )
    return {
        "kind": kind, "implementation": f"topk_select/{backend}", "rows": rows, "columns": columns, "k": k,
        "seconds": ours.median, "low": ours.low, "high": ours.high, "torch_seconds": theirs.median,
        "torch_low": theirs.low, "torch_high": theirs.high, "ratio": theirs.median / ours.median,
    }  # fmt: skip


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="topk_alone", description="Top-k selection against bare torch.topk.")
    parser.add_argument("--json", metavar="FILE", type=Path)
    asked = parser.parse_args(words)
    found = []
    try:
        settle("cuda")
        for kind in KINDS:
            found.append(one := measure(kind))
            told = f"{1e3 * one['seconds']:.3f} ms, torch.topk {1e3 * one['torch_seconds']:.3f} ms"
            print(f"{kind:<24} {told}, x{one['ratio']:.1f}")
    except OracleError as error:
        print(f"topk_alone: {error}", file=sys.stderr)
        return 2
    if asked.json:
        summary = {"worst_ratio": min(one["ratio"] for one in found)}
        known = document("topk_alone", ["topk_alone"], environment(), summary, results=found)
        asked.json.write_text(dumps(known), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
