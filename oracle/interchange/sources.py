"""Sources of ``run``, the reference that a definition holds: plain PyTorch, for people and for other tools."""

from __future__ import annotations

DSA = """import math

import torch


@torch.no_grad()
def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    \"\"\"Every token attends to the cache rows it names; -1 names none. The LSE is in base 2.\"\"\"
    values = ckv_cache.flatten(0, 1).float()
    keys = torch.cat((values, kpe_cache.flatten(0, 1).float()), -1)
    q = torch.cat((q_nope, q_pe), -1).float()
    output = torch.zeros(q_nope.shape, dtype=torch.float32, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, device=q.device)
    for token in range(q.shape[0]):
        rows = sparse_indices[token]
        rows = rows[rows >= 0].long()
        if rows.numel() == 0:
            continue
        scores = q[token] @ keys[rows].T * sm_scale  # [heads, rows]
        lse[token] = torch.logsumexp(scores, -1) / math.log(2.0)
        output[token] = torch.softmax(scores, -1) @ values[rows]
    return output.to(q_nope.dtype), lse
"""

MLA = """import math

import torch


@torch.no_grad()
def run(q, k, v, seq_indptr, sm_scale):
    \"\"\"Causal attention of every prompt over itself. The LSE is in base 2.\"\"\"
    output = torch.zeros(*q.shape[:2], v.shape[-1], dtype=torch.float32, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, device=q.device)
    bounds = seq_indptr.tolist()
    for start, stop in zip(bounds, bounds[1:]):
        if start == stop:
            continue
        part = slice(start, stop)
        scores = torch.einsum("shd,thd->hst", q[part].float(), k[part].float()) * sm_scale
        hidden = torch.ones(stop - start, stop - start, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
        lse[part] = (torch.logsumexp(scores, -1) / math.log(2.0)).T
        output[part] = torch.einsum("hst,thv->shv", torch.softmax(scores, -1), v[part].float())
    return output.to(q.dtype), lse
"""


def own(operator: str, names: tuple[str, ...]) -> str:
    """Calls the reference of attnoracle: the operators that no other tool has a name for."""
    arguments = ", ".join(names)
    passed = ", ".join(f"{name}={name}" for name in names)
    return f"from attnoracle.reference import {operator}\n\n\ndef run({arguments}):\n    return {operator}({passed})\n"
