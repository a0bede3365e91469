"""The model of a config as bring-up sees it: its geometry, the value and source of every field, its layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...fixtures import PATH
from ...reference.rope import Yarn
from ...reference.stages import Model
from ..config import load, names, parse
from ..config.reader import Reader, read
from ..errors import BadInput
from ..geometry import Geometry

#: RMSNorm of both latents where a config states none: the default of transformers' deepseek_v32.
DEFAULT_EPS = 1e-6
Origin = Literal["key", "derived", "default", "none"]


@dataclass(frozen=True, slots=True)
class Value:
    """One resolved value. ``origin``: a key of the config, derived by a formula, a default by a rule, or not there."""

    field: str
    value: Any
    origin: Origin
    source: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A config that was read. ``eps`` and ``yarn`` are what a geometry does not hold."""

    path: Path
    config: Reader
    geometry: Geometry
    eps: float
    eps_source: str
    yarn: Yarn | None

    @property
    def has_indexer(self) -> bool:
        return bool(self.geometry.index_topk)

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields without which the stages from hidden states on cannot be."""
        return tuple(field for field in ("hidden_size", "q_lora_rank") if getattr(self.geometry, field) is None)

    def model(self) -> Model:
        """The layer. Raises BadInput naming the fields that the config lacks."""
        g = self.geometry
        if g.hidden_size is None or g.q_lora_rank is None:
            raise BadInput(
                f"{self.path}: field {self.missing[0]!r}: expected a whole number for the stages, found none"
            )
        return Model(
            hidden=g.hidden_size,
            heads=g.heads,
            q_lora=g.q_lora_rank,
            latent=g.kv_lora_rank,
            nope=g.qk_nope_head_dim,
            rope=g.qk_rope_head_dim,
            v=g.v_head_dim,
            scale=g.softmax_scale,
            eps=self.eps,
            theta=g.rope_theta or 1.0,
            yarn=self.yarn,
            interleaved=g.rope_interleaved,
            index_heads=g.index_n_heads or 0,
            index_dim=g.index_head_dim or 0,
            topk=g.index_topk,
            index_interleaved=bool(g.index_rope_interleaved),
            draft=bool(self.config.raw("num_nextn_predict_layers")),
        )


def open_subject(name_or_path: str) -> Subject:
    """A shipped model by name, a config file or a model folder. Raises BadInput as ``config.load`` does."""
    if name_or_path in names() and (PATH / "models" / f"{name_or_path}.json").is_file():
        path = PATH / "models" / f"{name_or_path}.json"
    else:
        path = Path(name_or_path)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            load(name_or_path)  # says what is wrong, with the nearest names
    config = read(path)
    if not config.has("kv_lora_rank"):
        raise config.bad("kv_lora_rank", f"the latent rank of MLA attention{_told(config)}", None)
    geometry = parse(config)
    eps = config.raw("rms_norm_eps")
    if eps is not None and (type(eps) not in (int, float) or not 0.0 < eps < 1.0):
        raise config.bad("rms_norm_eps", "a number between 0 and 1", eps)
    source = f"{config.prefix}rms_norm_eps" if eps is not None else "rule: default of transformers' deepseek_v32"
    return Subject(path, config, geometry, DEFAULT_EPS if eps is None else eps, source, _yarn(config))


def _told(config: Reader) -> str:
    kind = config.raw("model_type")
    told = f" (model_type {kind!r} has no latent attention)" if kind else ""
    return f"{told}; this tool brings up MLA models only"


def _yarn(config: Reader) -> Yarn | None:
    if config.rope_type() not in ("yarn", "deepseek_yarn"):
        return None

    def number(key: str, default: float) -> float:
        value = config.rope(key, required=False)
        return default if value is None else value

    positions = config.rope("original_max_position_embeddings")
    factor = config.rope("factor")
    assert positions is not None and factor is not None
    return Yarn(
        factor=factor,
        original_positions=int(positions),
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        mscale=number("mscale", 1.0),
        mscale_all_dim=number("mscale_all_dim", 1.0),
    )


def values(subject: Subject) -> tuple[Value, ...]:
    """Every resolved value with its source, in the order of a geometry."""
    g = subject.geometry
    found = [Value(field, getattr(g, field), _origin(source), source) for field, source in g.sources.items()]
    found.append(Value("rms_norm_eps", subject.eps, _origin(subject.eps_source), subject.eps_source))
    found.append(Value("qk_head_dim", g.qk_head_dim, "derived", "qk_nope_head_dim + qk_rope_head_dim"))
    found.append(Value("latent_dim", g.latent_dim, "derived", "kv_lora_rank + qk_rope_head_dim: a row of the cache"))
    if subject.has_indexer:
        count = len(g.indexer_full_layers)
        shared = (g.num_layers or 0) - count
        found.append(Value("indexer_layers", f"{count} full, {shared} shared", "derived", "indexer_full_layers"))
    order = list(Geometry.__dataclass_fields__)
    return tuple(sorted(found, key=lambda value: order.index(value.field) if value.field in order else len(order)))


def _origin(source: str) -> Origin:
    if source.startswith("none"):
        return "none"
    if source.startswith("rule: max("):
        return "derived"
    if source.startswith("rule"):
        return "default"
    return "derived" if source.startswith(("(", "name of")) else "key"
