"""Up to which length masked MHA is faster than sparse MQA on this device, and the routing table that follows.

Both routes are timed as an engine pays them, from the latent cache and the heads' queries to the heads' outputs: masked
MHA with the up-projection of all keys, the assembly of K and the mask; sparse MQA with both absorbed projections. The
indexer and the top-k come before either. Lengths are bisected; MHA wins a length only if the upper quartile of its
times is below the lower quartile of the other's, so that noise decides for MQA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ...optimized.catalogue import IMPLEMENTATIONS
from ...oracle.case import Case
from ...oracle.check import check
from ...oracle.config import load
from ...oracle.errors import BadInput, Unsupported
from ...oracle.geometry import Geometry
from .timing import Timing, interleaved

#: Lengths are multiples of this.
STEP = 1024
#: Longest length that is tried, and the query lengths with cached context that are.
LONGEST = 65536
CONTEXT_QUERIES = (4096, 8192)
BACKEND = "FLASHMLA_SPARSE"
_MASKED = "masked_mha/hopper"
_SPARSE = ("sparse_mqa/hopper", "sparse_mqa/hopper-shared")


@dataclass(frozen=True, slots=True)
class Point:
    """Both routes on one request of ``query`` new tokens in ``seq``."""

    query: int
    seq: int
    mha: Timing
    mqa: Timing
    mqa_kernel: str

    @property
    def mha_wins(self) -> bool:
        return self.mha.high < self.mqa.low

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"mha_wins": self.mha_wins, "ratio": self.mqa.median / self.mha.median}


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor-parallel size: where MHA wins, and what was measured for it."""

    tensor_parallel: int
    heads: int
    pure: int
    """Longest fresh prompt that MHA wins; 0: none."""
    context: tuple[tuple[int, int], ...]
    """(longest sequence, query length): MHA wins up to the one with at least the other new tokens."""
    points: tuple[Point, ...]


def largest(wins: Callable[[int], bool], low: int, high: int) -> int:
    """The largest multiple of STEP in low..high up to which ``wins`` holds, taking it to hold up to some length; 0 if
    not even at ``low``. Doubles first, then bisects."""
    if not wins(low):
        return 0
    good, bad = low, high + STEP
    while good * 2 < bad and good * 2 <= high:
        if not wins(good * 2):
            bad = good * 2
            break
        good *= 2
    while bad - good > STEP:
        middle = (good + bad) // 2 // STEP * STEP
        if wins(middle):
            good = middle
        else:
            bad = middle
    return good


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


def verify(name: str, geometry: str, heads: int) -> None:
    """Raises BadInput unless the kernel passes its check on this model: there is no policy from wrong kernels."""
    operator = name.partition("/")[0]
    text = f"{operator}:{geometry}:h{heads}:q700:k2600:top2048:bf16:randn:contiguous:-:s0"
    one = next(one for one in IMPLEMENTATIONS if one.name == name)
    verdict = check(Case.parse(text), one, device="cuda")
    if verdict.status not in ("PASS", "UNSUPPORTED"):
        raise BadInput(f"{name} does not pass {text}: {verdict.status} {verdict.reason}; no policy is made from it")


def measure_row(geometry: Geometry, tensor_parallel: int, *, seconds: float) -> Row:
    """All lengths of one tensor-parallel size."""
    heads = geometry.heads // tensor_parallel
    for name in (_MASKED, *_SPARSE):
        verify(name, geometry.name, heads)
    points: dict[tuple[int, int], Point] = {}

    def wins(query: int, seq: int) -> bool:
        if (query, seq) not in points:
            points[query, seq] = measure_point(geometry, heads, query, seq, seconds=seconds)
        return points[query, seq].mha_wins

    # Up to top-k tokens dense MHA runs, whatever the table says.
    pure = largest(lambda length: wins(length, length), geometry.index_topk + STEP, LONGEST)
    context = [(query, largest(partial(wins, query), query + STEP, LONGEST)) for query in CONTEXT_QUERIES]
    return Row(tensor_parallel, heads, pure, intervals(context), tuple(points[key] for key in sorted(points)))


