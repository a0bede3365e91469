"""The scoring stage of the indexer that transformers ships for GLM-MoE-DSA.

The module computes hidden states -> projections -> RoPE -> scores -> top-k and returns the selection alone. Here its
projections and its norm hand through what the case gives them, RoPE turns by no angle, and the scores are caught where
they are handed to ``topk``; everything between is the module's own. Its factors e^-1/2 and i^-1/2 are inside the
``weights`` of a case, so they are divided out.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from ..torch_kernels.precision import exact_fp32
from .products import Products


class _Columns(nn.Module):
    """Hands through some columns of the hidden states, where the module has a projection."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns
        self.register_buffer("weight", torch.empty(0))  # the module asks for its dtype

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[..., self.columns]


def make_indexer(heads: int, width: int) -> nn.Module:
    """The module without weights, its projections replaced. Raises ImportError without transformers."""
    from transformers.models.glm_moe_dsa.configuration_glm_moe_dsa import GlmMoeDsaConfig
    from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer

    config = GlmMoeDsaConfig(
        hidden_size=width + heads,
        index_n_heads=heads,
        index_head_dim=width,
        index_topk=1,
        q_lora_rank=heads * width,
        qk_rope_head_dim=width // 2,
        num_hidden_layers=1,
    )
    with torch.device("meta"):
        module: nn.Module = GlmMoeDsaIndexer(config, layer_idx=0)
    module.wq_b = nn.Identity()
    module.k_norm = nn.Identity()
    module.wk = _Columns(slice(0, width))
    module.weights_proj = _Columns(slice(width, width + heads))
    return module


@exact_fp32
def indexer_scores(
    q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor, *,
    q_scale: Tensor | None = None, max_seqlen_k: int | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """q [s,i,e], k [t,e], k_scale [t], weights and q_scale [s,i], ks, ke int32 [s] -> (scores fp32 [s,t],).

    -inf outside [ks,ke); with ``max_seqlen_k`` [s,max_seqlen_k] from ks on.
    Raises RuntimeError for a version whose indexer hands nothing to ``topk``.
    """
    if q_scale is not None:
        weights = weights * q_scale
    (queries, heads, width), keys, device = q.shape, k.shape[0], q.device
    tokens = max(queries, keys, 1)  # the module takes no empty batch
    # One token of the module carries query number n and key number n of the case.
    hidden = torch.zeros(1, tokens, width + heads, device=device)
    hidden[0, :keys, :width] = k.float()
    hidden[0, :queries, width:] = weights.float()
    lora = torch.zeros(1, tokens, heads * width, device=device)
    lora[0, :queries] = q.flatten(1).float()
    column = torch.arange(tokens, device=device)
    inside = torch.zeros(tokens, tokens, dtype=torch.bool, device=device)
    inside[:queries] = (column >= ks[:, None]) & (column < ke[:, None])
    angle = torch.zeros(1, tokens, width // 2, device=device)
    module = make_indexer(heads, width)
    known = {
        "hidden_states": hidden,
        "q_resid": lora,
        "position_embeddings": (angle.cos(), angle.sin()),
        "attention_mask": torch.zeros(inside.shape, device=device).masked_fill_(~inside, -torch.inf)[None],
        "position_ids": column[None],
    }
    taken = inspect.signature(inspect.unwrap(module.forward)).parameters
    caught = Products()
    with caught:
        module(**{name: value for name, value in known.items() if name in taken})
    if caught.topk is None:
        raise RuntimeError("this version of transformers hands no scores to topk; they cannot be caught")
    scores = caught.topk[0][0, :queries, :keys].float() / (heads**-0.5 * width**-0.5) * k_scale
    # The module's mask is added, and a NaN under it stays one; what it leaves out nobody selects.
    scores = scores.masked_fill(~inside[:queries, :keys], -torch.inf)
    if max_seqlen_k is None:
        return (scores,)
    key = ks[:, None].long() + torch.arange(max_seqlen_k, device=device)
    none = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)  # the last column stands for no key
    return (none.gather(1, key.clamp(max=keys)),)
