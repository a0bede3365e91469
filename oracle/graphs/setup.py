"""The small models that sequences run on: the installation of ``layer.small``, in several formats and on kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...reference.arguments import compute_dtype
from ...reference.layer import Operators
from ...reference.routing import Deployment, Rules
from ...reference.topk_select import select_rows
from ..errors import unknown
from ..layer.rig import REFERENCE_OPERATORS, RigSizes
from ..layer.small import DEPLOYMENT, small_rules

BLOCK, LONGEST = DEPLOYMENT.block_size, DEPLOYMENT.max_model_len
#: Most tokens of one step.
MOST = 48

SubjectName = Literal["fused", "generic", "packed", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One model: dated rules, an installation, sizes and operators."""

    name: str
    what: str
    rules: Rules
    deployment: Deployment
    sizes: RigSizes
    triton: bool = False

    def operators(self) -> Operators:
        """Operators that may be captured: none waits for the device."""
        if not self.triton:
            return {**REFERENCE_OPERATORS, "indexer_scores": _indexer_scores, "topk_select": _topk_select}
        from ..replay.operators import injected

        return injected("triton", self.sizes.device).operators


def _indexer_scores(*, q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor) -> tuple[Tensor]:
    """The reference's formula without its look at the scales, which would wait for the device."""
    dtype = compute_dtype(q, k, k_scale, weights)
    wanted = torch.einsum("sie,te->sit", q.to(dtype), k.to(dtype)).relu()
    scores = torch.einsum("si,sit->st", weights.to(dtype), wanted) * k_scale.to(dtype)
    column = torch.arange(k.shape[0], device=k.device)
    inside = (column >= ks[:, None]) & (column < ke[:, None])
    return (scores.masked_fill(~inside, -torch.inf),)


def _topk_select(*, scores: Tensor, ks: Tensor, ke: Tensor, k: int) -> tuple[Tensor]:
    """The reference without its look at the windows, which would wait for the device."""
    return (select_rows(scores, ks[:, None].long(), ke[:, None].long(), k).int(),)


_SIZES = RigSizes(kinds=("full", "shared"), blocks=64, max_tokens=LONGEST)

WHAT = {
    "fused": "the layer, whose fused kernel resets the top-k buffer before the skip test",
    "generic": "the layer that resets it after, so that a skip leaves what lay there",
    "packed": "the fused layer with an e4m3 cache and query, whose rotated dims are in the pack alone",
    "triton": "the fused layer in bf16 on the Triton kernels",
}


def setup(name: str, device: str = "cpu", version: str = "attnoracle") -> Setup:
    """A model by name. Raises BadInput for an unknown one."""
    if name not in WHAT:
        raise unknown("subject", name, WHAT)
    sizes, deployment = replace(_SIZES, device=device), replace(DEPLOYMENT, max_num_seqs=4)
    if name == "generic":
        deployment = replace(deployment, wrapper="generic")
    if name == "packed":
        deployment = replace(deployment, cache="e4m3")
        sizes = replace(sizes, latent_dtype=torch.float8_e4m3fn, k_scale=2.0**-6, q_scale=2.0**-6)
    if name == "triton":
        bf16 = torch.bfloat16
        sizes = replace(sizes, dtype=bf16, latent_dtype=bf16, index_dtype=bf16)
    return Setup(
        name=name,
        what=WHAT[name],
        rules=small_rules(version),
        deployment=deployment,
        sizes=sizes,
        triton=name == "triton",
    )
