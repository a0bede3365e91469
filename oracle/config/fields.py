"""Reads a geometry from a Hugging Face model config.

Every dimension that decides a result must be in the config; a value that engines derive or assume is derived here by a
stated rule, and ``Geometry.sources`` says which. Formulas and rules are those of vLLM 0.33.0
(``rotary_embedding/deepseek_scaling_rope.py``, ``mla_attention.py``, ``models/deepseek_v32``) unless a comment names
another source.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..geometry import Geometry
from .indexer_layers import full_layers
from .reader import Reader

#: Whether the indexer rotates pairs (0, 1), (2, 3), …, for configs without ``indexer_rope_interleave``.
#: deepseek_v32: the note of 2025-11-17 in the DeepSeek-V3.2-Exp README; glm_moe_dsa: huggingface/transformers#46842.
_INDEX_ROPE = {"deepseek_v32": False, "glm_moe_dsa": True}
_INDEXER = ("index_n_heads", "index_head_dim", "index_topk")


def parse(config: Reader) -> Geometry:
    """The geometry that a config states."""
    heads = config.count("num_attention_heads")
    latent = config.count("kv_lora_rank")
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim", least=0)
    if rope % 2:
        raise config.bad("qk_rope_head_dim", "an even number: RoPE rotates pairs", rope)
    stated = config.optional_count("qk_head_dim")
    if stated is not None and stated != nope + rope:
        raise config.bad("qk_head_dim", f"qk_nope_head_dim + qk_rope_head_dim = {nope + rope}", stated)
    attention: dict[str, Any] = {
        "heads": heads,
        "kv_lora_rank": latent,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": config.count("v_head_dim"),
        "softmax_scale": _softmax_scale(config, nope + rope),
        "rope_theta": _theta(config, rope),
        "rope_interleaved": _rope_interleaved(config),
        "hidden_size": config.optional_count("hidden_size"),
        "q_lora_rank": config.optional_count("q_lora_rank"),
        "num_layers": config.optional_count("num_hidden_layers", field="num_layers"),
        "max_positions": config.optional_count("max_position_embeddings", field="max_positions"),
    }
    config.sources["heads"] = config.sources.pop("num_attention_heads")
    indexer = _indexer(config, rope, attention["num_layers"])
    config.sources["name"] = f"name of {config.path.name}" if config.path.stem != "config" else "name of the folder"
    sources = {field: source for field, source in config.sources.items() if field in Geometry.__dataclass_fields__}
    return Geometry(name=_name(config.path), **attention, **indexer, sources=sources)


def _name(path: Path) -> str:
    stem = path.stem if path.stem != "config" else path.resolve().parent.name
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._") or "config"


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's magnitude correction, 0.1 * mscale * ln(factor) + 1; 1 for a factor of at most 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _softmax_scale(config: Reader, qk_head_dim: int) -> float:
    base = 1.0 / math.sqrt(qk_head_dim)
    formula = "(qk_nope_head_dim + qk_rope_head_dim)^-0.5"
    kind = config.rope_type()
    if kind == "default":
        config.sources["softmax_scale"] = f"{formula}; rope type default"
        return base
    if kind not in ("yarn", "deepseek_yarn"):
        raise config.bad("rope_type", "default or yarn: no rule for the softmax scale of another type", kind)
    if config.rope("attention_factor", required=False) == 1.0:
        config.sources["softmax_scale"] = f"{formula}; yarn with attention_factor 1 does not scale"
        return base
    factor, mscale = config.rope("factor"), config.rope("mscale_all_dim")
    assert factor is not None and mscale is not None
    if factor < 1.0:
        raise config.bad("factor", "a scaling factor of at least 1", factor)
    if mscale < 0.0:
        raise config.bad("mscale_all_dim", "0 (no factor) or more", mscale)
    config.sources["softmax_scale"] = f"{formula} * (0.1 * mscale_all_dim * ln(factor) + 1)^2; rope type yarn"
    return base * yarn_mscale(factor, mscale) ** 2


def _theta(config: Reader, rope: int) -> float | None:
    if rope == 0:
        config.sources["rope_theta"] = "none: qk_rope_head_dim is 0"
        return None
    theta = config.theta()
    if theta <= 0.0:
        raise config.bad("rope_theta", "a positive number", theta)
    return theta


def _rope_interleaved(config: Reader) -> bool:
    stated = config.flag("rope_interleave", field="rope_interleaved")
    if stated is None:
        config.sources["rope_interleaved"] = "rule: MLA rotates interleaved pairs unless rope_interleave says otherwise"
        return True
    return stated


def _indexer(config: Reader, rope: int, layers: int | None) -> dict[str, Any]:
    """Fields of the lightning indexer; none of them if the config has no indexer, or one that pools keys."""
    pooled = (config.optional_count("index_kpool") or 1) > 1
    present = [key for key in _INDEXER if config.has(key)]
    if pooled or not present:
        why = "index_kpool: an indexer that pools keys is another operator" if pooled else "the config has no indexer"
        config.sources.update(
            dict.fromkeys((*_INDEXER, "index_rope_interleaved", "indexer_full_layers"), f"none: {why}")
        )
        return {"index_n_heads": None, "index_head_dim": None, "index_topk": 0}
    heads, dim, topk = (config.count(key) for key in _INDEXER)
    if dim < rope:
        raise config.bad("index_head_dim", f"at least qk_rope_head_dim = {rope}: its first dims are rotated", dim)
    if layers is None:
        raise config.bad("num_hidden_layers", "a count: it says which layers have an indexer", None)
    return {
        "index_n_heads": heads,
        "index_head_dim": dim,
        "index_topk": topk,
        "index_rope_interleaved": _index_rope(config, rope),
        "indexer_full_layers": full_layers(config, layers),
    }


def _index_rope(config: Reader, rope: int) -> bool | None:
    stated = config.flag("indexer_rope_interleave", field="index_rope_interleaved")
    if stated is not None:
        return stated
    if rope == 0:
        config.sources["index_rope_interleaved"] = "none: qk_rope_head_dim is 0"
        return None
    model = config.text("model_type")
    if model not in _INDEX_ROPE:
        raise BadInput(
            f"{config.path}: field 'indexer_rope_interleave': expected true or false, found none, and there is no rule "
            f"for model_type {model!r} (rules: {', '.join(sorted(_INDEX_ROPE))}); add the field"
        )
    style = "interleaved" if _INDEX_ROPE[model] else "half-split"
    config.sources["index_rope_interleaved"] = f"rule: model_type {model} is {style}"
    return _INDEX_ROPE[model]
