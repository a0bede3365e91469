"""Every kernel compiles for Hopper and fits its shared memory, seen without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnoracle.optimized.triton_kernels import launch

KERNELS = {
    "_dense_mha_kernel", "_masked_mha_kernel", "_visible_tiles_kernel", "_sparse_mqa_kernel", "_indexer_scores_kernel",
    "_sparse_mqa_quantised_kernel",
    "_topk_select_kernel", "_merge_lse_kernel", "_quantize_kernel", "_write_cache_kernel", "_write_index_kernel",
    "_gather_kernel", "_gather_index_kernel", "_convert_indices_kernel", "_build_mask_kernel",
    "_paged_indexer_scores_kernel",
}  # fmt: skip
#: Kernels that hold fp8 or counts alone; they know no type of a model.
TYPELESS = {
    "_sparse_mqa_quantised_kernel", "_topk_select_kernel", "_convert_indices_kernel", "_build_mask_kernel",
    "_paged_indexer_scores_kernel",
}  # fmt: skip
HOPPER = {
    "attention_kernel", "_visible_tiles_kernel", "_sparse_mqa_kernel", "_mark_kernel", "_list_kernel",
    "_indexer_scores_kernel", "_topk_select_kernel",
}  # fmt: skip


PARTS = {"bfloat16": KERNELS, "float32": KERNELS - TYPELESS, "hopper": HOPPER}


@pytest.mark.slow
def test_compiles_for_hopper(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # installed or not
    script = Path(__file__).with_name("compile_kernels.py")
    run = subprocess.run(
        [sys.executable, str(script), *PARTS], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    for part, wanted in PARTS.items():
        assert {entry["kernel"] for entry in compiled if entry["part"] == part} == wanted
    whole = [entry["kernel"] for entry in compiled if entry["whole"]]
    # One name may be two kernels, Triton's and the one for Hopper alone.
    assert len(whole) == len(KERNELS) + len(HOPPER - {"_visible_tiles_kernel"}) and set(whole) == KERNELS | HOPPER
    assert max(entry["shared"] for entry in compiled) <= launch.ROOM[9, 0]
