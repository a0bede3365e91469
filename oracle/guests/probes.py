"""Probes: small questions to a kernel, each answered by what it does and never by what is likely.

A probe runs the kernel on inputs on which the possible answers differ grossly, and says which one it gave, or that it
gave none of them. Each runs in a worker process of its own, so a kernel that crashes on one leaves the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ... import reference
from ...optimized.contract import Contract, Format
from ...optimized.implementation import Implementation
from ..calling.call import Raised, called
from ..calling.globals import GlobalState
from ..case import Case
from ..check import check
from ..config import load
from ..inputs import Inputs, make
from ..judge.attention import SENTINEL
from ..judge.units import LN2

#: Largest error, by the size of the answer, of a kernel that gives an answer: other answers are many times as far off.
NEAR = 0.05
#: Runs that are compared bit for bit.
RUNS = 8
#: What a probe answers where the kernel gave no answer that it knows.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Probe:
    """One question."""

    name: str
    operators: tuple[str, ...]
    ask: Callable[[Implementation, str, str, str], str]
    """(implementation, geometry, dtype, device) to ``answer`` or ``answer; evidence``."""


_ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")


def case_of(
    operator: str, geometry: str, dtype: str, lengths: tuple[tuple[int, ...], tuple[int, ...]], **fields: Any
) -> Case:
    """A small case of the operator."""
    heads = {"topk_select": 1}.get(operator, min(4, load(geometry).heads))
    if operator == "merge_lse":
        lengths = (lengths[0], lengths[0])
    topk = fields.pop("topk", 24 if operator in ("sparse_mqa", "masked_mha", "topk_select") else 0)
    return Case(
        operator=operator,
        geometry=geometry,
        heads=heads,
        q_lens=lengths[0],
        k_lens=lengths[1],
        topk=topk,
        dtype=dtype,
        **fields,
    )


def ran(implementation: Implementation, inputs: Inputs, **changed: Any) -> tuple[Tensor, ...]:
    """Copies of what it returns for these inputs. Raises ``Raised``."""
    arguments = inputs.kwargs() | changed
    state = GlobalState.take()
    try:
        outputs = called(implementation, inputs.arena.device, arguments)
    finally:
        state.restore()
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    if not isinstance(outputs, tuple) or not all(isinstance(one, Tensor) for one in outputs):
        raise Raised(f"returned {type(outputs).__name__}, expected tensors")
    return tuple(one.detach().clone() for one in outputs)


def truth(inputs: Inputs, **changed: Any) -> tuple[Tensor, ...]:
    """The reference's answer in fp64."""
    arguments = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in (inputs.kwargs() | changed).items()
    }
    found = getattr(reference, inputs.case.operator)(**arguments)
    return found if isinstance(found, tuple) else (found,)


def near(observed: Tensor, expected: Tensor) -> bool:
    """Whether two answers are the same but for rounding; NaN nowhere."""
    if observed.shape != expected.shape:
        return False
    size = float(expected.abs().max()) if expected.numel() else 0.0
    error = (observed.double() - expected).abs()
    return bool((error <= NEAR * max(size, 1e-30)).all())


