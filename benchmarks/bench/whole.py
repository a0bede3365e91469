"""What a prefill really pays: whole routes from the latent cache on, stage by stage, with the indexer before them.

The indexer and the top-k come before masked MHA and sparse MQA alike; dense MHA reads every key, so that an engine may
skip them, and what that saves on a short prompt stands beside it. Times are the device's, as behind an engine's full
queue; the JSON has the host's of the whole route beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ...oracle.errors import BadInput, Unsupported
from ...oracle.geometry import Geometry
from ...oracle.policies import load_rules
from ...oracle.routes.grammar import parse_batch
from ...reference.routing import mask_bytes
from .borrowed import RULES
from .crossover import verify
from .stages import ORDER, ROUTES, Prefill, Shape, Stage, kernel, together
from .timing import Timing, interleaved


@dataclass(frozen=True, slots=True)
class Whole:
    """One route on one prompt: its stages, and all of them in a row."""

    batch: str
    tensor_parallel: int
    heads: int
    query: int
    seq: int
    route: str
    total: Timing | None
    stages: dict[str, Timing] = field(default_factory=dict)
    note: str = ""
    """Why it was not timed, or what an engine would refuse."""

    def as_dict(self) -> dict[str, Any]:
        stages = {name: timing.median for name, timing in self.stages.items()}
        seconds = None if self.total is None else asdict(self.total)
        return {
            "batch": self.batch, "tensor_parallel": self.tensor_parallel, "heads": self.heads, "query": self.query,
            "seq": self.seq, "route": self.route, "seconds": seconds, "stages": stages, "note": self.note,
        }  # fmt: skip


def shapes(
    batches: Sequence[str], geometry: Geometry, sizes: Sequence[int], device: str
) -> list[tuple[str, int, Shape]]:
    """(batch, tensor-parallel size, shape). Raises BadInput for a batch of several requests or heads that do not
    divide."""
    found = []
    for text in batches:
        requests = parse_batch(text).requests
        if len(requests) != 1:
            raise BadInput(f"bench whole: expected batches of one request such as q4k or q512s8k, got {text}")
        for size in sizes:
            if geometry.heads % size:
                raise BadInput(f"--tp {size}: {geometry.name} has {geometry.heads} heads, no multiple of it")
            (one,) = requests
            found.append((text, size, Shape(geometry, geometry.heads // size, one.query_len, one.seq_len, device)))
    return found


def measure(
    batch: str,
    tensor_parallel: int,
    shape: Shape,
    routes: Sequence[str],
    *,
    seconds: float,
    check: Callable[[str, str, int, str], None] = verify,
) -> list[Whole]:
    """Every route on one prompt, timed in turn; the skip of the indexer is a route of its own, ``dense_mha, skipped``.

    The kernels pass their checks first (BadInput where one does not). Raises Unsupported where the indexer is not
    known.
    """
    plans: dict[str, dict[str, Any]] = {}
    notes: dict[str, str] = {}
    prefill = Prefill(shape)
    common, index = prefill.common(), prefill.index()
    for name in routes:
        note = _refused(name, shape)
        if note.startswith("not timed"):
            notes[name] = note
            continue
        try:
            backend = kernel(shape, name).name
            check(backend, shape.geometry.name, shape.heads, shape.device)
            own = prefill.route(name)
        except Unsupported as error:
            notes[name] = f"not timed: {error}"
            continue
        plans[name], notes[name] = _ordered({**common, **index, **own}), note
        if name == "dense_mha":
            plans["dense_mha, skipped"], notes["dense_mha, skipped"] = _ordered({**common, **own}), ""
    device = torch.device(shape.device)
    totals = interleaved([together(plan) for plan in plans.values()], device, seconds=seconds) if plans else []
    whole = dict(zip(plans, totals, strict=True))
    each = {
        name: dict(zip(plan, interleaved(list(plan.values()), device, seconds=seconds / 4), strict=True))
        for name, plan in plans.items()
    }
    known = (batch, tensor_parallel, shape.heads, shape.query, shape.seq)
    order = [*dict.fromkeys([*plans, *notes])]
    return [Whole(*known, name, whole.get(name), each.get(name, {}), notes[name]) for name in order]


def _ordered(stages: dict[str, Stage]) -> dict[str, Stage]:
    return {name: stages[name] for name in ORDER if name in stages}


def _refused(route: str, shape: Shape) -> str:
    if route == "dense_mha" and shape.seq > shape.geometry.index_topk:
        return f"not timed: more than top-{shape.geometry.index_topk} keys, which dense MHA would all read"
    if route == "masked_mha":
        workspace = load_rules(RULES).mask_workspace
        assert workspace is not None
        need, room = mask_bytes(workspace, 1, shape.query, shape.seq), workspace.max_bytes
        if need > room:
            # The router would not come here; the mask is allocated at the size it needs all the same.
            return f"its mask takes {need / 2**20:.0f} MiB, enlarged here: a workspace of {room / 2**20:.0f} refuses it"
    return ""


def saved(found: Sequence[Whole]) -> float | None:
    """Seconds that skipping the indexer saves on this prompt; None where dense MHA was not timed."""
    times = {one.route: one.total.median for one in found if one.total is not None}
    if "dense_mha, skipped" not in times:
        return None
    return times["dense_mha"] - times["dense_mha, skipped"]


def run(
    batches: Sequence[str],
    geometry: Geometry,
    sizes: Sequence[int],
    routes: Sequence[str],
    *,
    device: str,
    seconds: float,
) -> list[Whole]:
    """All prompts at all sizes. Raises BadInput for unknown routes."""
    from ...oracle.errors import unknown

    for name in routes:
        if name not in ROUTES:
            raise unknown("route", name, ROUTES)
    found = []
    for batch, size, shape in shapes(batches, geometry, sizes, device):
        found += measure(batch, size, shape, routes or ROUTES, seconds=seconds)
    return found
