"""The operators: their outputs, and how an answer to each is judged. A literal table, the only place that knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..optimized.contract import Contract, Format
from ..reference.chunks import Chunk
from ..reference.dense_mha import dense_chunks
from ..reference.masked_mha import masked_chunks
from ..reference.sparse_mqa import sparse_chunks
from .errors import unknown
from .judge import attention, indexer, layouts, merge, topk
from .judge.findings import Judgement
from .judge.formats import TORCH_DTYPE, format_of, rounded
from .judge.misreadings import scales_as

Arguments = Mapping[str, Any]
#: (inputs, outputs, contract, whether to check the input's power) to what was found.
Judge = Callable[[Arguments, tuple[Tensor, ...], Contract, bool], Judgement]
#: Most scores of a chunk while judging: a GPU wants few large chunks, a CPU small ones.
LIMIT = {"cuda": 2**25, "cpu": 2**22}
#: Most key elements gathered for a chunk. On a GPU that is 1 GiB of the 4 that a verification may take.
GATHERED = {"cuda": 2**27, "cpu": 2**22}


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


def _limit(a: Arguments, limits: Mapping[str, int]) -> int:
    return limits.get(a["q"].device.type, limits["cpu"])


def declared(a: Arguments, contract: Contract) -> Contract:
    """The contract of an attention call with the format of P spelled out; what is not dequantised is not rounded."""
    stored = a["v" if "v" in a else "kv"].dtype
    values: Format = "bf16" if stored.itemsize == 1 else format_of(stored)
    found = contract if contract.probabilities else replace(contract, probabilities=values)
    return found if a.get("cache_format", "model") == "fp8_ds_mla" else replace(found, dequantised=None)


#: Tensors of attention over packed requests, and the function that cuts it into chunks.
_VARLEN: dict[str, tuple[Callable[..., Iterator[Chunk]], tuple[str, ...]]] = {
    "dense_mha": (dense_chunks, ("q", "k", "v", "cu_q", "cu_k")),
    "masked_mha": (masked_chunks, ("q", "k", "v", "mask", "cu_q", "cu_k")),
}


def attention_chunks(name: str, a: Arguments) -> Iterator[Chunk]:
    """A call of dense MHA, masked MHA or sparse MQA in float64 chunks: what a budget is made of."""
    if name == "sparse_mqa":
        return _sparse_chunks(a)
    chunks, names = _VARLEN[name]
    return chunks(*(a[x] for x in names), causal=a["causal"], limit=_limit(a, LIMIT), compute=torch.float64)


def _sparse_chunks(a: Arguments) -> Iterator[Chunk]:
    kv, indices = compacted(a["kv"], a["indices"])
    return sparse_chunks(
        a["q"],
        kv,
        indices,
        value_dim=a["value_dim"],
        lengths=a.get("lengths"),
        cache_format=a.get("cache_format", "model"),
        q_scale=a.get("q_scale", 1.0),
        k_scale=a.get("k_scale", 1.0),
        limit=_limit(a, GATHERED),
        compute=torch.float64,
    )


def as_multiplied(chunk: Chunk, fmt: Format | None) -> Chunk:
    """The chunk with latents as a kernel multiplies them: code times scale in fp32, rounded to nearest in ``fmt``.

    None: exact. The rotated dims have no scale and stay as they are.
    """
    if fmt is None:
        return chunk
    values = rounded(chunk.values.to(torch.float32), fmt).to(chunk.keys)
    keys = torch.cat((values, chunk.keys[..., values.shape[-1] :]), -1)
    return replace(chunk, keys=keys, values=values)


def as_read(a: Arguments, contract: Contract) -> Arguments:
    """The call with the scales of an fp8_ds_mla cache as the contract says that they are read."""
    if contract.scale_read == "fp32" or a.get("cache_format", "model") != "fp8_ds_mla":
        return a
    kv, indices = compacted(a["kv"], a["indices"])
    first, rope = int(a["value_dim"]), a["q"].shape[-1] - int(a["value_dim"])
    return {**a, "indices": indices, "kv": scales_as(contract.scale_read, kv, first, kv.shape[-1] - 2 * rope)}


def attention_answer(name: str, a: Arguments, outputs: tuple[Tensor, ...], contract: Contract) -> attention.Answer:
    """What an implementation of attention returned, and what its numbers are held to."""
    lse, multiplicity = outputs[1] if len(outputs) > 1 else None, 1.0
    if name == "sparse_mqa":
        multiplicity = _multiplicity(a["indices"], a["kv"].shape[:-1].numel(), a.get("lengths"))
    return attention.Answer(outputs[0], lse, declared(a, contract), a["q"].shape[-1], multiplicity)


def _attention(name: str) -> Judge:
    def judge(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
        a = as_read(a, contract)
        answer = attention_answer(name, a, outputs, contract)
        multiplied = answer.contract.dequantised
        return attention.judge(
            lambda: (as_multiplied(chunk, multiplied) for chunk in attention_chunks(name, a)),
            replace(answer, contract=replace(answer.contract, dequantised=None)),
            a["scale"],
            a.get("sink"),
            power=power,
        )

    return judge


def compacted(kv: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The same call on the rows that are named alone, where most are not: a cache may be larger than memory."""
    rows = kv.shape[:-1].numel()
    if rows <= indices.numel():
        return kv, indices
    valid = (indices >= 0) & (indices < rows)
    named, place = torch.unique(indices[valid], return_inverse=True)
    found = torch.full_like(indices, -1)
    found[valid] = place.to(indices.dtype)
    named = named.long()
    return kv[named] if kv.dim() == 2 else kv[named // kv.shape[1], named % kv.shape[1]], found


def _multiplicity(indices: Tensor, rows: int, lengths: Tensor | None) -> float:
    """How often one row names the same key at most; entries that do not count are left out."""
    if indices.numel() == 0:
        return 1.0
    counts = (indices >= 0) & (indices < rows)
    if lengths is not None:
        counts &= torch.arange(indices.shape[1], device=indices.device) < lengths[:, None]
    ordered = torch.where(counts, indices, -1).sort(1).values
    longest = 1
    while longest < ordered.shape[1]:
        same = (ordered[:, longest:] == ordered[:, : ordered.shape[1] - longest]) & (ordered[:, longest:] >= 0)
        if not bool(same.any()):
            break
        longest += 1
    return float(longest)


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
    Operator("dense_mha", ("out", "lse"), _attention_shapes, _attention_dtypes, _attention("dense_mha")),
    Operator("masked_mha", ("out", "lse"), _attention_shapes, _attention_dtypes, _attention("masked_mha")),
    Operator("sparse_mqa", ("out", "lse"), _attention_shapes, _attention_dtypes, _attention("sparse_mqa")),
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
