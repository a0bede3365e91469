"""The stage at which each fault of the catalogue acts."""

from __future__ import annotations

from functools import partial

from ..faults import Fault
from ..faults.simulated import simulated
from .hypothesis import Stage

#: Error sites of the simulated kernels, by the stage that they belong to.
SITES: dict[Stage, tuple[str, ...]] = {
    "quantised cache": ("latent",),
    "gather": ("inputs", "keep", "gather", "address", "query_range", "key_range", "target"),
    "index conversion": ("indices", "counted", "valid", "entries", "slots", "local"),
    "mask": ("causal", "last_key", "stop", "tiles", "inside", "diagonal", "bits", "combine_masks", "skip", "seen"),
    "scores": ("scale", "prescale", "dot", "score"),
    "softmax": (
        "masked", "start", "peak", "base", "exp", "decay_sum", "decay_acc", "probabilities", "summand", "total", "sink",
    ),
    "P.V": ("product", "acc", "values"),
    "lse": ("log", "lse"),
    "merge": ("partial", "scratch", "merge"),
    "output": ("normalise", "output", "rows_written", "allocate"),
}  # fmt: skip
_INDEXER: dict[Stage, tuple[str, ...]] = {"indexer q/k": ("inputs", "decode", "by_request")}
#: Sites of the paged indexer.
_PAGED: dict[Stage, tuple[str, ...]] = {
    "gather": ("table", "pages", "address"),
    "quantised cache": ("page",),
    "indexer q/k": ("queries",),
}
#: A layout operator is one stage of a layer.
LAYOUT_STAGES: dict[str, Stage] = {
    "quantize": "quantised cache",
    "write_cache": "quantised cache",
    "write_index": "quantised cache",
    "gather": "gather",
    "gather_index": "gather",
    "convert_indices": "index conversion",
    "build_mask": "mask",
}
#: Faults that no site tells, by a part of their name.
_NAMED: tuple[tuple[str, Stage], ...] = (
    ("sink", "softmax"),
    ("rope", "rope"),
    ("hadamard", "indexer q/k"),
    ("index-key", "indexer q/k"),
    ("query-scale", "indexer q/k"),
    ("absorbed", "projection"),
    ("nope-and-value", "projection"),
    ("latent-normalised", "projection"),
    ("cache-scale", "quantised cache"),
    ("zero-tile", "quantised cache"),
    ("index-cache", "indexer q/k"),
    ("mask-row", "mask"),
    ("index-", "index conversion"),
    ("cached-prefix", "merge"),
    ("cache-row", "gather"),
    ("carry-in", "softmax"),
)
_BY_OPERATOR: dict[str, Stage] = {"topk_select": "top-k", "merge_lse": "merge", "indexer_scores": "logits"}


def stage_of(fault: Fault, operator: str = "") -> Stage:
    """Where a fault that is planted in a simulated kernel or before it acts; in another operator, if one is given."""
    if operator in LAYOUT_STAGES:
        return LAYOUT_STAGES[operator]
    if fault.expected_check == "memory":
        return "memory"
    if fault.expected_check in ("sequence", "rerun"):
        return "state"
    if fault.operator in LAYOUT_STAGES:
        return LAYOUT_STAGES[fault.operator]
    sites = set(sites_of(fault))
    if fault.operator == "paged_indexer_scores":
        return next((stage for stage, names in _PAGED.items() if sites & set(names)), "logits")
    if fault.operator == "indexer_scores" and sites & set(_INDEXER["indexer q/k"]):
        return "indexer q/k"
    for part, stage in _NAMED:
        if part in fault.name and not sites:
            return stage
    if fault.operator in _BY_OPERATOR:
        return _BY_OPERATOR[fault.operator]
    return next((stage for stage, names in SITES.items() if sites & set(names)), "output")


def sites_of(fault: Fault) -> dict[str, object]:
    """The sites that a fault replaces; empty where no site expresses it."""
    plant = fault.plant
    if isinstance(plant, partial) and plant.func is simulated:
        return dict(plant.keywords)
    return {}
