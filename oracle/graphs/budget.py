"""How far two runs of the same arithmetic may lie apart when rows are batched, padded and gathered differently.

u is the unit roundoff of an operator's working precision: of the model's dtype, fp32 at least, and of fp32 where
attention reads e4m3 on both sides, whatever the model's dtype (``compute_dtype``).

*Sums.* A sum of n products, in any two orders, differs by at most ``2 n u sum |a b|`` (Higham, section 3.1), and a
vector that a matrix W gives by ``2 n u |W|_F |x|``. Scores are sums of c + r products, of c + r + p or c + r + c where
a projection stands before them, and of six roundings for the scales and the exponent; in the MQA form the sizes are at
most ``|q'| |kv|``, in the MHA form ``|q_nope| |w_uk|_F |kv_c| + |q_pe| |k_pe|``. A rotation keeps a length.

*Codes.* A packed query holds e4m3 codes of what the projection gave. One whose exact value lies within the error of
the projection's sum from the edge of two codes may come out as either. Both ends of that interval are rounded as the
layer rounds, to the model's dtype and then to a code (fp64 by way of fp32), which is monotone: the two codes bound what
any order can give. Everywhere else the code is certain, and the allowance zero. The query's rotated dims and the rows
of the cache have no such interval: they are inputs, or rotated element by element, which gives the same bits in any
batch.

*Softmax.* Scores that move by at most d move the weights by at most d in sum, since the mean absolute deviation of
numbers within +-d is at most d: the latent output moves by ``d max |kv_c|``. Weights, their sum and the output add
``2 (t + 4) u`` of that size, and where a kernel rounds q, k, P, v and its output to a narrower format, either way, each
adds one spacing. The projections behind it carry a latent error on by ``|w_uv^T w_o|`` and an error of their own by
``|w_uv|_F |w_o|``, summed over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, Parts, pack_e4m3
from .setup import LONGEST

#: Roundings of one score besides its sum: three scales, the row's maximum or LSE, the difference, the exponential.
_OTHERS = 6
#: Of a weight and an output besides theirs: the row's sum, its quotient, two of the step's largest value.
_AFTER = 4


class Lengths(NamedTuple):
    """Largest lengths of the step's queries and of the keys that the cache may hold."""

    nope: float
    """|q_nope| |w_uk|_F: bounds the sizes of what is projected, on either side of the product."""
    pe: float
    absorbed: float
    """|q'| = |cat(w_uk^T q_nope, q_pe)|."""
    latent: float
    k_pe: float
    row: float
    """|cat(kv_c, k_pe)|."""


def budget(parts: Parts, seen: Sequence[LayerInputs], w_o: Tensor, dtype: torch.dtype, *, packed: bool) -> float:
    """Largest difference of an output element of a step between two runs of a layer in ``dtype``.

    ``seen``: the inputs of every step that the cache has seen, the last being the step's own. ``packed``: sparse MQA
    read e4m3 queries in it.
    """
    wide = torch.promote_types(dtype, torch.float32)
    working = _unit(wide)
    attending = _unit(torch.float32) if packed else working
    narrow = _unit(dtype) if dtype != wide else 0.0
    w_uv, w_out = parts.w_uv.double(), w_o.double().to(parts.w_uv.device)
    rank, width = w_uv.shape[2], parts.deployment.latent_dim
    size = _lengths(parts, seen)
    mqa = size.absorbed * size.row
    mha = size.nope * size.latent + size.pe * size.k_pe
    sums = max(
        2 * (width + _OTHERS) * attending * mqa + 2 * parts.w_uk.shape[1] * working * size.nope * size.latent,
        2 * (width + rank + _OTHERS) * working * mha,
    )
    scores = parts.scale * (sums + 4 * narrow * max(mqa, mha))
    if packed:
        scores += parts.scale * float(code_spread(parts, seen[-1].q, dtype).norm(dim=-1).amax()) * size.row
    own = 2 * (LONGEST + _AFTER) * attending + 6 * narrow + 2 * (rank + w_out[..., 0].numel() + _AFTER) * working
    carried = torch.einsum("hvc,hvo->hco", w_uv, w_out).norm(dim=1).sum(0).amax()
    projected = (w_uv.norm(dim=(1, 2))[:, None] * w_out.norm(dim=1)).sum(0).amax()
    return float(size.latent * (scores * carried + own * projected))


def code_spread(parts: Parts, q: Tensor, dtype: torch.dtype) -> Tensor:
    """By how much each latent dim of packed queries [s, h, c] may differ between two orders of the projection's sum."""
    assert parts.q_scale is not None
    w_uk = parts.w_uk.double()
    nope = q[..., : w_uk.shape[1]].double().to(w_uk.device)
    exact = torch.einsum("shp,hpc->shc", nope, w_uk)
    sizes = torch.einsum("shp,hpc->shc", nope.abs(), w_uk.abs())
    radius = 2 * w_uk.shape[1] * _unit(torch.promote_types(dtype, torch.float32)) * sizes
    low, high = (
        pack_e4m3(end.to(dtype), parts.q_scale).double() * parts.q_scale for end in (exact - radius, exact + radius)
    )
    return high - low


def _lengths(parts: Parts, seen: Sequence[LayerInputs]) -> Lengths:
    w_uk = parts.w_uk.double()
    q = seen[-1].q.double().to(w_uk.device)
    nope, pe = q[..., : w_uk.shape[1]], q[..., w_uk.shape[1] :]
    absorbed = torch.cat((torch.einsum("shp,hpc->shc", nope, w_uk), pe), -1)
    latents, rotated = (torch.cat([getattr(one, name) for one in seen]).double() for name in ("kv_c", "k_pe"))
    longest = [
        float(found.amax())
        for found in (
            nope.norm(dim=-1) * w_uk.norm(dim=(1, 2)),
            pe.norm(dim=-1),
            absorbed.norm(dim=-1),
            latents.norm(dim=-1),
            rotated.norm(dim=-1),
            torch.cat((latents, rotated), -1).norm(dim=-1),
        )
    ]
    size, width = Lengths(*longest), absorbed.shape[-1]
    if parts.q_scale is not None:
        size = size._replace(absorbed=_stored(size.absorbed, width, parts.q_scale))
    if parts.latent.quantized:
        scale = parts.latent.k_scale
        size = size._replace(**{name: _stored(getattr(size, name), width, scale) for name in ("latent", "k_pe", "row")})
    return size


def _stored(length: float, width: int, scale: float) -> float:
    """The largest length that rounding a vector to e4m3 codes may leave."""
    e4m3 = torch.finfo(torch.float8_e4m3fn)
    return length * (1 + e4m3.eps / 2) + sqrt(width) * scale * e4m3.tiny * e4m3.eps / 2


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
