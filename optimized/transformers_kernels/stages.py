"""The attention of a model that transformers ships, on small dims, with the intermediates that are seen from outside.

Linear layers and norms are hooked; rotated heads are what the attention function is given; the indexer's queries, keys
and weights are the operands of its first two products, and its scores what ``topk`` is called on. Nothing of the module
is replaced. Where it puts the pairs of interleaved RoPE apart (even dims, then odd ones), which its products do not
see, they are put together again.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .products import Products

#: model_type -> (module under transformers.models, prefix of its classes)
FAMILIES: Mapping[str, tuple[str, str]] = {
    "glm_moe_dsa": ("glm_moe_dsa", "GlmMoeDsa"),
    "deepseek_v32": ("deepseek_v32", "DeepseekV32"),
}
_HOOKED = ("q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm")


class Shipped:
    """One attention layer. Raises ImportError where this release of transformers has no such model."""

    def __init__(self, fields: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
        folder, prefix = FAMILIES[fields["model_type"]]
        base = f"transformers.models.{folder}"
        self.modeling: Any = importlib.import_module(f"{base}.modeling_{folder}")
        configuration = importlib.import_module(f"{base}.configuration_{folder}")
        known = {key: value for key, value in fields.items() if key not in ("architectures", "model_type")}
        self.config = getattr(configuration, f"{prefix}Config")(**known)
        self.config._attn_implementation = "eager"
        self.attention: nn.Module = getattr(self.modeling, f"{prefix}Attention")(self.config, layer_idx=0)
        self.attention.load_state_dict(dict(state))
        self.attention.eval()
        self.rotary: nn.Module = getattr(self.modeling, f"{prefix}RotaryEmbedding")(self.config)
        self.cache: Any = None

    @torch.no_grad()
    def run(self, hidden: Tensor, start: int, *, cached: bool) -> dict[str, Tensor]:
        """Intermediates of the new tokens hidden [s, x] from position ``start`` on; ``cached``: they are kept."""
        from transformers import DynamicCache

        if cached and self.cache is None:
            self.cache = DynamicCache(config=self.config)
        s, total = len(hidden), start + len(hidden)
        positions = torch.arange(start, total)
        mask = torch.full((s, total), torch.finfo(hidden.dtype).min).triu(start + 1)[None, None]
        seen: dict[str, Tensor] = {}
        handles = [self._hook(name, seen) for name in _HOOKED]
        products: Any = Products()
        indexer = self.attention.get_submodule("indexer")
        handles.append(indexer.register_forward_pre_hook(lambda *_: products.__enter__() and None))
        handles.append(indexer.register_forward_hook(lambda *_: products.__exit__(None, None, None)))
        plain = self.modeling.eager_attention_forward

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = plain(module, query, key, value, *args, **kwargs)
            seen["query"], seen["key"], seen["attended"] = query[0].transpose(0, 1), key[0, 0], result[0][0]
            return result

        self.modeling.eager_attention_forward = attend
        try:
            embedded = self.rotary(hidden[None], positions[None])
            given = {"position_embeddings": embedded, "attention_mask": mask, "position_ids": positions[None]}
            if cached:
                given["past_key_values" if "past_key_values" in self._parameters() else "cache"] = self.cache
                given["cache_position"] = positions
            out = self.attention(hidden_states=hidden[None], **given)[0][0]
        finally:
            self.modeling.eager_attention_forward = plain
            for handle in handles:
                handle.remove()
        return self._named(seen, products, out)

    def _parameters(self) -> set[str]:
        import inspect

        return set(inspect.signature(inspect.unwrap(self.attention.forward)).parameters)

    def _hook(self, name: str, seen: dict[str, Tensor]) -> Any:
        def keep(module: nn.Module, args: Any, result: Tensor) -> None:
            seen[name] = result[0]

        return self.attention.get_submodule(name).register_forward_hook(keep)

    def _named(self, seen: Mapping[str, Tensor], products: Products, out: Tensor) -> dict[str, Tensor]:
        c = self.config
        rope, heads, dim = c.qk_rope_head_dim, c.index_n_heads, c.index_head_dim
        query, key = seen["query"].clone(), seen["key"]
        apart = hasattr(self.modeling, "apply_rotary_pos_emb_interleave")
        if apart:
            query[..., -rope:] = _together(query[..., -rope:])
        found = {
            "q_c": seen["q_a_layernorm"],
            "q": seen["q_b_proj"].view(len(query), c.num_attention_heads, -1),
            "kv_c": seen["kv_a_layernorm"],
            "k_pe": seen["kv_a_proj_with_mqa"][:, c.kv_lora_rank :],
            "q_rotated": query,
            "k_rotated": _together(key[:, -rope:]) if apart else key[:, -rope:],
            "attended": seen["attended"],
            "out": out,
        }
        if len(products.operands) < 2 or products.topk is None:
            return found
        (q, k), (first, second) = products.operands[:2]
        k = k if k.shape[-1] == dim and k.dim() == 3 else k.transpose(-1, -2)
        weights = next(each for each in (first, second) if each.numel() == len(query) * heads)
        q, k = q.reshape(len(query), heads, dim).clone(), k.reshape(-1, dim).clone()
        if apart and not hasattr(self.modeling, "apply_rotary_pos_emb"):
            q[..., :rope], k[..., :rope] = _together(q[..., :rope]), _together(k[..., :rope])
        scores, indices = (each[0] for each in products.topk)
        scores = scores.masked_fill(scores < -1e30, -torch.inf)
        kept = scores.gather(1, indices.long()) > -torch.inf
        indices = torch.where(kept, indices, -1)  # what the mask hides is selected too where a query sees few keys
        indices = nn.functional.pad(indices, (0, c.index_topk - indices.shape[1]), value=-1).int()
        named = {"index_q": q, "index_k": k, "weights": weights.reshape(-1, heads) * dim**-0.5}
        return found | named | {"scores": scores, "indices": indices}


def _together(x: Tensor) -> Tensor:
    """[…, even dims, odd dims] -> pairs."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2)
