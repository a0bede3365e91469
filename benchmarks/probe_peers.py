"""What the peers' contracts were read from: rows without keys, LSE precision, empty sides, packed masks, empty tensors.

python -m attnoracle.benchmarks.probe_peers FILE.json      on a machine with a GPU
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..oracle.guests.known import find
from ..reference import sparse_mqa

SCALE = 0.07


def _draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16()


def _cu(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).int()


def _load(name: str) -> Callable[..., tuple[Tensor, ...]]:
    return find(name).load()


def _told(values: Tensor) -> list[float | str]:
    """The first four; what JSON has no number for as a word."""
    return [value if math.isfinite(value) else str(value) for value in values.flatten().float()[:4].tolist()]


def empty_rows_dense(name: str, d: int = 192, v: int = 128) -> dict[str, Any]:
    """Three causal queries over one key, two queries over none, then a whole request."""
    q, k, values = _draw(8, 2, d, seed=1), _draw(4, 2, d, seed=2), _draw(4, 2, v, seed=3)
    out, lse = _load(name)(q, k, values, _cu(3, 2, 3), _cu(1, 0, 3), scale=SCALE)
    return {
        "k<q out": _told(out[0, 0]),
        "k<q lse": _told(lse[:2]),
        "k=0 out": _told(out[3, 0]),
        "k=0 lse": _told(lse[3:5]),
    }


def empty_rows_masked(name: str, d: int = 192, v: int = 128) -> dict[str, Any]:
    """Four queries over 40 keys, the second sees none."""
    q, k, values = _draw(4, 2, d, seed=1), _draw(40, 2, d, seed=2), _draw(40, 2, v, seed=3)
    mask = torch.full((1, 4, 2), -1, dtype=torch.int32, device="cuda")
    mask[0, 1] = 0
    out, lse = _load(name)(q, k, values, mask, _cu(4), _cu(40), scale=SCALE)
    return {"out": _told(out[1, 0]), "lse": _told(lse[1])}


def empty_rows_sparse(name: str) -> dict[str, Any]:
    """Three queries, the second selects nothing."""
    q, kv = _draw(3, 64, 576, seed=1), _draw(200, 576, seed=2)
    indices = torch.arange(128, device="cuda").repeat(3, 1).int()
    indices[1] = -1
    out, lse = _load(name)(q, kv, indices, scale=SCALE, value_dim=512)
    return {"out": _told(out[1, 0]), "lse": _told(lse[1])}


def pages_probe(name: str) -> dict[str, Any]:
    """Rows of fp8_ds_mla with scales that are no powers of two; the second of three queries selects nothing.

    The answer's distance from exact attention over what the rows hold, and over the rows with their scales rounded to
    bf16, relative in the Frobenius norm.
    """
    generator = torch.Generator("cuda").manual_seed(2)
    codes = (torch.randn(256, 512, generator=generator, device="cuda") * 100).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.rand(256, 4, generator=generator, device="cuda") * 0.01 + 0.005
    q, rope = _draw(3, 64, 576, seed=1), _draw(256, 64, seed=3).contiguous().view(torch.uint8)
    indices = torch.arange(128, device="cuda").repeat(3, 1).int()
    indices[1] = -1
    call: dict[str, Any] = {"scale": SCALE, "value_dim": 512, "cache_format": "fp8_ds_mla"}
    seen = {"as stored": scales, "rounded to bf16": scales.bfloat16().float()}
    rows = {label: torch.cat((codes, one.contiguous().view(torch.uint8), rope), 1) for label, one in seen.items()}
    answers = {label: sparse_mqa(q.double(), one, indices, **call)[0] for label, one in rows.items()}
    out, lse = _load(name)(q, rows["as stored"].view(4, 64, 656), indices, **call)
    told: dict[str, Any] = {"empty out": _told(out[1, 0]), "empty lse": _told(lse[1])}
    return told | {f"from scales {label}": float((out - one).norm() / one.norm()) for label, one in answers.items()}


def lse_precision(name: str, base: float) -> dict[str, float]:
    """Largest LSE error, natural units, over 64 queries x 64 heads x 2048 random keys."""
    q, kv = _draw(64, 64, 576, seed=1), _draw(8192, 576, seed=2)
    generator = torch.Generator("cuda").manual_seed(3)
    indices = torch.rand(64, 8192, generator=generator, device="cuda").argsort(1)[:, :2048].int().contiguous()
    _, lse = _load(name)(q, kv, indices, scale=0.1352, value_dim=512)
    _, exact = sparse_mqa(q.double(), kv.double(), indices, scale=0.1352, value_dim=512)
    return {"largest error": float((lse.double() * base - exact).abs().max())}


def merge_sides(name: str) -> dict[str, Any]:
    """One side empty and holding NaN, one side empty and holding 0, both empty."""
    a, b = _draw(3, 2, 128, seed=1), _draw(3, 2, 128, seed=2)
    lse_a, lse_b = torch.ones(3, 2, device="cuda"), torch.ones(3, 2, device="cuda")
    lse_b[:] = -torch.inf
    lse_a[2] = -torch.inf
    a[2], b[0], b[1], b[2] = 0, torch.nan, 0, 0
    out, lse = _load(name)(a, lse_a, b, lse_b)
    rows = ("empty side NaN", "empty side 0", "both empty")
    return {row: {"out": _told(out[i, 0]), "lse": _told(lse[i])} for i, row in enumerate(rows)}


def packed_mask() -> dict[str, Any]:
    """The same mask of two requests, packed by ``plan()`` and handed over packed."""
    import flashinfer
    from flashinfer.quantization import segment_packbits

    q, k, values = _draw(12, 2, 192, seed=1), _draw(100, 2, 192, seed=2), _draw(100, 2, 128, seed=3)
    cu_q, cu_k = _cu(5, 7), _cu(40, 60)
    generator = torch.Generator("cuda").manual_seed(4)
    mask = torch.rand(5 * 40 + 7 * 60, generator=generator, device="cuda") < 0.5
    packed, _ = segment_packbits(mask, torch.tensor([0, 200, 620], device="cuda").int(), bitorder="little")
    answers = []
    for given in ({"custom_mask": mask}, {"packed_custom_mask": packed}):
        workspace = torch.empty(2**27, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa2")
        wrapper.plan(cu_q, cu_k, 2, 2, 192, head_dim_vo=128, sm_scale=SCALE, q_data_type=torch.bfloat16, **given)
        answers.append(wrapper.run(q, k, values).float())
    off = (answers[0] - answers[1]).abs()
    return {"first request differs by": float(off[:5].max()), "second request differs by": float(off[5:].max())}


_APART = """
import flashinfer, torch
try:
    print("returned", *({call}).shape)
