"""What a config leaves open, how it was read here, and from which length on a wrong reading shows.

Two lengths a choice: in the output of its own stage, and in the output of the layer. They differ where the indexer is
concerned: while a sequence has at most top-k tokens everything is selected, whatever the scores are.
Sources: vllm#28968, huggingface/transformers#46842, axolotl#3832, ROCm/ATOM#1507, mlx-lm#1453 and the files named in
``config`` and ``reference/stages``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..geometry import Geometry
from .subject import Subject


@dataclass(frozen=True, slots=True)
class Choice:
    """``stage_length``, ``layer_length``: tokens of the shortest sequence in which the other reading shows.

    None: never, in exact arithmetic; ``note`` says what changes instead. ``readings``: names of the misreadings that
    the suite knows for it; none where it is a matter of wiring, or of more than one layer.
    """

    name: str
    reading: str
    other: str
    changes: str
    stage: str
    stage_length: int
    layer_length: int | None
    readings: tuple[str, ...]
    note: str = ""


def choices(subject: Subject) -> tuple[Choice, ...]:
    """The choices that matter to this model."""
    g = subject.geometry
    return (
        *_of_projections(subject),
        *(_of_rope(g) if g.qk_rope_head_dim else ()),
        *(_of_yarn(subject.yarn.factor) if subject.yarn is not None else ()),
        *(_of_indexer(g) if subject.has_indexer else ()),
    )


def _choice(
    name: str, reading: str, other: str, changes: str, stage: str, at: tuple[int, int | None], *readings: str,
    note: str = "",
) -> Choice:  # fmt: skip
    """``at``: from how many tokens on another reading shows, in the stage and in the layer."""
    return Choice(name, reading, other, changes, stage, *at, readings, note)


def _of_projections(subject: Subject) -> tuple[Choice, ...]:
    """What dims mean in queries and latents, their norms, the scale of the softmax."""
    scale, absorbed = subject.geometry.softmax_scale, subject.geometry.latent_dim**-0.5
    return (
        _choice("query order", "nope dims, then rope dims", "rope first", "what is rotated", "rotate_query", (2, 2),
                "query-rope-first"),
        _choice("latent order", "kv_c, then k_pe", "k_pe first", "what is cached as value", "kv_latent", (1, 1),
                "latent-rope-first"),
        _choice("kv_b order", "per head: k, then v", "all k, then all v", "keys and values", "attention", (1, 1),
                "kv-b-not-per-head"),
        _choice("norm eps", f"{subject.eps:g}", f"{_other_eps(subject.eps):g}",
                "both latents, most where they are small", "q_latent", (1, 1), "query-norm-eps", "kv-norm-eps"),
        _choice("softmax scale", f"{scale:.9g}", f"{absorbed:.9g} (absorbed width)", "sharpness; one key hides it",
                "attention", (2, 2), "scale-of-latent-dim", "scale-of-nope"),
    )  # fmt: skip


def _of_rope(g: Geometry) -> tuple[Choice, ...]:
    return (
        _choice("RoPE style", _style(g.rope_interleaved), _style(not g.rope_interleaved),
                "every score but of position 0", "rotate_query", (2, 2), "rope-style"),
        _choice("RoPE theta", f"{g.rope_theta:g} ({g.sources['rope_theta']})", "10000 where a reader looks elsewhere",
                "the angle of every pair but the first", "rotate_query", (2, 2), "theta-default"),
    )  # fmt: skip


def _of_yarn(factor: float) -> tuple[Choice, ...]:
    return (
        _choice("YaRN frequencies", f"stretched by {factor:g}", "not stretched", "slow pairs", "rotate_query", (2, 2),
                "yarn-left-out"),
        _choice("YaRN mscale", "squared, in the softmax scale", "left out, or once", "sharpness; one key hides it",
                "attention", (2, 2), "mscale-left-out", "mscale-once"),
    )  # fmt: skip


def _of_indexer(g: Geometry) -> tuple[Choice, ...]:
    """Shown by the layer once there is more than top-k to select from."""
    beyond = g.index_topk + 1
    return (
        *(_of_indexer_rope(g, beyond) if g.qk_rope_head_dim else ()),
        *_of_indexer_scores(beyond),
        _layer_pattern(g, beyond),
    )


def _of_indexer_rope(g: Geometry, beyond: int) -> tuple[Choice, ...]:
    interleaved = bool(g.index_rope_interleaved)
    return (
        _choice("indexer RoPE style", _style(interleaved), _style(not interleaved), "scores, hence the selection",
                "index_query", (2, beyond), "index-rope-style"),
        _choice("indexer dim order", f"the first {g.qk_rope_head_dim} dims are rotated", "the last ones are",
                "scores, hence the selection", "index_query", (2, beyond), "index-rope-last"),
    )  # fmt: skip


def _of_indexer_scores(beyond: int) -> tuple[Choice, ...]:
    return (
        _choice("indexer key norm", "LayerNorm with bias, eps 1e-6", "no bias, RMSNorm, or the model's eps",
                "scores, hence the selection", "index_key", (1, beyond),
                "index-no-bias", "index-rms-norm", "index-norm-eps"),
        _choice("indexer query input", "the normalised query latent", "before its norm",
                "scores, by another factor a latent dim", "index_query", (1, beyond)),
        _choice("weight scale", "e^-1/2 and i^-1/2", "one or none of them", "all scores by one factor",
                "index_weights", (1, None), "weights-no-head-factor", "weights-no-dim-factor",
                note="the selection only through rounding: factors before or after a bf16 rounding flip near ties"),
        _choice("score ReLU", "before the weighted sum", "left out", "scores, hence the selection", "index_scores",
                (1, beyond), "scores-no-relu"),
        _choice("Hadamard", "neither side, or both", "one side alone", "scores, hence the selection", "index_query",
                (1, beyond), "hadamard-query-only",
                note="on both sides it cancels in exact arithmetic and changes fp8 rounding alone"),
    )  # fmt: skip


def _layer_pattern(g: Geometry, beyond: int) -> Choice:
    full = len(g.indexer_full_layers)
    reading = f"{full} full, {(g.num_layers or 0) - full} shared"
    return _choice("layer pattern", reading, "another frequency or offset", "whose selection a layer reads",
                   "full_layers", (1, beyond))  # fmt: skip


def _style(interleaved: bool) -> str:
    return "interleaved pairs" if interleaved else "halves"


def _other_eps(eps: float) -> float:
    return 1e-5 if eps == 1e-6 else 1e-6
