"""Calls of attention operators as their judge wants them: in chunks, as they are read, the contract spelled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract, Format
from ...reference.chunks import Chunk
from ...reference.dense_mha import dense_chunks
from ...reference.masked_mha import masked_chunks
from ...reference.sparse_mqa import sparse_chunks
from . import attention
from .findings import Judgement
from .formats import format_of, rounded
from .misreadings import scales_as

Arguments = Mapping[str, Any]
#: (inputs, outputs, contract, whether to check the input's power) to what was found.
Judge = Callable[[Arguments, tuple[Tensor, ...], Contract, bool], Judgement]
#: Most scores of a chunk while judging: a GPU wants few large chunks, a CPU small ones.
LIMIT = {"cuda": 2**25, "cpu": 2**22}
#: Most key elements gathered for a chunk. On a GPU that is 1 GiB of the 4 that a verification may take.
GATHERED = {"cuda": 2**27, "cpu": 2**22}


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


def judge_of(name: str) -> Judge:
    """The judge of dense MHA, masked MHA or sparse MQA."""

    def judged(a: Arguments, outputs: tuple[Tensor, ...], contract: Contract, power: bool) -> Judgement:
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

    return judged


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
