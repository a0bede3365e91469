"""What stands against a FlashInfer kernel here, in words. Imports nothing of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from ..implementation import Facts

Supports = Callable[[Facts], str | None]

PACKAGE = "flashinfer-python"
#: First release whose ragged prefill takes 192/128 and 256/256 in fa3 and whose MLA takes a cache without rope dims.
OLDEST = Version("0.6.18")
#: Query/key and value head dims that both backends are judged at.
MHA_DIMS = ((192, 128), (256, 256))
LATENT = 512
ROPE = (0, 64)
#: Largest k of the radix selection that keeps a row's candidates in shared memory.
MOST_SELECTED = 2048


def installed() -> str | None:
    """Version of FlashInfer, or None. Imports nothing."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def package() -> str | None:
    """Why FlashInfer cannot be used in this environment, or None."""
    version = installed()
    if version is None or importlib.util.find_spec("flashinfer") is None:
        return f"flashinfer is not importable; pip install '{PACKAGE}>={OLDEST}'"
    if Version(version) < OLDEST:
        return f"needs {PACKAGE} {OLDEST} or newer, got {version}"
    return None


def compiler() -> str | None:
    """Why nothing can be compiled at first use, or None: FlashInfer builds a module a dtype and pair of head dims."""
    homes = [home for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if home]
    if shutil.which("nvcc") or any((Path(home) / "bin" / "nvcc").is_file() for home in homes):
        return None
    if importlib.util.find_spec("flashinfer_jit_cache") is not None:
        return None
    return (
        "flashinfer compiles its kernels at first use and found no nvcc; set CUDA_HOME or install flashinfer-jit-cache"
    )


def _machine(facts: Facts, *dtypes: str, hopper: bool = False) -> str | None:
    if facts["device"] != "cuda":
        return f"flashinfer needs a CUDA device, got {facts['device']}"
    if hopper and facts["capability"] != (9, 0):
        return f"fa3 is built for compute capability 9.0 alone, got {facts['capability']}"
    if facts["capability"] < (8, 0):
        return f"these kernels need compute capability 8.0, got {facts['capability']}"
    reason = package() or compiler()
    if reason is None and facts["dtype"] not in dtypes:
        reason = f"expected one of the dtypes {', '.join(dtypes)}, got {facts['dtype']}"
    return reason


def _mha(facts: Facts) -> str | None:
    dims = facts["d"], facts["v"]
    if dims not in MHA_DIMS:
        known = " or ".join(f"{d}/{v}" for d, v in MHA_DIMS)
        return f"expected QK/V head dims of {known}, got {dims[0]}/{dims[1]}"
    if 0 in (sum(facts["q_lens"]), sum(facts["k_lens"])):
        return "plan() needs at least one query and one key"
    return None


def dense_fa2(facts: Facts) -> str | None:
    # partial results are declared as bf16, so fp16 would be judged by another kernel's formats
    return _machine(facts, "bf16") or _mha(facts)


def dense_fa3(facts: Facts) -> str | None:
    return _machine(facts, "bf16", hopper=True) or _mha(facts)


def masked_fa2(facts: Facts) -> str | None:
    return _machine(facts, "bf16") or _mha(facts)


def _mla(facts: Facts, *, hopper: bool) -> str | None:
    reason = _machine(facts, "bf16", hopper=hopper)
    if reason is not None:
        return reason
    if facts["cache_format"] != "model":
        return f"expected a cache of the model's dtype, got {facts['cache_format']}"
    if facts["c"] != LATENT or facts["r"] not in ROPE:
        rope = " or ".join(map(str, ROPE))
        return f"expected a latent rank of {LATENT} and {rope} rope dims, got {facts['c']}+{facts['r']}"
    if "sink" in facts["options"]:
        return "the MLA wrapper takes no attention sink (0.6.18)"
    return None


def mla_fa2(facts: Facts) -> str | None:
    return _mla(facts, hopper=False)


def mla_fa3(facts: Facts) -> str | None:
    return _mla(facts, hopper=True)


def merge(facts: Facts) -> str | None:
    reason = _machine(facts, "bf16", "fp16")
    if reason is None and facts["layout"] == "strided":
        return "merge_state needs contiguous tensors, got layout strided"
    if reason is None and facts["v"] not in (64, 128, 256, 512):
        return f"expected a head dim of 64, 128, 256 or 512, got {facts['v']}"
    return reason


def select(facts: Facts) -> str | None:
    reason = _machine(facts, "bf16", "fp16", "fp32")
    if reason is None and facts["layout"] == "strided":
        return "top_k needs contiguous rows, got layout strided"
    if reason is None and facts["k"] > MOST_SELECTED:
        return f"expected a top-k of at most {MOST_SELECTED}, got {facts['k']}"
    return reason
