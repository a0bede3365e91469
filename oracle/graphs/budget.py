"""How far two runs of the same arithmetic may lie apart when rows are batched, padded and gathered differently.

A sum of n products of working precision u differs by at most ``2 n u sum |a b|`` between two orders. A score then
differs by ``d = 2 n u scale |q| |k|`` (Cauchy-Schwarz), the weights by a factor of ``exp(2 d)``, and the output of the
attention by ``(2 d + 2 n u + f) max |v|``, where f are the roundings of P and of the output to the kernels' format. A
query that is rounded to a narrower format may round either way where it lies on the edge of two codes: that is one
spacing of that format, once in q and once in the output. The projections multiply by the sums of their absolute
weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, Parts
from .setup import LONGEST


def budget(parts: Parts, seen: Sequence[LayerInputs], w_o: Tensor, dtype: torch.dtype) -> float:
    """Largest difference of an output element of a layer that has seen these inputs, in ``dtype``."""
    working = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    narrow = torch.finfo(dtype).eps / 2 if dtype != torch.promote_types(dtype, torch.float32) else 0.0
    w_uk, w_uv = parts.w_uk.double(), parts.w_uv.double()
    nope, terms = w_uk.shape[1], parts.deployment.latent_dim + LONGEST
    latents = torch.cat([one.kv_c for one in seen]).double()
    keys = torch.cat([torch.cat((one.kv_c, one.k_pe), -1) for one in seen]).double().norm(dim=-1).amax()
    queries = torch.cat([one.q for one in seen]).double()
    absorbed = torch.cat((torch.einsum("shp,hpc->shc", queries[..., :nope], w_uk), queries[..., nope:]), -1)
    scores = parts.scale * absorbed.norm(dim=-1).amax() * keys * (2 * terms * working + 2 * narrow)
    attended = (2 * scores + 2 * terms * working + 4 * narrow) * latents.abs().amax()
    out = attended * w_uv.abs().sum(-1).amax() + 2 * terms * working * latents.abs().amax() * w_uv.abs().sum(-1).amax()
    return float(out * w_o.double().abs().sum((0, 1)).amax() * (1 + terms * working))
