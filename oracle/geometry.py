"""The dimensions of a model's attention, and where each of them was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Attention dimensions of one model, as its config states them (whole model, before tensor parallelism)."""

    name: str
    heads: int
    kv_lora_rank: int
    """c: latent rank; the first c columns of a cache row are its values."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """r: rotated dims; 0 for NoPE models."""
    v_head_dim: int
    softmax_scale: float
    """Multiplies q.k in both the MHA and the absorbed MQA form."""
    index_n_heads: int | None
    """None: only the attention operators of this model are known."""
    index_head_dim: int | None
    index_topk: int
    """Slots a query selects; 0 where the indexer is not known."""
    hidden_size: int | None = None
    q_lora_rank: int | None = None
    num_layers: int | None = None
    rope_theta: float | None = None
    rope_interleaved: bool = True
    """Main attention RoPE pairs: (0, 1), (2, 3), …; False: halves (NeoX)."""
    index_rope_interleaved: bool | None = None
    max_positions: int | None = None
    indexer_full_layers: tuple[int, ...] = ()
    """Layers that score and select; the others reuse the selection of the last such layer."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """For every field: the config key it was read from, or the rule that derived or chose it."""

    @property
    def qk_head_dim(self) -> int:
        """d of the MHA form."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """c + r: width of a cache row and of an absorbed query."""
        return self.kv_lora_rank + self.qk_rope_head_dim
