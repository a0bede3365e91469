"""Which verdicts in use elsewhere accept a fault on random normal inputs: measured, kept in ``fixtures/faults``.

A verdict is let off where it rejects the right kernel too: FlashMLA's is meant for small inputs, so attention is
measured on those as well. ``python -c "from attnoracle.oracle.faults.escapes import write; write()"`` measures all
faults again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ... import reference
from ...reference.dense_mha import dense_mha
from ...reference.indexer_scores import indexer_scores
from ...reference.layouts import decode_e4m3, decode_index_pages, decode_rows, decode_ue8m0
from ...reference.masked_mha import masked_mha
from ...reference.merge_lse import merge_lse
from ...reference.paged_indexer_scores import paged_indexer_scores
from ...reference.sparse_mqa import sparse_mqa
from ...reference.topk_select import topk_select
from ..calling.memory import guarded_allocations
from ..case import Case
from ..config import load
from ..inputs import make
from ..inputs.options import OPTIONS
from ..suites.reach import reach_case
from .escaped import FILE
from .fault import Fault
from .simulated import KERNELS, LAYOUTS
from .weak import WEAK


def _layout_reference(name: str, **inputs: Any) -> tuple[Tensor, ...]:
    """What an exact operator gives, as numbers."""
    return as_numbers(inputs, getattr(reference, name)(**inputs))


REFERENCES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "dense_mha": dense_mha,
    "masked_mha": masked_mha,
    "sparse_mqa": sparse_mqa,
    "indexer_scores": indexer_scores,
    "paged_indexer_scores": paged_indexer_scores,
    "topk_select": topk_select,
    "merge_lse": merge_lse,
    **{name: partial(_layout_reference, name) for name in LAYOUTS},
}


def _case(operator: str, q: tuple[int, ...], k: tuple[int, ...], heads: int, topk: int = 0) -> Case:
    return Case(operator=operator, geometry="deepseek-v3.2", heads=heads, q_lens=q, k_lens=k, topk=topk, seed=1)


#: A few dozen normally distributed tokens in three ragged requests.
CASES: dict[str, Case] = {
    "dense_mha": _case("dense_mha", (20, 1, 12), (150, 40, 12), 2),
    "masked_mha": _case("masked_mha", (20, 1, 12), (150, 40, 12), 2, topk=32),
    "sparse_mqa": _case("sparse_mqa", (20, 1, 4), (200, 40, 30), 8, topk=96),
    "indexer_scores": _case("indexer_scores", (20, 1, 12), (70, 40, 12), 8),
    "paged_indexer_scores": replace(_case("paged_indexer_scores", (3, 3, 3), (70, 130, 12), 8), dtype="e4m3"),
    "topk_select": _case("topk_select", (20, 1, 4), (150, 40, 30), 1, topk=33),
    "merge_lse": _case("merge_lse", (24,), (24,), 4),
    "quantize": _case("quantize", (1,), (20,), 1),
    "write_cache": _case("write_cache", (20, 1, 4), (90, 40, 4), 1),
    "write_index": _case("write_index", (20, 1, 4), (90, 40, 4), 1),
    "gather": _case("gather", (1, 1, 1), (90, 40, 12), 1),
    "gather_index": _case("gather_index", (1, 1, 1), (90, 40, 12), 1),
    "convert_indices": _case("convert_indices", (20, 1, 4), (150, 40, 30), 1, topk=33),
    "build_mask": _case("build_mask", (20, 1, 4), (150, 40, 30), 1, topk=33),
}


ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")


def cases_for(fault: Fault) -> tuple[Case, ...]:
    """The operator's case in each kind, with the options, dtype, heads and layout that the fault needs.

    A fault past the sizes of these cases is measured where it acts: on the row of ``suites/reach`` that it names.
    """
    reach = next((option.partition("=")[2] for option in fault.options if option.startswith("reach=")), None)
    if reach is not None:
        return (reach_case(fault.operator, reach, seed=1),)
    case = CASES[fault.operator]
    known = OPTIONS[fault.operator]
    options = tuple(sorted(option for option in fault.options if option in known and option != "hugerows"))
    fields = dict(option.split("=") for option in fault.options if "=" in option)
    kinds = ("randn", "small") if fault.operator in ATTENTION else ("randn",)
    dtype, heads = fields.get("dtype", case.dtype), int(fields.get("heads", case.heads))
    layout = fields.get("layout", case.layout)
    return tuple(replace(case, options=options, dtype=dtype, heads=heads, kind=kind, layout=layout) for kind in kinds)


def doubled(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with floating-point tensors in fp64, copied; exact operators and quantised caches keep theirs."""
    if is_exact(inputs):
        return {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
    stored = {"kv"} if inputs.get("cache_format", "model") != "model" else set()
    return {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() and name not in stored else x
        for name, x in inputs.items()
    }


def outputs_of(kernel: Callable[..., tuple[Any, ...]], inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """One run in guarded memory, where a fault that writes past its output does no harm; the outputs are copies."""
    with guarded_allocations("stale"):
        outputs = kernel(**inputs)
    return as_numbers(inputs, tuple(x.clone() if isinstance(x, Tensor) else x for x in outputs))


def is_exact(inputs: Mapping[str, Any]) -> bool:
    """Whether these are the inputs of an operator that moves and converts bytes."""
    return not {"q", "scores", "out_a"} & set(inputs)


def as_numbers(inputs: Mapping[str, Any], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The numbers that codes, scales and written caches stand for, as tests with a tolerance compare them."""
    if "block" in inputs:
        codes, scales = outputs
        scale = decode_ue8m0(scales) if scales.dtype is torch.uint8 else scales
        return (codes.float().unflatten(1, (-1, inputs["block"])) * scale[..., None],)
    if "slots" in inputs and "cache" in inputs:
        rows, options = inputs["cache"].flatten(0, 1), ("cache_format", "k_scale")
        return (decode_rows(rows, latent=inputs["latent"].shape[1], **{name: inputs[name] for name in options}),)
    if "slots" in inputs:
        codes, scales = decode_index_pages(inputs["pages"], e=inputs["k"].shape[1])
        return (decode_e4m3(codes) * scales[..., None],)
    return (outputs[0].float() * outputs[1][:, None],) if "pages" in inputs else outputs


def inputs_of(case: Case) -> dict[str, Any]:
    """The keyword inputs of a case, freshly made."""
    return make(case, load(case.geometry)).kwargs()


@cache
def _truth(case: Case) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """What the fp64 reference gives, and which weak verdicts accept the right simulated kernel."""
    inputs = inputs_of(case)
    expected = tuple(REFERENCES[case.operator](**doubled(inputs)))
    right = outputs_of(KERNELS[case.operator], inputs)
    return expected, tuple(name for name, passes in WEAK.items() if passes(right, expected, inputs))


def measure(fault: Fault) -> tuple[str, ...]:
    """Names of the weak verdicts that accept the fault wherever they accept the right kernel, and do so somewhere."""
    accepted: dict[str, bool] = {}
    kernel = fault.implementation().load()
    for case in cases_for(fault):
        expected, able = _truth(case)
        inputs = inputs_of(case)
        outputs = outputs_of(kernel, inputs)
        for name in able:
            accepted[name] = accepted.get(name, True) and WEAK[name](outputs, expected, inputs)
    return tuple(name for name in WEAK if accepted.get(name))


def write() -> None:
    """Measures every fault and writes the file."""
    from .catalogue import FAULTS

    lines = [f"    {json.dumps(fault.name)}: {json.dumps(measure(fault))}" for fault in FAULTS]
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text('{\n  "schema": "attnoracle.escapes/1",\n  "escapes": {\n' + ",\n".join(lines) + "\n  }\n}\n")
