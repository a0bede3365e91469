"""The facts of an installation that routing depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Model dimensions, device, parallelism and switches; everything that stays from step to step."""

    backend: str
    """Sparse-MLA backend, such as FLASHMLA_SPARSE."""
    device_family: int
    """Compute capability family: 90, 100, 120."""
    local_heads: int
    """Heads of one tensor-parallel rank."""
    tensor_parallel: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_topk: int
    cache: Literal["model", "e4m3", "fp8_ds_mla"] = "model"
    """Format of the latent cache; ``model``: unquantised."""
    wrapper: Literal["fused", "generic"] = "fused"
    """Fused: fills the buffer with -1 before the skip test. Generic: clears it after, so a skip leaves stale rows."""
    platform: str = "cuda"
    provider: str = "flash-attention"
    """Who offers masked MHA."""
    flash_attention: int | None = None
    """Major version of the flash-attention kernels, None: not installed."""
    implementation_supports_dense: bool = True
    layer_supports_dense: bool | None = None
    """The layer's own flag; None: what the rules of the version say."""
    prefill_backend_usable: bool = True
    prefill_backend_named: str | None = None
    """The dense prefill backend that the user asked for by name."""
    force_mqa: bool = False
    hisparse: bool = False
    dcp: int = 1
    """Decode context-parallel ranks."""
    dcp_varlen: bool = True
    """Whether the backend takes decodes of several lengths under DCP."""
    pcp: int = 1
    """Prefill context-parallel ranks."""
    speculative_tokens: int = 0
    max_model_len: int = 131072
    max_num_seqs: int = 256
    block_size: int = 64
    cp_interleave: int = 1
    """Consecutive cache rows that one context-parallel rank keeps."""

    def __post_init__(self) -> None:
        for name in ("local_heads", "tensor_parallel", "index_topk", "dcp", "pcp", "block_size", "cp_interleave"):
            if getattr(self, name) < 1:
                raise ValueError(f"deployment field {name!r}: expected at least 1, got {getattr(self, name)}")
        if self.speculative_tokens < 0:
            raise ValueError(
                f"deployment field 'speculative_tokens': expected 0 or more, got {self.speculative_tokens}"
            )

    @property
    def total_heads(self) -> int:
        return self.local_heads * self.tensor_parallel

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim
