"""What a sequence of batches covers, as names; the groups are those of ``groups``.

==========  ================================================================================================
lengths     of one request in one step: new tokens by top-k and threshold, with or without a context
meets       transitions: what one step was and what the next is, padding and pages taken away among it
batch       steps and requests, how full a captured size is
values      model, top-k, settings
contract    switches of a step: eager, forced, decode, graph mode
route       the route decided, and why the indexer skips or scores
config      graph mode, captured sizes and length
pairs       route and settings in one sequence
==========  ================================================================================================
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product

from ..case import Case
from .groups import GROUPS, Classes, several
from .scene_play import installed
from .scenes import Scene, Turn

_DIGITS = re.compile(r"\d[\d,]*")


@lru_cache(maxsize=1 << 12)
def scene_classes(case: Case) -> Classes:
    """Group -> names of what the sequence covers."""
    from ...reference.layer import StepBatch
    from ...reference.routing import Batch, Request, decide_route, decide_skip

    scene = Scene.of(case)
    rules, deployment, _ = installed(scene, "cpu")
    found: dict[str, set[object]] = {group: set() for group in GROUPS}
    known: dict[str, int] = {}
    kinds = []
    for number, turn in enumerate(scene.turns, 1):
        cached, known = turn.before(known), turn.after(known)
        requests = []
        for name, count in turn.queries:
            requests.append(Request(count, cached.get(name, 0), False if "decode" in turn.flags else None))
            found["lengths"].add(_request(count, cached.get(name, 0), scene.topk))
        ids = tuple(ord(name) for name, _ in turn.queries)
        forced = replace(deployment, force_mqa=deployment.force_mqa or "force" in turn.flags)
        step = StepBatch(step=number, ids=ids, batch=Batch(tuple(requests))).arranged(rules, forced)
        route = decide_route(rules, forced, step.batch)
        skip = decide_skip(rules, forced, route, layer="layers.0")
        split = route.split.value
        mixed = f"{'decodes ' if split.decodes else ''}{'prefills ' if split.prefills else ''}{route.route.value}"
        padded = _padded(scene, turn)
        kinds.append(
            f"{mixed}{' starts over' if turn.preempted else ''}{' hits' if turn.adopted else ''} {padded}".strip()
        )
        why = _DIGITS.sub("N", skip.reasons[-1] if skip.reasons else "")
        found["route"] |= {mixed, f"{'skips' if skip.value else 'scores'}: {why}"}
        found["contract"] |= {
            *turn.flags,
            "starts over" if turn.preempted else "goes on",
            "hits the prefix cache" if turn.adopted else "hits no prefix",
            padded or "no graphs",
        }
        found["batch"].add(f"requests {several(len(ids))}")
    found["meets"] |= {(one, other) for one, other in pairwise(kinds)}
    found["batch"].add(f"steps {several(len(kinds))}")
    settings = {scene.model, f"top-k {scene.topk}", *([" ".join(scene.setting)] if scene.setting else ["plain"])}
    found["values"] |= settings
    found["config"].add(f"{scene.model} {' '.join(scene.setting)}".strip())
    found["pairs"] |= set(product(sorted(settings), kinds))
    return {group: frozenset(names) for group, names in found.items()}  # type: ignore[arg-type]


def _request(count: int, context: int, topk: int) -> str:
    end = context + count
    size = "1" if count == 1 else "2" if count == 2 else "more"
    near = {-1: "k = top-k - 1", 0: "k = top-k", 1: "k = top-k + 1"}
    reach = near.get(end - topk, "k < top-k" if end < topk else "k > top-k")
    return f"q {size}, {'context' if context else 'fresh'}, {reach}"


def _padded(scene: Scene, turn: Turn) -> str:
    """How the step lies in the captured sizes."""
    sizes = [int(word) for word in scene.setting[1:] if word.isdecimal()][:-1] if scene.kind == "graphs" else []
    if not sizes or "eager" in turn.flags:
        return "eager" if sizes else ""
    tokens = sum(count for _, count in turn.queries)
    size = next((size for size in sizes if size >= tokens), None)
    return "beyond the graphs" if size is None else "fills its graph" if size == tokens else "padded"