def measure_point(geometry: Geometry, heads: int, query: int, seq: int, *, seconds: float) -> Point:
    """Both routes, interleaved; of the sparse kernels the faster one."""
    import torch

    routes = _routes(geometry, heads, query, seq)
    timings = dict(zip(routes, interleaved(list(routes.values()), torch.device("cuda"), seconds=seconds), strict=True))
    mha = timings.pop(_MASKED)
    kernel = min(timings, key=lambda name: timings[name].median)
    return Point(query, seq, mha, timings[kernel], kernel)


def _routes(geometry: Geometry, heads: int, query: int, seq: int) -> dict[str, Callable[[], Any]]:
    import torch

    from ...optimized.triton_kernels.build_mask import build_mask
    from ...oracle.inputs import rng

    device, half = torch.device("cuda"), torch.bfloat16
    nope, rope, value = geometry.qk_nope_head_dim, geometry.qk_rope_head_dim, geometry.v_head_dim
    rank, topk, scale = geometry.kv_lora_rank, geometry.index_topk, geometry.softmax_scale

    def random(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=half)

    latent, q_nope, q_pe = random(seq, rank + rope), random(query, heads, nope), random(query, heads, rope)
    up = random(rank, heads, nope + value) * rank**-0.5
    absorb, restore = up[..., :nope].permute(1, 2, 0).contiguous(), up[..., nope:].permute(1, 0, 2).contiguous()
    position = torch.arange(query, device=device)
    indices = rng.distinct(rng.key(0, "crossover"), topk, position + (seq - query + 1), position)
    indices = indices[:, torch.randperm(topk, device=device)].to(torch.int32).contiguous()
    cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32, device=device) for n in (query, seq))
    start, length = cu_q[:1], torch.tensor([seq], dtype=torch.int32, device=device)
    rows, words = -(-query // 256) * 256, -(-seq // 128) * 4
    q = torch.cat([q_nope, q_pe], -1)
    by_name = {one.name: one for one in IMPLEMENTATIONS}
    masked = by_name[_MASKED].load()

    def mha() -> Any:
        raised = (latent[:, :rank] @ up.view(rank, -1)).view(seq, heads, nope + value)
        shared = latent[:, None, rank:].expand(seq, heads, rope)
        k = torch.cat([raised[..., :nope], shared], -1)
        (mask,) = build_mask(indices, cu_q, start, length, rows=rows, words=words)
        return masked(q, k, raised[..., nope:], mask, cu_q, cu_k, scale=scale)

    def mqa(kernel: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            absorbed = torch.empty(query, heads, rank + rope, device=device, dtype=half)
            absorbed[..., :rank] = torch.bmm(q_nope.transpose(0, 1), absorb).transpose(0, 1)
            absorbed[..., rank:] = q_pe
            out, _ = kernel(absorbed, latent, indices, scale=scale, value_dim=rank)
            return torch.bmm(out.transpose(0, 1), restore).transpose(0, 1)

        return run

    sparse = _SPARSE if heads <= 32 else _SPARSE[:1]
    return {_MASKED: mha, **{name: mqa(by_name[name].load()) for name in sparse}}


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
            f"pure = {[[row.pure, 0]] if row.pure else []}",
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


def as_lists(rows: Sequence[Row]) -> dict[str, Any]:
    """JSON lists: one entry a tensor-parallel size, one a point."""
    return {
        "crossovers": [
            {"tensor_parallel": row.tensor_parallel, "heads": row.heads, "pure": row.pure, "context": row.context}
            for row in rows
        ],
        "results": [
            {"tensor_parallel": row.tensor_parallel, "heads": row.heads} | point.as_dict()
            for row in rows
            for point in row.points
        ],
    }