except Exception as error:
    print(type(error).__name__, *str(error).strip().splitlines()[:1])
try:
    torch.zeros(1, device="cuda")
except Exception as error:
    print("the next launch:", type(error).__name__, *str(error).strip().splitlines()[:1])
"""


def empty_selection(call: str) -> dict[str, Any]:
    """A call in a process of its own: what it printed of the outcome, and how that process ended."""
    done = subprocess.run([sys.executable, "-c", _APART.format(call=call)], capture_output=True, text=True)
    ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    return {"ended": ended, "said": done.stdout.splitlines() or done.stderr.strip().splitlines()[-1:]}


def _ragged(rows: int, columns: int) -> str:
    counts = f"torch.zeros({rows}, dtype=torch.int32, device='cuda')"
    return f"flashinfer.top_k_ragged_transform(torch.zeros({rows}, {columns}, device='cuda'), {counts}, {counts}, 1)"


LN2 = 0.6931471805599453
FA2, FA3 = "sparse_mqa/flashinfer-fa2", "sparse_mqa/flashinfer-fa3"
PROBES: dict[str, Callable[[], Any]] = {
    "empty rows, dense fa2": partial(empty_rows_dense, "dense_mha/flashinfer-fa2"),
    "empty rows, dense fa3": partial(empty_rows_dense, "dense_mha/flashinfer-fa3"),
    "empty rows, masked fa2": partial(empty_rows_masked, "masked_mha/flashinfer-fa2"),
    "empty rows, MLA fa2": partial(empty_rows_sparse, FA2),
    "empty rows, MLA fa3": partial(empty_rows_sparse, FA3),
    "empty rows, FlashMLA": partial(empty_rows_sparse, "sparse_mqa/flashmla"),
    "LSE, MLA fa2": partial(lse_precision, FA2, LN2),
    "LSE, MLA fa3": partial(lse_precision, FA3, LN2),
    "LSE, FlashMLA": partial(lse_precision, "sparse_mqa/flashmla", 1.0),
    "merge_state": partial(merge_sides, "merge_lse/flashinfer-state"),
    "merge_states": partial(merge_sides, "merge_lse/flashinfer-states"),
    "packed_custom_mask": packed_mask,
    "pages, FlashMLA decode": partial(pages_probe, "sparse_mqa/flashmla-decode"),
    "empty rows, dense FA4": partial(empty_rows_dense, "dense_mha/fa4"),
    "merge, vLLM": partial(merge_sides, "merge_lse/vllm"),
    "top_k, no row": partial(empty_selection, "flashinfer.top_k(torch.zeros(0, 3, device='cuda'), 1)[1]"),
    "top_k_ragged_transform, no row": partial(empty_selection, _ragged(0, 3)),
    "top_k_ragged_transform, no column": partial(empty_selection, _ragged(4, 0)),
    "merge, vLLM behind its mask": partial(merge_sides, "merge_lse/vllm-masked"),
}


def main(files: list[str]) -> int:
    if len(files) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    facts = {}
    for name, probe in PROBES.items():
        try:
            facts[name] = probe()
        except Exception:
            facts[name] = traceback.format_exc(limit=1).splitlines()[-1]
        print(f"{name}: {facts[name]}", flush=True)
    Path(files[0]).write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
