"""What the projections of a layer hand to its attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerInputs:
    """Rows are tokens in the order of the arranged batch; RoPE dims of q and k_pe are not rotated yet."""

    q: Tensor
    """[s, h, p+r]: unrotated dims first."""
    kv_c: Tensor
    """[s, c]: normalised latents."""
    k_pe: Tensor
    """[s, r]: shared by all heads."""
    index_q: Tensor | None = None
    """[s, i, e], rotated; None for layers without an indexer."""
    index_k: Tensor | None = None
    """[s, e], rotated: one key a token."""
    index_weights: Tensor | None = None
    """fp32 [s, i]: head weights with all scales folded in."""

    def need(self, field: str) -> Tensor:
        """An indexer input. Raises ValueError if the layer was given none."""
        value: Tensor | None = getattr(self, field)
        if value is None:
            raise ValueError(f"layer input {field!r}: expected a tensor for a layer with an indexer, got none")
        return value
