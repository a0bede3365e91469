"""Dense attention as two matmuls and a softmax, the way a model is first written."""

from __future__ import annotations

import torch
from torch import Tensor

from .precision import exact_fp32
from .requests import causal_mask, requests


@exact_fp32
def dense_mha(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """q [s,h,d], k [t,h,d], v [t,h,v] -> out [s,h,v], lse fp32 [s,h], natural log.

    Scores and softmax in fp32 of the widened inputs; the probabilities, divided by their unrounded sum, are rounded to
    the dtype of v; the second product adds in fp32 and rounds the output once.
    """
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for request in requests(cu_q, cu_k):
        queries, keys, values = (x.transpose(0, 1) for x in (q[request.queries], k[request.keys], v[request.keys]))
        scores = torch.bmm(queries.float(), keys.float().mT) * scale
        if causal:
            seen = causal_mask(request.query_count, request.key_count, q.device)
            scores.masked_fill_(~seen, float("-inf"))
        log_sum = torch.logsumexp(scores, dim=-1)
        weights = torch.softmax(scores, dim=-1).masked_fill(log_sum.isneginf().unsqueeze(-1), 0.0)
        out[request.queries] = torch.bmm(weights.to(v.dtype), values).transpose(0, 1)
        lse[request.queries] = log_sum.transpose(0, 1)
    return out, lse
