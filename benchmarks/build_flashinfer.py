"""Compiles the FlashInfer modules that the implementations use, all at once, ahead of a run on a machine with a GPU.

    python -m attnoracle.benchmarks.build_flashinfer [--ragged-only] [NAME …]

``--ragged-only`` leaves out sources that are never called (paged prefill, masks of several items): half the work. The
library is then laid where FlashInfer looks for prebuilt ones, since it would compile the rest by itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

#: Parts of file names that no implementation here calls.
UNUSED = ("paged_kernel", "paged_sm90_kernel", "mask_3", "sm90_kernel_mask_2")


def modules() -> dict[str, Callable[[], Any]]:
    """Name to FlashInfer's specification of the module."""
    import torch
    from flashinfer.jit import cascade, quantization, topk
    from flashinfer.jit.attention import gen_batch_mla_module, gen_batch_prefill_module

    half, index = torch.bfloat16, torch.int32

    def prefill(backend: str, d: int, v: int) -> Callable[[], Any]:
        return lambda: gen_batch_prefill_module(backend, half, half, half, index, d, v, 0, False, False, False)

    def mla(backend: str, rope: int) -> Callable[[], Any]:
        return lambda: gen_batch_mla_module(backend, half, half, half, index, 512, rope, False)

    return {
        **{f"{b}-{d}-{v}": prefill(b, d, v) for b in ("fa3", "fa2") for d, v in ((192, 128), (256, 256))},
        **{f"mla-{backend}-{rope}": mla(backend, rope) for backend in ("fa3", "fa2") for rope in (64, 0)},
        "merge": cascade.gen_cascade_module,
        "packbits": quantization.gen_quantization_module,
        "topk": topk.gen_topk_module,
    }


def main(words: list[str]) -> int:
    trimmed = "--ragged-only" in words
    known = modules()
    names = [word for word in words if not word.startswith("--")] or list(known)
    started = time.monotonic()
    running = {}
    for name in names:
        spec = known[name]()
        if spec.is_aot:
            print(f"{name}: there already")
            continue
        if trimmed:
            spec.sources = [path for path in spec.sources if not any(part in path.name for part in UNUSED)]
        spec.build_dir.mkdir(parents=True, exist_ok=True)
        spec.write_ninja()
        command = ["ninja", "-C", str(spec.build_dir), "-f", str(spec.ninja_path)]
        running[name] = spec, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = 0
    for name, (spec, process) in running.items():
        told, _ = process.communicate()
        if process.returncode:
            failed += 1
            print(f"{name}: failed\n{told[-2000:]}")
            continue
        if trimmed:
            spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(spec.jit_library_path, spec.aot_path)
        print(f"{name}: built by second {time.monotonic() - started:.0f}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
