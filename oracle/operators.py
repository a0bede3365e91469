"""The operators: their outputs, and how an answer to each is judged. A literal table, the only place that knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..optimized.contract import Contract
from .errors import unknown
from .judge import attention_call, indexer, layouts, merge, topk
from .judge.attention_call import Arguments, Judge
from .judge.findings import Judgement
from .judge.formats import TORCH_DTYPE


@dataclass(frozen=True, slots=True)
class Operator:
    """One mathematical function: what it returns and who judges it."""

    name: str
    outputs: tuple[str, ...]
    shapes: Callable[[Arguments], tuple[tuple[int, ...], ...]]
    """Shapes of the outputs for given inputs."""
    dtypes: Callable[[Arguments, Contract], tuple[tuple[torch.dtype, ...], ...]]
    """Dtypes that each output may have."""
    judge: Judge
    settle: Callable[[Arguments, tuple[Tensor, ...], Contract], tuple[Tensor, ...]] = lambda a, outputs, contract: (
        outputs
    )
    """Outputs with what the contract leaves undefined put to the reference's value, so that two runs compare."""
    writes: tuple[str, ...] = ()
    """Inputs that it changes in place: these are its outputs then, and it returns nothing."""


def _value_dim(a: Arguments) -> int:
    return int(a["value_dim"]) if "value_dim" in a else int(a["v"].shape[-1])


def _attention_shapes(a: Arguments) -> tuple[tuple[int, ...], ...]:
    s, h = a["q"].shape[:2]
    return (s, h, _value_dim(a)), (s, h)


def _attention_dtypes(a: Arguments, contract: Contract) -> tuple[tuple[torch.dtype, ...], ...]:
    given = torch.bfloat16 if a["q"].dtype is torch.float8_e4m3fn else a["q"].dtype
    out = TORCH_DTYPE[contract.output] if contract.output else given
    return (out,), (torch.float32, torch.float64)


def _indexer_shapes(a: Arguments) -> tuple[tuple[int, ...], ...]:
    width = a.get("max_seqlen_k")
    return ((a["q"].shape[0], a["k"].shape[0] if width is None else width),)


def _settle_scores(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract) -> tuple[Tensor, ...]:
    return (indexer.settled(outputs[0], contract, **a),)


def _indexer(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
    (scores,) = _settle_scores(a, outputs, contract)
    return indexer.judge(scores, contract, indexer.packed(**a))


def _paged_indexer(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
    (scores,) = _settle_scores(a, outputs, contract)
    return indexer.judge(scores, contract, indexer.paged(**a))


def _topk(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
    return topk.judge(outputs[0], contract, **a)


def _merge(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
    return merge.judge(outputs[0], outputs[1], contract, **a)


def _scores_dtypes(a: Arguments, contract: Contract) -> tuple[tuple[torch.dtype, ...], ...]:
    return ((TORCH_DTYPE[contract.output or "fp32"],),)


#: Codes are accepted as bytes too.
_E4M3 = (torch.float8_e4m3fn, torch.uint8)


def _quantize_shapes(a: Arguments) -> tuple[tuple[int, ...], ...]:
    rows, width = a["x"].shape
    return (rows, width), (rows, width // a["block"])


def _quantize_dtypes(a: Arguments, contract: Contract) -> tuple[tuple[torch.dtype, ...], ...]:
    return _E4M3, (torch.uint8 if a["scale_format"] == "ue8m0" else torch.float32,)


def _writer(name: str, target: str, judge: Judge) -> Operator:
    """An operator that changes one input in place."""
    return Operator(
        name,
        (target,),
        lambda a: (tuple(a[target].shape),),
        lambda a, contract: ((a[target].dtype,),),
        judge,
        writes=(target,),
    )


OPERATORS: tuple[Operator, ...] = (
    Operator("dense_mha", ("out", "lse"), _attention_shapes, _attention_dtypes, attention_call.judge_of("dense_mha")),
    Operator("masked_mha", ("out", "lse"), _attention_shapes, _attention_dtypes, attention_call.judge_of("masked_mha")),
    Operator("sparse_mqa", ("out", "lse"), _attention_shapes, _attention_dtypes, attention_call.judge_of("sparse_mqa")),
    Operator("indexer_scores", ("scores",), _indexer_shapes, _scores_dtypes, _indexer, _settle_scores),
    Operator(
        "paged_indexer_scores",
        ("scores",),
        lambda a: ((a["q"].shape[0] * a["q"].shape[1], a["max_model_len"]),),
        _scores_dtypes,
        _paged_indexer,
        _settle_scores,
    ),
    Operator(
        "topk_select",
        ("indices",),
        lambda a: ((a["scores"].shape[0], a["k"]),),
        lambda a, contract: ((torch.int32,),),
        _topk,
    ),
    Operator(
        "merge_lse",
        ("out", "lse"),
        lambda a: (tuple(a["out_a"].shape), tuple(a["lse_a"].shape)),
        lambda a, contract: ((a["out_a"].dtype,), (torch.float32, torch.float64)),
        _merge,
    ),
    Operator("quantize", ("codes", "scales"), _quantize_shapes, _quantize_dtypes, layouts.judge_of("quantize")),
    _writer("write_cache", "cache", layouts.judge_of("write_cache")),
    _writer("write_index", "pages", layouts.judge_of("write_index")),
    Operator(
        "gather",
        ("rows",),
        lambda a: ((a["tokens"], a["latent"] + a["rope"]),),
        lambda a, contract: ((torch.bfloat16 if a["cache"].dtype is torch.uint8 else a["cache"].dtype,),),
        layouts.judge_of("gather"),
    ),
    Operator(
        "gather_index",
        ("k", "k_scale"),
        lambda a: ((a["tokens"], a["e"]), (a["tokens"],)),
        lambda a, contract: (_E4M3, (torch.float32,)),
        layouts.judge_of("gather_index"),
    ),
    Operator(
        "convert_indices",
        ("physical", "counts"),
        lambda a: (tuple(a["indices"].shape), tuple(a["requests"].shape)),
        lambda a, contract: ((torch.int32,), (torch.int32,)),
        layouts.judge_of("convert_indices"),
    ),
    Operator(
        "build_mask",
        ("mask",),
        lambda a: ((a["starts"].shape[0], a["rows"], a["words"]),),
        lambda a, contract: ((torch.int32,),),
        layouts.judge_of("build_mask"),
    ),
)


def operator(name: str) -> Operator:
    """The operator of that name. Raises BadInput with the nearest names."""
    for candidate in OPERATORS:
        if candidate.name == name:
            return candidate
    raise unknown("operator", name, (candidate.name for candidate in OPERATORS))
