"""Up to which length masked MHA is faster than sparse MQA on this device, and the routing table that follows.

Both routes are timed as an engine pays them, from the latent cache and the heads' queries to the heads' outputs: masked
MHA with the up-projection of all keys, the assembly of K and the mask; sparse MQA with both absorbed projections. The
indexer and the top-k come before either. Compared is the device's time, which is what a serving engine waits for behind
its full queue (``clock.py``). Lengths are bisected; MHA wins a length only if the upper quartile of its
times is below the lower quartile of the other's, so that noise decides for MQA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...oracle.case import Case
from ...oracle.check import check
from ...oracle.config import load
from ...oracle.errors import BadInput, Unsupported
from ...oracle.geometry import Geometry
from ...oracle.guests.known import find
from . import borrowed
from .point import Outcome, Point
from .stages import Prefill, Shape, together
from .timing import interleaved

#: Lengths are multiples of this.
STEP = 1024
#: Longest length that is tried, and the query lengths with cached context that are.
LONGEST = 65536
CONTEXT_QUERIES = (4096, 8192)
BACKEND = "FLASHMLA_SPARSE"
_MASKED = "masked_mha/hopper"
_SPARSE = ("sparse_mqa/hopper", "sparse_mqa/hopper-shared")


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor-parallel size: where MHA wins, and what was measured for it."""

    tensor_parallel: int
    heads: int
    pure: int
    """Longest fresh prompt that MHA wins; 0: none."""
    pure_from: int
    """Shortest fresh prompt that MHA was seen to win; the shortest tried, or where noise ends."""
    context: tuple[tuple[int, int], ...]
    """(longest sequence, query length): MHA wins up to the one with at least the other new tokens."""
    points: tuple[Point, ...]

    @property
    def least(self) -> int:
        """Least new tokens of a fresh prompt that takes masked MHA; 0 where every length tried below won too."""
        tried = [point.query for point in self.points if point.query == point.seq]
        return 0 if self.pure_from <= min(tried, default=0) else self.pure_from


def largest(outcome: Callable[[int], Outcome], low: int, high: int) -> tuple[int, int]:
    """(the largest length that MHA wins, the smallest one seen to win), multiples of STEP in low..high; zeros: none.

    Lengths are doubled until MQA wins one: at short lengths the two may differ by less than their noise, which decides
    nothing about longer ones. Between the last length won and the next one tried, it is bisected.
    """
    tried: dict[int, Outcome] = {}
    length = low
    while True:
        tried[length] = outcome(length)
        if tried[length] == "MQA" or length == high:
            break
        length = min(2 * length, high)
    won = [length for length, which in tried.items() if which == "MHA"]
    if not won:
        return 0, 0
    good = max(won)
    bad = min((length for length in tried if length > good), default=good + STEP)
    while bad - good > STEP:
        middle = (good + bad) // 2 // STEP * STEP
        if outcome(middle) == "MHA":
            good = middle
        else:
            bad = middle
    return good, min(won)


