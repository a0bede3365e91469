"""What a layer is made of: the facts that its config states, and its weights under their checkpoint names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..rope import Yarn

#: Of the indexer's LayerNorm; no config states it (DeepSeek-V3.2 at 3b99a53 ``inference/model.py``; vLLM 0.33.0).
INDEX_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Dimensions and conventions of one layer. ``index_heads`` 0: no indexer."""

    hidden: int
    heads: int
    q_lora: int
    latent: int
    nope: int
    rope: int
    v: int
    scale: float
    """Multiplies q.k of the MHA form and of the absorbed one."""
    eps: float
    """Of the RMSNorm of both latents."""
    theta: float
    yarn: Yarn | None = None
    interleaved: bool = True
    """RoPE pairs of the attention: (0, 1), (2, 3), …; False: halves."""
    index_heads: int = 0
    index_dim: int = 0
    topk: int = 0
    index_interleaved: bool = False
    hadamard: bool = False
    """Rotate indexer queries and keys by an orthonormal Hadamard matrix; it cancels in their products."""
    draft: bool = False
    """A layer of multi-token prediction, whose hidden states are made of two others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """Linear weights are [out, in], as ``torch.nn.Linear`` stores them; None: the layer has no such part."""

    q_a: Tensor
    q_a_norm: Tensor
    q_b: Tensor
    kv_a: Tensor
    kv_a_norm: Tensor
    kv_b: Tensor
    o: Tensor
    index_q: Tensor | None = None
    index_k: Tensor | None = None
    index_norm: Tensor | None = None
    index_norm_bias: Tensor | None = None
    index_weights: Tensor | None = None
    draft_embed_norm: Tensor | None = None
    draft_hidden_norm: Tensor | None = None
    draft_proj: Tensor | None = None

    def need(self, name: str) -> Tensor:
        """A weight of the indexer or the draft. Raises ValueError in a layer without one."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            part = "draft input" if name.startswith("draft") else "indexer"
            raise ValueError(f"weights.{name}: expected a tensor, got none: the layer has no {part}")
        return value


def shapes(m: Model) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a full layer."""
    return {
        "q_a": (m.q_lora, m.hidden),
        "q_a_norm": (m.q_lora,),
        "q_b": (m.heads * (m.nope + m.rope), m.q_lora),
        "kv_a": (m.latent + m.rope, m.hidden),
        "kv_a_norm": (m.latent,),
        "kv_b": (m.heads * (m.nope + m.v), m.latent),
        "o": (m.hidden, m.heads * m.v),
        "index_q": (m.index_heads * m.index_dim, m.q_lora),
        "index_k": (m.index_dim, m.hidden),
        "index_norm": (m.index_dim,),
        "index_norm_bias": (m.index_dim,),
        "index_weights": (m.index_heads, m.hidden),
        "draft_embed_norm": (m.hidden,),
        "draft_hidden_norm": (m.hidden,),
        "draft_proj": (m.hidden, 2 * m.hidden),
    }


def random_weights(m: Model, seed: int) -> Weights:
    """Float64 weights of variance 1/in; norms around 1 with distinct columns, and a bias that is not zero.

    Drawn in float32, so that a float32 model holds the same numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes(m).items():
        value = torch.randn(shape, generator=generator, dtype=torch.float32)
        around = 0.0 if name.endswith("bias") else 1.0
        drawn[name] = (0.3 * value + around if "norm" in name else value / shape[-1] ** 0.5).double()
    absent = (*(() if m.index_heads else ("index",)), *(() if m.draft else ("draft",)))
    return Weights(**{name: value for name, value in drawn.items() if not name.startswith(absent)})
