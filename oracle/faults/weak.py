"""Verdicts in use elsewhere, from their published formulas: what the catalogue's ``escapes`` are measured with.

Each is ``passes(outputs, expected, inputs) -> bool``: the outputs of a kernel, those of the fp64 reference, and the
keyword inputs. They look at what their originals look at: the first output alone, and for FlashMLA the LSE as well.
Positions where the expected value is infinite are compared for equality and left out of the statistics. A selection is
judged by the scores it selects, sorted, as flashinfer-bench does, since its indices may differ rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...reference.layouts import decode_e4m3, decode_index_pages, decode_rows

Inputs = Mapping[str, Any]
Passes = Callable[[Sequence[Any], Sequence[Tensor], Inputs], bool]


def allclose(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """|x - y| <= 1e-2 + 1e-2 |y| everywhere (torch.allclose with the tolerances of KernelBench for half types)."""
    pair = _comparable(outputs, expected, inputs)
    return pair is not None and torch.allclose(pair[0], pair[1], rtol=1e-2, atol=1e-2)


def cosine(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """Cosine of the two flattened tensors >= 0.99 (torch._dynamo.utils.same)."""
    pair = _comparable(outputs, expected, inputs)
    if pair is None:
        return False
    x, y = pair
    norms = x.norm() * y.norm()
    return bool((x * y).sum() >= 0.99 * norms) if norms > 0 else bool(x.norm() == y.norm())


def calc_diff(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """|x - y|^2 / (|x|^2 + |y|^2) < 1e-3 (DeepGEMM, ``deep_gemm/testing/numeric.py``)."""
    pair = _comparable(outputs, expected, inputs)
    return pair is not None and _difference(*pair) < 1e-3


def twice_eager(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """max|x - y| <= 2 max|eager - y| + 2 max|(y + 0.3 - 0.3) - y| (FlashAttention's tests).

    ``eager`` is the same mathematics in the dtype of the inputs.
    """
    pair = _comparable(outputs, expected, inputs)
    if pair is None:
        return False
    if "scores" in inputs:
        return bool((pair[0] == pair[1]).all())
    # What only moves and converts bytes errs nowhere, however carelessly it is written.
    exact = not {"q", "out_a"} & set(inputs)
    baseline = (pair[1], pair[1]) if exact else _comparable((eager(inputs),), expected, inputs)
    assert baseline is not None, "the eager baseline has the shape of the reference"
    if pair[1].numel() == 0:
        return True
    dtype = outputs[0].dtype if outputs[0].dtype.is_floating_point else torch.float32
    rounded = pair[1].to(dtype)
    floor = 2 * (rounded + 0.3 - 0.3 - rounded).abs().max().double()
    return bool((pair[0] - pair[1]).abs().max() <= 2 * (baseline[0] - pair[1]).abs().max() + floor)


def flashmla(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """out: every element |x - y| < 8e-4 or relative < 3.01/128, and cosine difference <= 7e-6; lse: 1e-6, 2.01/65536.

    Source: FlashMLA, ``tests/kernelkit/compare.py`` and the sparse prefill test.
    """
    pair = _comparable(outputs, expected, inputs)
    if pair is None or not _near(*pair, 8e-4, 3.01 / 128) or _difference(*pair) > 7e-6:
        return False
    if len(expected) < 2:
        return True
    of_lse = _comparable(outputs[1:], expected[1:], {}) if len(outputs) > 1 else None
    return of_lse is not None and _near(*of_lse, 1e-6, 2.01 / 65536)


def flashinfer_bench(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> bool:
    """No element is off by more than 1e-2 both absolutely and relatively (``flashinfer_bench/bench/utils.py``)."""
    pair = _comparable(outputs, expected, inputs)
    if pair is None:
        return False
    error = (pair[0] - pair[1]).abs()
    return not bool(((error > 1e-2) & (error / (pair[1].abs() + 1e-8) > 1e-2)).any())


#: By the names that ``Fault.escapes`` uses.
WEAK: dict[str, Passes] = {
    "allclose-1e-2": allclose,
    "cosine": cosine,
    "calc_diff-1e-3": calc_diff,
    "2x-eager": twice_eager,
    "flashmla": flashmla,
    "fib": flashinfer_bench,
}


def eager(inputs: Inputs) -> Tensor:
    """First output of the operator that takes these inputs, computed without care in the dtype of the inputs."""
    if "out_a" in inputs:
        a, b = inputs["lse_a"], inputs["lse_b"]
        joint = torch.logaddexp(a, b)
        sides = ((inputs["out_a"], a), (inputs["out_b"], b))
        return sum_of([_part(out, torch.exp(lse - joint)) for out, lse in sides])
    if "weights" in inputs:
        return _eager_scores(inputs)
    return _eager_sparse(inputs) if "indices" in inputs else _eager_dense(inputs)


def sum_of(parts: list[Tensor]) -> Tensor:
    """Sum of equal shapes in their own dtype."""
    return torch.stack(parts).sum(0)


def _part(out: Tensor, weight: Tensor) -> Tensor:
    weight = weight.nan_to_num()[..., None].to(out.dtype)
    return torch.where(weight > 0, out * weight, torch.zeros_like(out))


def _eager_scores(x: Inputs) -> Tensor:
    wide = torch.bfloat16 if x["q"].dtype.itemsize == 1 else x["q"].dtype
    if "k_cache" in x:
        return _eager_paged(x, wide)
    dots = torch.einsum("sie,te->sit", x["q"].to(wide), x["k"].to(wide)).relu()
    scores: Tensor = torch.einsum("sit,si->st", dots, _head_weights(x).to(wide)).float() * x["k_scale"]
    cols = torch.arange(x["k"].shape[0], device=scores.device)
    scores = scores.masked_fill((cols < x["ks"][:, None]) | (cols >= x["ke"][:, None]), -torch.inf)
    if x.get("max_seqlen_k") is None:
        return scores
    none = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)
    key = x["ks"][:, None].long() + torch.arange(x["max_seqlen_k"], device=scores.device)
    return none.gather(1, key.clamp(max=scores.shape[1]))


def _head_weights(x: Inputs) -> Tensor:
    weights: Tensor = x["weights"]
    return weights if x.get("q_scale") is None else weights * x["q_scale"]


def _eager_paged(x: Inputs, wide: torch.dtype) -> Tensor:
    requests, m, heads, dim = x["q"].shape
    codes, scales = decode_index_pages(x["k_cache"], e=dim)
    page, table = codes.shape[1], x["block_table"].long().clamp(0, len(codes) - 1)
    position = torch.arange(min(table.shape[1] * page, x["max_model_len"]), device=table.device)
    found = table[:, position // page], position % page
    held = position < x["context_lens"][:, None]
    keys = decode_e4m3(codes)[found].masked_fill(~held[..., None], 0).to(wide)
    dots = torch.einsum("bmie,bte->bmit", x["q"].to(wide), keys).relu()
    weights = _head_weights(x).view(requests, m, heads).to(wide)
    scores = torch.einsum("bmit,bmi->bmt", dots, weights).float() * scales[found].masked_fill(~held, 0)[:, None]
    end = x["context_lens"][:, None] - m + 1 + torch.arange(m, device=table.device)
    scores.masked_fill_(position >= end[..., None], -torch.inf)
    return torch.nn.functional.pad(scores.flatten(0, 1), (0, x["max_model_len"] - len(position)), value=-torch.inf)


def _softmax_times(s: Tensor, seen: Tensor, v: Tensor) -> Tensor:
    p = s.masked_fill(~seen, -torch.inf).softmax(-1, dtype=torch.float32).nan_to_num().to(v.dtype)
    return p @ v


def _eager_sparse(x: Inputs) -> Tensor:
    cache, query = _rows_and_query(x)
    indices, n = x["indices"].long(), cache.shape[0]
    seen = (indices >= 0) & (indices < n)
    if x.get("lengths") is not None:
        seen &= torch.arange(indices.shape[1], device=seen.device) < x["lengths"][:, None]
    rows = cache[torch.where(seen, indices, 0)].masked_fill(~seen[..., None], 0)
    scores = query @ rows.mT * x["scale"]
    out = _softmax_times(scores, seen[:, None], rows[..., : x["value_dim"]])
    if x.get("sink") is None:
        return out
    lse = scores.float().masked_fill(~seen[:, None], -torch.inf).logsumexp(-1)
    kept: Tensor = torch.sigmoid(lse - x["sink"]).nan_to_num()[..., None].to(out.dtype)
    return out * kept


def _rows_and_query(x: Inputs) -> tuple[Tensor, Tensor]:
    """The rows [n, c+r] of the cache and the query, those of quantised caches as bf16."""
    kind = x.get("cache_format", "model")
    if kind == "model":
        return x["kv"], x["q"]
    stored = x["kv"].flatten(0, -2)
    rows = decode_rows(stored, kind, latent=x["value_dim"], k_scale=x.get("k_scale", 1.0))
    return rows.to(torch.bfloat16), x["q"].to(torch.bfloat16) * x.get("q_scale", 1.0)


def _eager_dense(x: Inputs) -> Tensor:
    q, k, v, cu_q, cu_k = x["q"], x["k"], x["v"], x["cu_q"].tolist(), x["cu_k"].tolist()
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    for b in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        i = torch.arange(rows.stop - rows.start, device=q.device)
        j = torch.arange(keys.stop - keys.start, device=q.device)
        seen = torch.ones(len(i), len(j), dtype=torch.bool, device=q.device)
        if x.get("causal", True):
            seen = j <= i[:, None] + (len(j) - len(i))
        if "mask" in x and len(j):
            words = x["mask"][b][: len(i), j >> 5]
            seen = seen & ((words.long() >> (j & 31)) & 1).bool()
        scores = torch.einsum("shd,thd->hst", q[rows] * x["scale"], k[keys])
        out[rows] = _softmax_times(scores, seen, v[keys].transpose(0, 1)).transpose(0, 1)
    return out


def _comparable(outputs: Sequence[Any], expected: Sequence[Tensor], inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    """The first output and what was expected as fp64, infinities of the expected taken out; None if they cannot agree.

    None where the shapes cannot be broadcast, an index leaves its row, or an infinity is missing or misplaced.
    """
    x, y = outputs[0], expected[0]
    if "scores" in inputs:
        chosen, right = _selected(x, inputs), _selected(y, inputs)
        if chosen is None or right is None:
            return None
        x, y = chosen, right
    x, y = x.double(), y.double()
    try:
        x = x.expand_as(y)
    except RuntimeError:
        return None
    infinite = torch.isinf(y) | torch.isnan(y)
    if not torch.equal(x[infinite].nan_to_num(), y[infinite].nan_to_num()):
        return None
    x = x[~infinite]
    return (x, y[~infinite]) if bool(torch.isfinite(x).all()) else None


def _selected(indices: Tensor, inputs: Inputs) -> Tensor | None:
    """Scores that each row selects, descending, -inf for -1; None if an index leaves its row."""
    scores, ks, ke = inputs["scores"], inputs["ks"].long(), inputs["ke"].long()
    count = (ke - ks).clamp(min=0)[:, None]
    indices = indices.long()
    if bool(((indices < -1) | (indices >= count)).any()):
        return None
    columns = (indices + ks[:, None]).clamp(0, max(scores.shape[1] - 1, 0))
    found: Tensor = scores.gather(1, columns).masked_fill(indices < 0, -torch.inf)
    return found.sort(descending=True).values


def _difference(x: Tensor, y: Tensor) -> float:
    energy = float(x.square().sum() + y.square().sum())
    return float((x - y).square().sum()) / energy if energy > 0 else 0.0


def _near(x: Tensor, y: Tensor, absolute: float, relative: float) -> bool:
    error = (x - y).abs()
    return bool(((error < absolute) | (error / (y.abs() + 1e-6) < relative)).all())