def ask_dtype(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    """Whether it takes this dtype, and the dtype of its answer."""
    inputs = make(case_of(one.operator, geometry, dtype, ((3, 2), (20, 9))), load(geometry), device)
    if one.operator == "topk_select":
        return "int32" if ran(one, inputs)[0].dtype is torch.int32 else UNKNOWN
    outputs = ran(one, inputs)
    exact = [truth(inputs)]
    if one.operator == "merge_lse":
        exact.append(_merged_in_base_2(inputs))
    if one.operator in (*_ATTENTION, "merge_lse") and not any(near(outputs[0], each[0]) for each in exact):
        return f"{UNKNOWN}; its answer is not that of the operator"
    return str(outputs[0].dtype).removeprefix("torch.")


def _merged_in_base_2(inputs: Inputs) -> tuple[Tensor, ...]:
    """What a merge returns that takes the LSEs it is given for base 2, its own LSE in natural units."""
    return truth(inputs, **{name: inputs.tensors[name].double() * LN2 for name in ("lse_a", "lse_b")})


def ask_lse(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    inputs = make(case_of(one.operator, geometry, dtype, ((3, 2), (20, 9))), load(geometry), device)
    outputs, exact = ran(one, inputs), truth(inputs)
    if one.operator == "merge_lse" and not near(outputs[0], exact[0]):
        # The weights of the sides tell the base of what it is given; its own LSE is judged below.
        exact = _merged_in_base_2(inputs)
    if len(outputs) < 2:
        return "none; it returns no LSE"
    seen = torch.isfinite(exact[1])
    if outputs[1].shape != exact[1].shape:
        return f"{UNKNOWN}; shape {list(outputs[1].shape)}, expected {list(exact[1].shape)}"
    off = {base: _off(outputs[1][seen].double() * factor, exact[1][seen]) for base, factor in (("e", 1.0), ("2", LN2))}
    for base, error in off.items():
        if error < 0.02 and all(error * 8 < other for name, other in off.items() if name != base):
            return f"{base}; within {error:.1e} on {int(seen.sum())} values"
    return UNKNOWN


def _off(observed: Tensor, expected: Tensor) -> float:
    error = (observed - expected).abs().max() if observed.numel() else torch.tensor(torch.inf)
    return float(error) if bool(torch.isfinite(error)) else float("inf")


def ask_empty(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    options = ("empty-rows",) if one.operator in ("sparse_mqa", "masked_mha") else ()
    lengths = ((5, 3), (20, 30)) if options else ((5, 3), (3, 30))
    inputs = make(case_of(one.operator, geometry, dtype, lengths, options=options), load(geometry), device)
    outputs, exact = ran(one, inputs), truth(inputs)
    empty = torch.isneginf(exact[1])
    if not bool(empty.any()):
        return UNKNOWN
    out = _uniform(outputs[0][empty], {"zero": 0.0, "nan": torch.nan})
    lse = _empty_lse(outputs[1][empty]) if len(outputs) > 1 else "none"
    return f"{out} {lse}; {int(empty.sum())} rows"


def _empty_lse(values: Tensor) -> str:
    if bool((torch.isfinite(values) & (values <= SENTINEL)).all()):
        return "sentinel"
    return _uniform(values, {"-inf": -torch.inf, "+inf": torch.inf, "nan": torch.nan})


def _uniform(values: Tensor, known: dict[str, float]) -> str:
    for name, value in known.items():
        if bool((values.isnan() if value != value else values == value).all()):
            return name
    return "undefined"


def ask_invalid(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    """-1 and indices past the cache: ignored both, the negative ones, or neither."""
    plain = make(case_of(one.operator, geometry, dtype, ((4, 2), (30, 9))), load(geometry), device)
    indices = plain.tensors["indices"]
    answers = {}
    for name, value in (("negative", -1), ("large", plain.tensors["kv"].shape[0] + 5)):
        changed = indices.clone()
        changed[:, ::3] = value
        try:
            answers[name] = near(ran(one, plain, indices=changed)[0], truth(plain, indices=changed)[0])
        except Raised:
            answers[name] = False
    if answers["negative"]:
        return "ignored" if answers["large"] else "negative-ignored"
    return "undefined; an index of -1 in the middle of a row changes the answer"


def ask_duplicates(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    inputs = make(case_of(one.operator, geometry, dtype, ((4, 2), (40, 30)), kind="wide"), load(geometry), device)
    indices = inputs.tensors["indices"].clone()
    indices[:, 1::2] = indices[:, 0::2]
    once = indices.clone()
    # Named twice in uneven numbers, or both readings agree: the first key four times, the others twice.
    indices[:, 2:4] = indices[:, :1]
    once = _first_only(indices)
    observed = ran(one, inputs, indices=indices)[0]
    counted, collapsed = (truth(inputs, indices=named)[0] for named in (indices, once))
    if near(counted, collapsed):
        return UNKNOWN
    return "counted" if near(observed, counted) else "collapsed" if near(observed, collapsed) else UNKNOWN


def _first_only(indices: Tensor) -> Tensor:
    same = indices[:, :, None] == indices[:, None, :]
    earlier = torch.tril(same, -1).any(-1)
    return torch.where(earlier, -1, indices)


def ask_causal(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    options = ("dense-mask",) if one.operator == "masked_mha" else ()
    inputs = make(case_of(one.operator, geometry, dtype, ((6,), (40,)), options=options), load(geometry), device)
    observed = ran(one, inputs)[0]
    if near(observed, truth(inputs)[0]):
        return "bottom-right; 6 queries over 40 keys"
    corner = {name: inputs.tensors[name][:6] for name in ("k", "v")}
    cu_k = torch.tensor([0, 6], dtype=torch.int32, device=observed.device)
    if one.operator == "dense_mha" and near(observed, truth(inputs, **corner, cu_k=cu_k)[0]):
        return "top-left; 6 queries over 40 keys"
    return UNKNOWN


def ask_short(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    """The order of a window that has no more keys than are asked for."""
    inputs = make(case_of(one.operator, geometry, dtype, ((4, 3), (20, 9))), load(geometry), device)
    observed, exact = ran(one, inputs)[0], truth(inputs)[0]
    if torch.equal(observed.long(), exact.long()):
        return f"identity; {len(exact)} rows"
    if observed.shape == exact.shape and torch.equal(observed.long().sort(1).values, exact.long().sort(1).values):
        return "any; all keys, in another order than 0, 1, …"
    return UNKNOWN


def ask_repeats(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    inputs = make(case_of(one.operator, geometry, dtype, ((9, 4), (200, 90))), load(geometry), device)
    first = ran(one, inputs)
    for again in range(1, RUNS):
        if not all(_bits(a, b) for a, b in zip(first, ran(one, inputs), strict=True)):
            return f"no; run {again + 1} differs from the first"
    return f"yes; {RUNS} runs agree bit for bit"


def ask_batch(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    """A request in a batch of three and alone: its values are the same by construction."""
    lengths = ((9, 1, 5), (200, 70, 130))
    batch = make(case_of(one.operator, geometry, dtype, lengths), load(geometry), device)
    alone = make(case_of(one.operator, geometry, dtype, ((5,), (130,)), options=("ids-2",)), load(geometry), device)
    if not near(truth(batch)[0][10:], truth(alone)[0]):
        return UNKNOWN
    for a, b in zip(ran(one, batch), ran(one, alone), strict=True):
        if not _bits(a[10:], b):
            return "no; a request in a batch differs from itself alone"
    return f"{UNKNOWN}; no difference seen between a request in a batch of three and alone"


def _bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


#: Cases on which probabilities of too low a precision are seen.
_POWER = (
    {"lengths": ((16, 9), (48, 33)), "kind": "offset"},
    {"lengths": ((20,), (40,)), "kind": "small"},
    {"lengths": ((24,), (260,)), "kind": "grid"},
    {"lengths": ((24,), (60,)), "kind": "randn"},
)


def ask_probabilities(one: Implementation, geometry: str, dtype: str, device: str) -> str:
    """The finest format of P that the verdict does not refute; what it finds in the LSE says nothing about P."""
    own = one.contract
    candidates: tuple[tuple[str, Format | None], ...] = (("fp32", "fp32"), (f"that of the values ({dtype})", None))
    for name, candidate in candidates:
        held = replace(one, contract=replace(own, probabilities=candidate))
        if all(_holds(held, geometry, dtype, device, fields) for fields in _POWER):
            return f"{candidate or 'none'}; {len(_POWER)} cases hold with {name}"
    return f"{UNKNOWN}; neither fp32 nor the values' format explains its errors"


def _holds(one: Implementation, geometry: str, dtype: str, device: str, fields: dict[str, Any]) -> bool:
    case = case_of(one.operator, geometry, dtype, fields["lengths"], kind=fields["kind"])
    verdict = check(case, one, device=device)
    return verdict.judged and not [finding for finding in verdict.findings if finding.check != "lse"]


PROBES: tuple[Probe, ...] = (
    Probe("lse", (*_ATTENTION, "merge_lse"), ask_lse),
    Probe("empty", _ATTENTION, ask_empty),
    Probe("invalid", ("sparse_mqa",), ask_invalid),
    Probe("duplicates", ("sparse_mqa",), ask_duplicates),
    Probe("causal", ("dense_mha", "masked_mha"), ask_causal),
    Probe("short", ("topk_select",), ask_short),
    Probe("repeats", (*_ATTENTION, "merge_lse", "indexer_scores"), ask_repeats),
    Probe("batch", _ATTENTION, ask_batch),
    Probe("probabilities", _ATTENTION, ask_probabilities),
)


def contract_for_probing(contract: Contract, lse: str) -> Contract:
    """The contract under which the later probes judge, once the LSE's base is known."""
    return replace(contract, lse_base={"e": "e", "2": "2", "none": None}.get(lse, contract.lse_base))
