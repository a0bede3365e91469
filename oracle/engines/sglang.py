"""SGLang beside ours: its routing decisions on generated steps, against rules as data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial
from random import Random

from ...fixtures import PATH
from ...reference.routing.one_shot import (
    OneShotRules,
    OneShotStep,
    default_kernels,
    dense_one_shot,
    prefill_kernel,
    selection_space,
    skips_scores,
)
from ..errors import Unsupported, unknown
from ..routes.batches import EDGES
from .agreement import Comparison
from .sglang_rules import SglangRules
from .source import Engine, Sources

RULES = {"0.5.23": "sglang-0.5.23"}
_WHAT = {
    "dense": "whether the step runs as dense MHA in one shot",
    "kernel": "the sparse kernel of prompts",
    "space": "what selections index",
    "skip": "whether the indexer skips scoring",
}
_KERNELS = ("flashmla_auto", "flashmla_sparse", "flashmla_kv", "flashmla_sparse_q8", "fa3", "trtllm", "tilelang")
_CAPABILITIES = (80, 89, 90, 100, 103, 110)


@cache
def load_one_shot(name: str) -> OneShotRules:
    """The shipped rules of that name. Raises BadInput naming the known ones."""
    folder = PATH / "engines"
    if not (folder / f"{name}.toml").is_file():
        raise unknown("rules of an engine", name, [path.stem for path in folder.glob("*.toml")])
    data = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    kernels = {cache: {place: tuple(pair) for place, pair in by.items()} for cache, by in data.pop("kernels").items()}
    listed = {key: tuple(map(tuple, x)) if key == "devices" else tuple(x) for key, x in data.items() if type(x) is list}
    return OneShotRules(**{**data, **listed, "kernels": kernels})


def rules_for(engine: Engine) -> str:
    """Name of our rules for an engine's version. Raises Unsupported where there are none."""
    for start, name in RULES.items():
        if engine.version.startswith(start):
            return name
    raise Unsupported(f"sglang {engine.version}: there are rules for {', '.join(RULES)}; name others with --rules")


def steps(modes: tuple[str, ...], count: int, seed: int) -> Iterator[OneShotStep]:
    """Steps around the lengths at which a decision changes; the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        topk = random.choice((2048, 2048, 2048, 512))
        edges = (*EDGES, topk, topk)
        lengths = tuple(
            max(1, random.choice(edges) + random.choice((-1, 0, 0, 1))) for _ in range(random.choice((1, 1, 2, 4)))
        )
        if random.random() < 0.4:
            lengths = tuple(min(length, topk + random.choice((0, 0, 1))) for length in lengths)
        if random.random() < 0.05:  # short requests that together do not fit
            lengths = (topk,) * (131072 // topk) + random.choice(((), (1,)))
        mode = random.choice(modes + ("EXTEND",) * 6)
        total = sum(lengths)
        queries = max(1, random.choice((total, total // 2, -(-total // 512), total // 512, total // 511, len(lengths))))
        yield OneShotStep(
            mode=mode,
            seq_lens=lengths,
            queries=queries,
            capability=random.choice((*_CAPABILITIES, 90, 100)),
            cache=random.choice(("model", "e4m3")),
            index_topk=topk,
            dense_limit=random.choice((topk,) * 6 + (4096,)),
            prefill_kernel=random.choice((*_KERNELS, *_KERNELS[:1] * 3, "flashmla_sparse")),
            in_graph=random.random() < 0.1,
            prefill_cp=random.random() < 0.05,
            hisparse=random.random() < 0.05,
            dcp=random.choice((1,) * 9 + (2,)),
            sharded_pool=random.random() < 0.05,
            captured=random.choice(("", "", "whole", "dense")) if mode == "DECODE" else "",
        )


def compare_decisions(engine: SglangRules, rules: OneShotRules, count: int, seed: int) -> list[Comparison]:
    """One comparison a decision, the default kernels, and what no decision looks at."""
    found = {name: Comparison(name, what) for name, what in _WHAT.items()}
    beyond = Comparison("beyond-topk", "dense MHA over more keys than the top-k, by the environment", probe=True)
    modes = tuple(name for name in engine.modes if name != "IDLE")
    for step in steps(modes, count, seed):
        theirs = engine.answers(step)
        ours = {
            "dense": dense_one_shot(rules, step).value,
            "kernel": prefill_kernel(rules, step).value,
            "space": selection_space(rules, step).value,
            "skip": skips_scores(rules, step).value,
        }
        for name, value in ours.items():
            found[name].note(partial(asdict, step), value, theirs[name])
        if max(step.seq_lens) > step.index_topk:
            beyond.note(partial(asdict, step), False, theirs["dense"])
    kernels = Comparison("defaults", "prefill and decode kernel where none is named")
    for capability in (*_CAPABILITIES, 120):
        for cache_name in rules.kernels:
            ours_now = default_kernels(rules, capability, cache_name).value
            if (capability, cache_name) != (120, "e4m3"):  # an entry of its own, for one model
                place = {"capability": capability, "cache": cache_name}
                kernels.note(partial(dict, place), ours_now, engine.default_kernels(capability, cache_name))
    return [*found.values(), kernels, beyond]


def compare(
    engine: Engine, *, rules: str | None, batches: int, seed: int, advance: Callable[[Comparison], None]
) -> Iterator[Comparison]:
    """Every comparison on ``batches`` generated steps. Raises Unsupported where the sources lack what is compared."""
    ours = load_one_shot(rules or rules_for(engine))
    for one in compare_decisions(SglangRules(Sources(engine)), ours, batches, seed):
        advance(one)
        yield one
