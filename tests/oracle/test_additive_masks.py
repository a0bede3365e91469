"""A kernel that adds -inf to the scores of what it leaves out is right: no input may make those scores overflow."""

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.optimized.torch_kernels.requests import requests, unpack_mask
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check

FP32 = Contract(probabilities="fp32", lse_base=None)
SCORES = Contract(probabilities="fp32", output="fp32", lse_base=None)


def _added(seen):
    return torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)


def masked_mha(q, k, v, mask, cu_q, cu_k, *, scale, causal=True):
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    for request in requests(cu_q, cu_k):
        queries, keys, values = q[request.queries].float(), k[request.keys].float(), v[request.keys].float()
        scores = torch.einsum("shd,thd->hst", queries, keys) * scale + _added(unpack_mask(mask, request, causal))
        weights = scores.softmax(-1).nan_to_num(0.0)  # a query that selects nothing
        out[request.queries] = torch.einsum("hst,thv->shv", weights, values).to(q.dtype)
    return (out,)


def indexer_scores(q, k, k_scale, weights, ks, ke, *, q_scale=None, max_seqlen_k=None):
    """The tensor is whole, and the window is added."""
    key = torch.arange(k.shape[0])
    scores = torch.einsum("sie,te->sit", q.float(), k.float()).relu()
    total = torch.einsum("sit,si->st", scores, weights) * k_scale
    return (total + _added((key >= ks[:, None]) & (key < ke[:, None])),)


@pytest.mark.parametrize("poison", ["huge", "stale"])
@pytest.mark.parametrize(
    ("kernel", "contract", "sizes"),
    [
        (masked_mha, FP32, "masked_mha:tiny:h4:q9,1,3,5:k90,40,33,50:top20:bf16:{}:contiguous:poison-{}:s{}"),
        (masked_mha, FP32, "masked_mha:tiny:h4:q9,1,3,5:k90,40,33,50:top20:fp16:{}:contiguous:poison-{}:s{}"),
        (indexer_scores, SCORES, "indexer_scores:tiny:h4:q9,0,3:k20,7,30:bf16:{}:contiguous:poison-{}:s{}"),
        (indexer_scores, SCORES, "indexer_scores:tiny:h4:q9,0,3:k20,7,30:e4m3:{}:contiguous:poison-{}:s{}"),
    ],
    ids=["masked-bf16", "masked-fp16", "indexer-bf16", "indexer-e4m3"],
)
def test_it_is_no_failure(kernel, contract, sizes, poison):
    mine = Implementation(f"{kernel.__name__}/added", contract, lambda facts: None, lambda: kernel)
    for kind in ("randn", "powers"):
        for seed in range(3):
            verdict = check(Case.parse(sizes.format(kind, poison, seed)), mine)
            assert verdict.status in ("PASS", "WEAK"), (verdict.case.id, verdict.reason)
