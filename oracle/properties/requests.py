"""Some of a call's requests, as a call of their own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .call import Arguments, Call
from .keys import spans

#: Keywords with an entry for each row of the answer, by operator.
_ROWS: dict[str, tuple[str, ...]] = {
    "sparse_mqa": ("q", "indices", "lengths"),
    "indexer_scores": ("q", "weights", "ks", "ke", "q_scale"),
    "topk_select": ("scores", "ks", "ke"),
    "merge_lse": ("out_a", "lse_a", "out_b", "lse_b"),
    "quantize": ("x",),
}


def rows_by_request(call: Call, a: Arguments) -> list[Tensor]:
    """Which rows of the answer belong to each request; rows of an operator without requests are shared out alike."""
    device = next(value.device for value in a.values() if isinstance(value, Tensor))
    if call.name in ("dense_mha", "masked_mha"):
        ends = spans(a["cu_q"])
    elif call.name == "paged_indexer_scores":
        m = a["q"].shape[1]
        ends = [(r * m, r * m + m) for r in range(len(a["q"]))]
    elif call.name == "quantize":
        ends = [(row, row + 1) for row in range(len(a["x"]))]
    else:
        stops = list(accumulate(call.case.q_lens))
        ends = list(zip([0, *stops[:-1]], stops, strict=True))
    return [torch.arange(start, stop, device=device) for start, stop in ends]


def selected(call: Call, a: Arguments, requests: list[int]) -> dict[str, Any]:
    """The call with these requests alone, in this order."""
    groups = rows_by_request(call, a)
    rows = torch.cat([groups[r] for r in requests])
    if call.name in ("dense_mha", "masked_mha"):
        return _packed(a, requests, rows)
    if call.name == "paged_indexer_scores":
        chosen = torch.tensor(requests, device=rows.device)
        by_request = {name: a[name][chosen] for name in ("q", "context_lens", "block_table")}
        by_row = {name: a[name][rows] for name in ("weights", "q_scale") if a.get(name) is not None}
        return {**a, **by_request, **by_row}
    return {**a, **{name: a[name][rows] for name in _ROWS[call.name] if a.get(name) is not None}}


def _packed(a: Arguments, requests: list[int], rows: Tensor) -> dict[str, Any]:
    q_spans, k_spans = spans(a["cu_q"]), spans(a["cu_k"])
    keys = torch.cat([torch.arange(*k_spans[r], device=rows.device) for r in requests])
    changed = {**a, "q": a["q"][rows], "k": a["k"][keys], "v": a["v"][keys]}
    for name, each in (("cu_q", q_spans), ("cu_k", k_spans)):
        lengths = torch.tensor([0, *(each[r][1] - each[r][0] for r in requests)], device=rows.device)
        changed[name] = lengths.cumsum(0).to(a[name].dtype)
    if "mask" in a:
        changed["mask"] = a["mask"][torch.tensor(requests, device=rows.device)]
    return changed