def intervals(wins: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(query, longest sequence) to a policy's (longest sequence, least query): both ascending, nothing twice.

    A length belongs to the smallest query that wins it: longer queries win it as well.
    """
    found: list[tuple[int, int]] = []
    for query, seq in sorted(wins):
        if seq > query and (not found or seq > found[-1][0]):
            found.append((seq, query))
    return tuple(found)


def require_device(device: str) -> None:
    if not device.startswith("cuda"):
        raise Unsupported("bench crossover: expected a CUDA device, got cpu; CPU figures make no policy")


def verify(name: str, geometry: str, heads: int, device: str = "cuda") -> None:
    """Raises BadInput unless the kernel passes its check on this model: there is no policy from wrong kernels."""
    operator = name.partition("/")[0]
    lengths = "q700:k2600" if device.startswith("cuda") else "q3:k70"
    text = f"{operator}:{geometry}:h{heads}:{lengths}:top{0 if operator == 'dense_mha' else 2048}"
    text += ":bf16:randn:contiguous:-:s0"
    one = find(name)
    verdict = check(Case.parse(text), one, device=device)
    if verdict.status not in ("PASS", "UNSUPPORTED"):
        raise BadInput(f"{name} does not pass {text}: {verdict.status} {verdict.reason}; no policy is made from it")


def measure_row(geometry: Geometry, tensor_parallel: int, *, seconds: float) -> Row:
    """All lengths of one tensor-parallel size."""
    heads = geometry.heads // tensor_parallel
    for name in (_MASKED, *_SPARSE):
        verify(name, geometry.name, heads)
    points: dict[tuple[int, int], Point] = {}

    def outcome(query: int, seq: int) -> Outcome:
        if (query, seq) not in points:
            points[query, seq] = measure_point(geometry, heads, query, seq, seconds=seconds)
        return points[query, seq].outcome

    # Up to top-k tokens dense MHA runs, whatever the table says.
    pure, first = largest(lambda length: outcome(length, length), geometry.index_topk + STEP, LONGEST)
    context = [(query, largest(partial(outcome, query), query + STEP, LONGEST)[0]) for query in CONTEXT_QUERIES]
    # Where another machine's table would change to MQA: what that costs here can be read off.
    for query, seq in borrowed.limits(geometry, tensor_parallel):
        if geometry.index_topk < seq <= LONGEST:
            outcome(query, seq)
    return Row(tensor_parallel, heads, pure, first, intervals(context), tuple(points[key] for key in sorted(points)))


def measure_point(geometry: Geometry, heads: int, query: int, seq: int, *, seconds: float) -> Point:
    """Both routes, interleaved; of the sparse kernels the faster one."""
    routes = _routes(geometry, heads, query, seq)
    timings = dict(zip(routes, interleaved(list(routes.values()), torch.device("cuda"), seconds=seconds), strict=True))
    mha = timings.pop(_MASKED)
    kernel = min(timings, key=lambda name: timings[name].median)
    return Point(query, seq, mha, timings[kernel], kernel)


def _routes(geometry: Geometry, heads: int, query: int, seq: int) -> dict[str, Callable[[], Any]]:
    prefill = Prefill(Shape(geometry, heads, query, seq))
    sparse = _SPARSE if heads <= 32 else _SPARSE[:1]
    return {
        name: together(prefill.route(name.partition("/")[0], name.partition("/")[2])) for name in (_MASKED, *sparse)
    }


def policy(geometry: Geometry, rows: Sequence[Row], *, device: str, date: str) -> str:
    """The text of a policy file: rules of vLLM 0.33 with these tables, for a provider of masked MHA on Hopper."""
    lines = [
        f'name = "measured-{geometry.name}"',
        f'date = "{date}"',
        f'source = "attnoracle bench crossover on one {device}: masked MHA against sparse MQA, projections included"',
        'based_on = "vllm-0.33"',
        "",
        "[[gates]]",
        'provider = "attnoracle-hopper"',
        "device_families = [90]",
        "quantized_cache = true",
        "max_head_dim = 256",
    ]
    for row in rows:
        lines += [
            "",
            "[[tables]]",
            f"head_dims = [{geometry.qk_head_dim}, {geometry.v_head_dim}]",
            f'backend = "{BACKEND}"',
            f"tensor_parallel = {row.tensor_parallel}",
            f"pure = {[[row.pure, row.least]] if row.pure else []}",
            f"context = {[list(pair) for pair in row.context]}",
        ]
    return "\n".join(lines) + "\n"


def run(geometry_name: str, sizes: Sequence[int], *, device: str, seconds: float) -> tuple[list[Row], str]:
    """Rows of all tensor-parallel sizes and the policy text. Raises Unsupported without a GPU."""
    require_device(device)
    from ...oracle.environment import environment

    geometry = load(geometry_name)
    rows = [measure_row(geometry, size, seconds=seconds) for size in sizes]
    known = environment()
    return rows, policy(geometry, rows, device=known["device"]["name"], date=known["date"][:10])


def as_lists(geometry: Geometry, rows: Sequence[Row]) -> dict[str, Any]:
    """JSON lists: an entry a tensor-parallel size, one a point, one a point that a borrowed table routes wrongly."""
    return {
        "crossovers": [
            {
                "tensor_parallel": row.tensor_parallel,
                "heads": row.heads,
                "pure": row.pure,
                "pure_from": row.pure_from,
                "context": row.context,
            }
            for row in rows
        ],
        "costs": [cost.as_dict() for row in rows for cost in borrowed.costs(geometry, row.tensor_parallel, row.points)],
        "results": [
            {"tensor_parallel": row.tensor_parallel, "heads": row.heads} | point.as_dict()
            for row in rows
            for point in row.points
        ],
    }
