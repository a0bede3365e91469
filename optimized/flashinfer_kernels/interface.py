"""What is called of FlashInfer: names and parameters. A release that lacks one of them is not served.

CI compares this list with the oldest and the newest release; ``missing`` needs no GPU.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

#: Dotted name below ``flashinfer`` to the parameters that are passed to it, by position first.
CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "BatchPrefillWithRaggedKVCacheWrapper": (("float_workspace_buffer", "kv_layout"), ("backend",)),
    "BatchPrefillWithRaggedKVCacheWrapper.plan": (
        ("self", "qo_indptr", "kv_indptr", "num_qo_heads", "num_kv_heads", "head_dim_qk"),
        ("head_dim_vo", "custom_mask", "causal", "sm_scale", "q_data_type"),
    ),
    "BatchPrefillWithRaggedKVCacheWrapper.run": (("self", "q", "k", "v"), ("return_lse",)),
    "mla.BatchMLAPagedAttentionWrapper": (("float_workspace_buffer",), ("backend",)),
    "mla.BatchMLAPagedAttentionWrapper.plan": (
        (
            "self", "qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr", "num_heads", "head_dim_ckv", "head_dim_kpe",
            "page_size", "causal", "sm_scale", "q_data_type", "kv_data_type",
        ),
        (),
    ),
    "mla.BatchMLAPagedAttentionWrapper.run": (
        ("self", "q_nope", "q_pe", "ckv_cache", "kpe_cache"),
        ("return_lse",),
    ),
    "merge_state": (("v_a", "s_a", "v_b", "s_b"), ()),
    "merge_states": (("v", "s"), ()),
    "top_k": (("input", "k"), ()),
    "top_k_ragged_transform": (("input", "offsets", "lengths", "k"), ("row_starts",)),
}  # fmt: skip


def missing() -> list[str]:
    """What the importable FlashInfer lacks, in words; empty if all is there. Imports it."""
    return [line for name, wanted in CALLS.items() for line in _missing(name, *wanted)]


def _missing(name: str, positional: tuple[str, ...], named: tuple[str, ...]) -> list[str]:
    target: Any = importlib.import_module("flashinfer")
    for part in name.split("."):
        target = getattr(target, part, None)
        if target is None:
            return [f"flashinfer.{name} is not there"]
    parameters = inspect.signature(target).parameters
    leading = tuple(parameters)[: len(positional)]
    found = []
    if leading != positional:
        found.append(f"flashinfer.{name}: expected its parameters to begin with {positional}, got {leading}")
    lacking = [word for word in named if word not in parameters]
    if lacking:
        found.append(f"flashinfer.{name}: expected a parameter {', '.join(lacking)}, got {tuple(parameters)}")
    return found
