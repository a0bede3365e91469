"""How an operator's call is spelt: with the names that flashinfer-bench has for it, or with the reference's keywords.

Two operators have a type there: sparse MQA is the sparse attention of ``dsa_paged``, dense MHA of whole causal prompts
is ``mla_ragged``. The others, and calls of these two that the types have no input for (a sink, lengths, cached
context), keep the names of the reference under the operator's own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import sources
from .records import Scalar

#: Axes of inputs and outputs, by the reference's keywords; upper case: the same for all workloads of a definition.
AXES: dict[str, dict[str, str]] = {
    "dense_mha": {
        "q": "tokens HEADS QK_DIM", "k": "keys HEADS QK_DIM", "v": "keys HEADS V_DIM", "cu_q": "len_indptr",
        "cu_k": "len_indptr", "out": "tokens HEADS V_DIM", "lse": "tokens HEADS",
    },
    "masked_mha": {
        "q": "tokens HEADS QK_DIM", "k": "keys HEADS QK_DIM", "v": "keys HEADS V_DIM", "mask": "requests padded words",
        "cu_q": "len_indptr", "cu_k": "len_indptr", "out": "tokens HEADS V_DIM", "lse": "tokens HEADS",
    },
    "sparse_mqa": {
        "q": "tokens HEADS WIDTH", "kv": "rows WIDTH", "indices": "tokens TOPK", "lengths": "tokens", "sink": "HEADS",
        "out": "tokens HEADS VALUE_DIM", "lse": "tokens HEADS",
    },
    "indexer_scores": {
        "q": "tokens INDEX_HEADS INDEX_DIM", "k": "keys INDEX_DIM", "k_scale": "keys", "weights": "tokens INDEX_HEADS",
        "ks": "tokens", "ke": "tokens", "q_scale": "tokens INDEX_HEADS", "scores": "tokens keys",
    },
    "topk_select": {"scores": "tokens columns", "ks": "tokens", "ke": "tokens", "indices": "tokens TOPK"},
    "merge_lse": {
        "out_a": "tokens HEADS V_DIM", "lse_a": "tokens HEADS", "out_b": "tokens HEADS V_DIM", "lse_b": "tokens HEADS",
        "out": "tokens HEADS V_DIM", "lse": "tokens HEADS",
    },
}  # fmt: skip
#: Constant axes that are an option of the reference.
SIZES = {"sparse_mqa": ("VALUE_DIM", "value_dim"), "topk_select": ("TOPK", "k")}
OUTPUTS = {"indexer_scores": ("scores",), "topk_select": ("indices",)}
#: What the types of flashinfer-bench hold.
DSA = {
    "q_nope": "num_tokens NUM_QO_HEADS HEAD_DIM_CKV", "q_pe": "num_tokens NUM_QO_HEADS HEAD_DIM_KPE",
    "ckv_cache": "num_pages PAGE_SIZE HEAD_DIM_CKV", "kpe_cache": "num_pages PAGE_SIZE HEAD_DIM_KPE",
    "sparse_indices": "num_tokens TOPK", "output": "num_tokens NUM_QO_HEADS HEAD_DIM_CKV",
    "lse": "num_tokens NUM_QO_HEADS",
}  # fmt: skip
MLA = {
    "q": "total_tokens NUM_QO_HEADS HEAD_DIM_QK", "k": "total_tokens NUM_QO_HEADS HEAD_DIM_QK",
    "v": "total_tokens NUM_QO_HEADS HEAD_DIM_VO", "seq_indptr": "len_indptr",
    "output": "total_tokens NUM_QO_HEADS HEAD_DIM_VO", "lse": "total_tokens NUM_QO_HEADS",
}  # fmt: skip
#: Constant axes in the name of a definition.
SHORT = {
    "HEADS": "h", "NUM_QO_HEADS": "h", "INDEX_HEADS": "h", "HEAD_DIM_CKV": "ckv", "HEAD_DIM_KPE": "kpe",
    "HEAD_DIM_QK": "qk", "HEAD_DIM_VO": "vo", "QK_DIM": "qk", "V_DIM": "vo", "VALUE_DIM": "c", "WIDTH": "d",
    "INDEX_DIM": "d", "PAGE_SIZE": "ps", "TOPK": "topk",
}  # fmt: skip
#: Rows of a page where the cache is that long by the page; otherwise a page is a row.
PAGE = 64

Call = Mapping[str, Any]
Values = dict[str, Tensor | Scalar]


@dataclass(frozen=True, slots=True)
class Form:
    """One spelling of one operator."""

    operator: str
    op_type: str
    prefix: str
    """The names of its definitions begin with it."""
    axes: Mapping[str, str]
    outputs: tuple[str, ...]
    reference: Callable[[tuple[str, ...]], str]
    """Source of ``run`` with these inputs."""
    theirs: Callable[[Call], Values | None]
    """A call of the reference as inputs of the form; None: the form has no words for it."""
    ours: Callable[[Values], dict[str, Any]]
    """The other way."""


def _dsa(call: Call) -> Values | None:
    if set(call) - {"q", "kv", "indices", "scale", "value_dim"} or call["kv"].dim() != 2:
        return None
    c, kv = call["value_dim"], call["kv"]
    page = PAGE if len(kv) and len(kv) % PAGE == 0 else 1
    paged = kv.reshape(-1, page, kv.shape[1])
    q, indices = call["q"], call["indices"].clone()
    # Theirs knows one invalid index; whatever else is invalid means the same.
    indices[(indices < 0) | (indices >= len(kv))] = -1
    parts: Values = {"q_nope": q[..., :c], "q_pe": q[..., c:], "ckv_cache": paged[..., :c], "kpe_cache": paged[..., c:]}
    return parts | {"sparse_indices": indices.to(torch.int32), "sm_scale": call["scale"]}


def _from_dsa(values: Values) -> dict[str, Any]:
    q_nope, q_pe, ckv, kpe = (values[name] for name in ("q_nope", "q_pe", "ckv_cache", "kpe_cache"))
    assert isinstance(ckv, Tensor) and isinstance(kpe, Tensor)
    assert isinstance(q_nope, Tensor) and isinstance(q_pe, Tensor)
    return {
        "q": torch.cat((q_nope, q_pe), -1),
        "kv": torch.cat((ckv, kpe), -1).flatten(0, 1),
        "indices": values["sparse_indices"],
        "scale": values["sm_scale"],
        "value_dim": ckv.shape[-1],
    }


def _mla(call: Call) -> Values | None:
    if not call["causal"] or not torch.equal(call["cu_q"], call["cu_k"]):
        return None
    return {name: call[name] for name in "qkv"} | {"seq_indptr": call["cu_q"], "sm_scale": call["scale"]}


def _from_mla(values: Values) -> dict[str, Any]:
    cu = values["seq_indptr"]
    return {name: values[name] for name in "qkv"} | {
        "cu_q": cu,
        "cu_k": cu,
        "scale": values["sm_scale"],
        "causal": True,
    }


def _own(operator: str) -> Form:
    axes = AXES[operator]

    def theirs(call: Call) -> Values | None:
        known = all(name in axes if isinstance(value, Tensor) else _scalar(value) for name, value in call.items())
        fits = all(value.dim() == len(axes[n].split()) for n, value in call.items() if isinstance(value, Tensor))
        return dict(call) if known and fits else None

    outputs = OUTPUTS.get(operator, ("out", "lse"))
    return Form(operator, operator, operator, axes, outputs, lambda names: sources.own(operator, names), theirs, dict)


def _scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float)


_BOTH = ("output", "lse")
FORMS: tuple[Form, ...] = (
    Form("sparse_mqa", "dsa_paged", "dsa_sparse_attention", DSA, _BOTH, lambda _: sources.DSA, _dsa, _from_dsa),
    Form("dense_mha", "mla_ragged", "mla_ragged_prefill_causal", MLA, _BOTH, lambda _: sources.MLA, _mla, _from_mla),
    *(_own(operator) for operator in AXES),
)
