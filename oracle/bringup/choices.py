"""What a config leaves open, how it was read here, and from which length on a wrong reading shows.

Two lengths a choice: in the output of its own stage, and in the output of the layer. They differ where the indexer is
concerned: while a sequence has at most top-k tokens everything is selected, whatever the scores are.
Sources: vllm#28968, huggingface/transformers#46842, axolotl#3832, ROCm/ATOM#1507, mlx-lm#1453 and the files named in
``config`` and ``reference/stages``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .subject import Subject


@dataclass(frozen=True, slots=True)
class Choice:
    """``stage_length``, ``layer_length``: tokens of the shortest sequence in which the other reading shows.

    None: never, in exact arithmetic; ``note`` says what changes instead. ``readings``: names of the misreadings that
    the suite knows for it.
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
    found: list[Choice] = []

    def add(
        name: str, reading: str, other: str, changes: str, stage: str, at: tuple[int, int | None], *readings: str,
        note: str = "",
    ) -> None:  # fmt: skip
        found.append(Choice(name, reading, other, changes, stage, *at, readings, note))

    add("query order", "nope dims, then rope dims", "rope first", "what is rotated", "rotate_query", (2, 2),
        "query-rope-first")  # fmt: skip
    add("latent order", "kv_c, then k_pe", "k_pe first", "what is cached as value", "kv_latent", (1, 1),
        "latent-rope-first")  # fmt: skip
    add("kv_b order", "per head: k, then v", "all k, then all v", "keys and values", "attention", (1, 1),
        "kv-b-not-per-head")  # fmt: skip
    add("norm eps", f"{subject.eps:g}", f"{_other_eps(subject.eps):g}", "both latents, most where they are small",
        "q_latent", (1, 1), "query-norm-eps", "kv-norm-eps")  # fmt: skip
    scale = f"{g.softmax_scale:.9g}"
    add("softmax scale", scale, f"{g.latent_dim**-0.5:.9g} (absorbed width)", "sharpness; one key hides it",
        "attention", (2, 2), "scale-of-latent-dim", "scale-of-nope")  # fmt: skip
    if g.qk_rope_head_dim:
        add("RoPE style", _style(g.rope_interleaved), _style(not g.rope_interleaved), "every score but of position 0",
            "rotate_query", (2, 2), "rope-style")  # fmt: skip
        add("RoPE theta", f"{g.rope_theta:g} ({g.sources['rope_theta']})", "10000 where a reader looks elsewhere",
            "the angle of every pair but the first", "rotate_query", (2, 2), "theta-default")  # fmt: skip
    if subject.yarn is not None:
        add("YaRN frequencies", f"stretched by {subject.yarn.factor:g}", "not stretched", "slow pairs",
            "rotate_query", (2, 2), "yarn-left-out")  # fmt: skip
        add("YaRN mscale", "squared, in the softmax scale", "left out, or once", "sharpness; one key hides it",
            "attention", (2, 2), "mscale-left-out", "mscale-once")  # fmt: skip
    if subject.has_indexer:
        found += _of_indexer(subject)
    return tuple(found)


def _of_indexer(subject: Subject) -> list[Choice]:
    g = subject.geometry
    beyond = g.index_topk + 1
    style = g.index_rope_interleaved
    rows: list[Choice] = []
    if g.qk_rope_head_dim:
        rows += [
            Choice(
                "indexer RoPE style",
                _style(bool(style)),
                _style(not style),
                "scores, hence the selection",
                "index_query",
                2,
                beyond,
                ("index-rope-style",),
            ),
            Choice(
                "indexer dim order",
                f"the first {g.qk_rope_head_dim} dims are rotated",
                "the last ones are",
                "scores, hence the selection",
                "index_query",
                2,
                beyond,
                ("index-rope-last",),
            ),
        ]
    rows += [
        Choice(
            "indexer key norm",
            "LayerNorm with bias, eps 1e-6",
            "no bias, RMSNorm, or the model's eps",
            "scores, hence the selection",
            "index_key",
            1,
            beyond,
            ("index-no-bias", "index-rms-norm", "index-norm-eps"),
        ),
        Choice(
            "indexer query input",
            "the normalised query latent",
            "before its norm",
            "scores by one factor a query",
            "index_query",
            1,
            beyond,
            ("index-query-not-normalised",),
        ),
        Choice(
            "weight scale",
            "e^-1/2 and i^-1/2",
            "one or none of them",
            "all scores by one factor",
            "index_weights",
            1,
            None,
            ("weights-no-head-factor", "weights-no-dim-factor"),
            "the selection only through rounding: factors before or after a bf16 rounding flip near ties",
        ),
        Choice(
            "score ReLU",
            "before the weighted sum",
            "left out",
            "scores, hence the selection",
            "index_scores",
            1,
            beyond,
            ("scores-no-relu",),
        ),
        Choice(
            "Hadamard",
            "neither side, or both",
            "one side alone",
            "scores, hence the selection",
            "index_query",
            1,
            beyond,
            ("hadamard-query-only",),
            "on both sides it cancels in exact arithmetic and changes fp8 rounding alone",
        ),
    ]
    shared = (g.num_layers or 0) - len(g.indexer_full_layers)
    rows.append(
        Choice(
            "layer pattern",
            f"{len(g.indexer_full_layers)} full, {shared} shared",
            "another frequency or offset",
            "whose selection a layer reads",
            "full_layers",
            1,
            beyond,
            ("pattern-offset",),
        ),
    )
    return rows


def _style(interleaved: bool) -> str:
    return "interleaved pairs" if interleaved else "halves"


def _other_eps(eps: float) -> float:
    return 1e-5 if eps == 1e-6 else 1e-6
