"""How SGLang routes the layers of DeepSeek-V3.2 and GLM-5: dense MHA in one shot, or a sparse kernel for every token.

One decision a step, for all its requests: there is no split into decodes and prefills, no masked MHA and no policy
table. The indexer decides alone whether it scores, by its own limit: a step it skips selects every key, which is right
for dense MHA, that reads no selection, and for a sparse kernel.

Source: SGLang 0.5.23 ``layers/attention/dsa_backend.py`` (``set_dsa_prefill_impl``, ``get_topk_transform_method``),
``layers/attention/dsa/dsa_indexer.py`` (``_should_skip_logits_computation``), ``arg_groups/overrides.py``.
"""

from __future__ import annotations

from .decision import Decision, first_failure
from .one_shot_rules import OneShotRules, OneShotStep

__all__ = [
    "OneShotRules",
    "OneShotStep",
    "default_kernels",
    "dense_one_shot",
    "prefill_kernel",
    "selection_space",
    "skips_scores",
]

AUTO = "flashmla_auto"


def dense_one_shot(rules: OneShotRules, step: OneShotStep) -> Decision[bool]:
    """Whether every request of the step runs as dense MHA."""
    if step.in_graph:
        return Decision(False, ("a graph in pieces cannot branch on lengths",))
    longest, total = max(step.seq_lens), sum(step.seq_lens)
    return first_failure(
        (
            (step.mode in rules.extend_modes, f"mode {step.mode}"),
            (step.dcp == 1 and not step.sharded_pool, "keys are spread over ranks"),
            (any(a <= step.capability <= b for a, b in rules.devices), f"capability {step.capability}"),
            (longest <= step.dense_limit, f"longest sequence {longest} > {step.dense_limit}"),
            (total <= rules.chunk_capacity, f"{total} keys > {rules.chunk_capacity}"),
            (not step.prefill_cp, "prefill context parallelism"),
            (not step.hisparse, "HiSparse"),
        ),
        f"longest sequence {longest} <= {step.dense_limit}",
    )


def prefill_kernel(rules: OneShotRules, step: OneShotStep) -> Decision[str]:
    """The sparse kernel of prompts; ``flashmla_auto`` is settled where no dense MHA runs."""
    if step.prefill_kernel != AUTO or dense_one_shot(rules, step).value:
        return Decision(step.prefill_kernel, ("as it was named",))
    if step.cache == "model":
        return Decision("flashmla_sparse", ("unquantised cache",))
    total = sum(step.seq_lens)
    few = total < rules.keys_per_query * step.queries
    if 100 <= step.capability < 130 and step.mode == "EXTEND" and few:
        return Decision("flashmla_sparse", (f"{total} keys < {rules.keys_per_query} * {step.queries} queries",))
    return Decision("flashmla_kv", (f"quantised cache, {total} keys for {step.queries} queries, mode {step.mode}",))


def selection_space(rules: OneShotRules, step: OneShotStep) -> Decision[str]:
    """What selections index: ``PAGED`` rows of the cache, or ``RAGGED`` keys gathered for the step."""
    kernel = prefill_kernel(rules, step).value
    ragged = first_failure(
        (
            (step.cache != "model" or kernel == "flashmla_sparse_q8", "unquantised cache"),
            (kernel in rules.ragged_kernels, f"kernel {kernel}"),
            (step.mode == "EXTEND", f"mode {step.mode}"),
        ),
        f"{kernel} gathers a quantised cache",
    )
    return Decision("RAGGED" if ragged.value else "PAGED", ragged.reasons)


def skips_scores(rules: OneShotRules, step: OneShotStep) -> Decision[bool]:
    """Whether the indexer selects every key unseen: by the model's top-k, whatever dense MHA is limited to."""
    if step.captured == "dense":
        return Decision(True, ("the graph is for sequences of at most top-k keys",))
    longest = max(step.seq_lens)
    return first_failure(
        (
            (step.mode in rules.extend_modes, f"mode {step.mode}"),
            (longest <= step.index_topk, f"longest sequence {longest} > top-k {step.index_topk}"),
        ),
        f"longest sequence {longest} <= top-k {step.index_topk}",
    )


def default_kernels(rules: OneShotRules, capability: int, cache: str) -> Decision[tuple[str, str]]:
    """Prefill and decode kernel where the user names none."""
    which = "from_10" if capability >= 100 else "below"
    return Decision(rules.kernels[cache][which], (f"{cache} cache, capability {capability}",))
