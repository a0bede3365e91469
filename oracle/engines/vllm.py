"""vLLM beside ours: its own decisions and small operators on our cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import Unsupported
from ..policies import load_rules
from .agreement import Comparison
from .batches import questions
from .compare_rules import compare_mask_shapes, compare_rules
from .source import Engine, Sources
from .vllm_rules import VllmRules

#: The rules that are held against the engine, by the start of its version.
RULES = {"0.33": "vllm-0.33"}


def rules_for(engine: Engine) -> str:
    """Name of our rules for an engine's version. Raises Unsupported where there are none."""
    for start, name in RULES.items():
        if engine.version.startswith(start):
            return name
    raise Unsupported(f"vllm {engine.version}: there are rules for {', '.join(RULES)}; name others with --rules")


def compare(
    engine: Engine, *, rules: str | None, batches: int, cases: int, seed: int, advance: Callable[[Comparison], None]
) -> Iterator[Comparison]:
    """Every comparison: ``batches`` generated batches for the decisions, ``cases`` for each operator (0: none).

    Raises Unsupported where the sources lack what is to be compared.
    """
    sources = Sources(engine)
    ours = load_rules(rules or rules_for(engine))
    decisions = VllmRules(sources)
    found = compare_rules(decisions, ours, questions(ours, batches, seed))
    if ours.mask_workspace is not None:
        found.append(compare_mask_shapes(decisions, ours.mask_workspace, batches, seed))
    for one in found:
        advance(one)
        yield one
    if cases:
        from .compare_operators import compare_operators
        from .vllm_operators import VllmOperators

        for one in compare_operators(VllmOperators(sources), cases, seed):
            advance(one)
            yield one
