"""Features of the libraries that are installed, found by trying or by signature rather than by version."""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import subprocess
import warnings
from typing import Any

from .environment import installed

#: What it gives, where it lives, and the parameter that shows it (None: the name itself).
_FLASHINFER = (
    ("ragged prefill, V head dim of its own", "BatchPrefillWithRaggedKVCacheWrapper.plan", "head_dim_vo"),
    ("ragged prefill, packed custom mask", "BatchPrefillWithRaggedKVCacheWrapper.plan", "packed_custom_mask"),
    ("MLA decode", "mla.BatchMLAPagedAttentionWrapper", None),
    ("sparse MLA decode", "mla.trtllm_batch_decode_with_kv_cache_mla", "sparse_mla_top_k"),
    ("merge of partial results", "merge_state", None),
    ("top-k", "top_k", None),
)


def features(device: str) -> dict[str, Any]:
    """JSON-ready: ``triton``, ``sdpa``, ``flashinfer``, ``peers``, ``compiler``; each: what is there and why not."""
    return {
        "triton": _triton(device),
        "sdpa": _sdpa(device),
        "flashinfer": _flashinfer(),
        "peers": _peers(device),
        "compiler": _compiler(),
    }


def _triton(device: str) -> dict[str, Any]:
    version = installed("triton")
    if version is None:
        return {"version": None, "mode": None, "reason": "triton is not installed"}
    interpreted = device == "cpu" or os.environ.get("TRITON_INTERPRET") == "1"
    return {"version": version, "mode": "interpreted" if interpreted else "compiled", "reason": ""}


def _sdpa(device: str) -> dict[str, str]:
    """Backend -> empty, or why torch refuses a small bf16 case."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = [backend for backend in SDPBackend.__members__.values() if backend.name not in ("ERROR", "OVERRIDEABLE")]
    q = torch.zeros(1, 2, 16, 64, dtype=torch.bfloat16, device=device)
    refusals: dict[str, str] = {}
    for backend in backends:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            try:
                with sdpa_kernel(backend):
                    torch.nn.functional.scaled_dot_product_attention(q, q, q)
                refusals[backend.name.lower()] = ""
            except RuntimeError as error:
                # torch says why in warnings; the error itself only says that no kernel is left.
                told = [str(note.message).split(" (Triggered")[0].strip() for note in notes]
                refusals[backend.name.lower()] = next((line for line in told if "not used" not in line), str(error))
    return refusals


def _flashinfer() -> dict[str, Any]:
    version = installed("flashinfer-python")
    if version is None:
        return {"version": None, "reason": "flashinfer-python is not installed", "features": {}}
    try:
        found = {label: _provides("flashinfer", path, parameter) for label, path, parameter in _FLASHINFER}
    except Exception as error:  # an import that fails on this machine is an answer
        return {"version": version, "reason": f"does not import: {type(error).__name__}: {error}", "features": {}}
    return {"version": version, "reason": "", "features": found}


def _peers(device: str) -> dict[str, Any]:
    """Peer -> version or commit and how it was found, or how to point at it."""
    from ..optimized.peer_kernels.locate import PEERS

    told: dict[str, Any] = {}
    for peer in PEERS:
        try:
            found = peer.find()
        except FileNotFoundError as error:
            told[peer.name] = {"version": None, "found": "", "reason": str(error), "features": {}}
            continue
        if found is None:
            told[peer.name] = {"version": None, "found": "", "reason": peer.missing(), "features": {}}
            continue
        told[peer.name] = {"version": found.version, "found": found.origin, "reason": "", "features": {}}
        if peer.name == "FlashAttention 4" and device.startswith("cuda"):
            from ..optimized.peer_kernels import fa4

            told[peer.name]["features"] = fa4.features()
    return told


def _provides(package: str, path: str, parameter: str | None) -> bool:
    target: Any = importlib.import_module(package)
    for name in path.split("."):
        if not hasattr(target, name):
            return False
        target = getattr(target, name)
    return parameter is None or parameter in inspect.signature(target).parameters


def _compiler() -> dict[str, str | None]:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            return {"path": path, "version": None, "reason": f"{path} --version failed: {error}"}
        return {"path": path, "version": next(iter(told.splitlines()), ""), "reason": ""}
    return {"path": None, "version": None, "reason": "no C++ compiler found; torch.compile needs one on the CPU"}
