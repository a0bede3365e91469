"""Values of the indexer, the top-k selection and the LSE merge, one function an operator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import rng
from .batch import Tokens
from .tensors import POWERS, power_of


def index_vectors(
    kind: str, role: str, seed: int, tokens: Tokens, heads: int, width: int, dtype: str = "e4m3"
) -> Tensor:
    """Indexer q (``heads`` of them) or k (one): fp32 [m, heads, width]; ``dtype`` is what they will be stored in."""
    device = tokens.name.device
    head, dims = torch.arange(heads, device=device).view(1, -1, 1), torch.arange(width, device=device)
    place = (tokens.name.view(-1, 1, 1), tokens.position.view(-1, 1, 1), head, dims)
    stream = rng.key(seed, role)
    if kind == "grid":
        drawn = rng.integers(stream, 12, *place)
        return torch.where(drawn < 5, drawn - 2, 0).to(torch.float32)
    if kind == "saturated":
        return rng.signs(stream, *place) * 448.0
    if kind == "zerokeys" and role == "k":
        z = rng.normal(stream, *place)
        return torch.where(rng.integers(rng.key(seed, "zero-keys"), 3, *place[:2]) == 0, 0.0, z)
    if kind == "clustered" and role == "k":
        row = rng.normal(stream, head, dims).abs() + 0.5
        return row.expand(len(tokens.name), -1, -1)
    z = rng.normal(stream, *place)
    if kind in ("negative", "clustered"):
        return (z.abs() + 0.125) * (-1 if role == "k" else 1)
    if kind == "powers":
        return z * _turned(seed, role, POWERS[dtype], *place[:2])
    return z * 8 if kind == "wide" and role == "q" else z


def _turned(seed: int, role: str, powers: tuple[int, int], *place: Tensor) -> Tensor:
    """The least of the powers of two, 1 or the largest by place, fp32."""
    return power_of(rng.integers(rng.key(seed, f"{role}-power"), 3, *place), powers)


def index_weights(kind: str, seed: int, tokens: Tokens, heads: int, width: int) -> Tensor:
    """Head weights of the indexer, fp32 [m, heads]; of either sign except in ``clustered``."""
    head = torch.arange(heads, device=tokens.name.device)
    place = (tokens.name[:, None], tokens.position[:, None], head)
    if kind == "grid":
        return rng.integers(rng.key(seed, "weights"), 5, *place).sub_(2).to(torch.float32)
    z = rng.normal(rng.key(seed, "weights"), *place)
    if kind == "clustered":
        z = z.abs() + 0.125
    return z * (1 / math.sqrt(heads * width))


def key_scales(kind: str, seed: int, tokens: Tokens) -> Tensor:
    """fp32 [m], positive; powers of two in ``pow2`` and ``grid``, elsewhere seldom one."""
    place = (tokens.name, tokens.position)
    u = rng.uniform(rng.key(seed, "k-scale"), *place)
    if kind == "clustered":
        return 1 + u * 2.0**-10
    if kind == "zerokeys":
        # A block of zeros has the least scale that its quantiser writes: 1e-4 / 448.
        zero = rng.integers(rng.key(seed, "zero-keys"), 3, tokens.name[:, None, None], tokens.position[:, None, None])
        return torch.where(zero[:, 0, 0] == 0, 1e-4 / 448, 1 + u)
    spread = {"wide": 6, "farscales": 22}.get(kind, 2)
    power = rng.integers(rng.key(seed, "k-scale-power"), 2 * spread + 1, *place) - spread
    exact = ((power + 127) << 23).to(torch.int32).view(torch.float32)
    return exact if kind in ("pow2", "grid") else exact * (1 + u)


def query_scales(kind: str, seed: int, tokens: Tokens, heads: int) -> Tensor:
    """fp32 [m, heads], positive, one a query and head; powers of two where those of keys are."""
    place = (tokens.name[:, None], tokens.position[:, None], torch.arange(heads, device=tokens.name.device))
    power = rng.integers(rng.key(seed, "q-scale-power"), 5, *place) - 2
    exact = ((power + 127) << 23).to(torch.int32).view(torch.float32)
    return exact if kind in ("pow2", "grid") else exact * (1 + rng.uniform(rng.key(seed, "q-scale"), *place))


def selection_scores(kind: str, seed: int, q: Tokens, column: Tensor) -> Tensor:
    """Scores inside the window: fp32 [m, t] for the request-local key position ``column`` [m, t] of each column."""
    row = (q.name[:, None], q.position[:, None])
    stream = rng.key(seed, "scores")
    if kind == "ties":
        return rng.integers(stream, 7, *row, column).sub_(3).to(torch.float32) * 0.5
    if kind == "clustered":
        # 4096 neighbours of 2**-23 within half a unit of fp16 at 1, then the next unit; an odd factor permutes them.
        within = (column * 2731 + rng.integers(stream, 4096, *row)) & 4095
        return 1 + (column >> 12).to(torch.float32) * 2.0**-10 + within.to(torch.float32) * 2.0**-23
    if kind == "ramp":
        # Neighbouring rows run opposite ways, so that no request is all of one kind.
        falls = (row[0] + row[1] + rng.integers(stream, 2, torch.zeros_like(row[1]))) % 2 == 0
        return torch.where(falls, -column, column).to(torch.float32)
    if kind == "constant":
        return torch.full(column.shape, 0.75, device=column.device)
    if kind == "zeros":
        block = (q.length[:, None] // 100).clamp(min=1)
        winner = rng.integers(stream, block.expand_as(column), *row, column // block) == column % block
        return torch.where(winner, 1 + rng.uniform(stream, *row, column), 0.0)
    if kind == "negative":
        return -1 - rng.uniform(stream, *row, column) * 100
    z = rng.normal(stream, *row, column)
    if kind == "signed":
        zero = rng.integers(rng.key(seed, "zeros"), 4, *row, column)
        return torch.where(zero < 2, zero.to(torch.float32).mul(-2).add(1) * 0.0, z)
    if kind == "spread":
        # Rows in turn: all magnitudes, large ones, small ones; so that the threshold comes to lie everywhere. None is
        # so small that a GPU might take it for 0.
        turn = ((q.name + q.position) % 3)[:, None]
        lowest, count = torch.tensor([[-96, 217], [96, 25], [-96, 21]], device=z.device)[turn].unbind(-1)
        power = lowest + rng.integers(rng.key(seed, "powers"), count, *row, column)
        return z * ((power + 127) << 23).to(torch.int32).view(torch.float32)
    if kind == "crowded":
        return _crowded(seed, q, column, z)
    if kind == "specials":
        table = torch.tensor([float("nan"), float("inf"), float("-inf")], device=z.device)
        drawn = rng.integers(rng.key(seed, "specials"), 4, *row, column)
        return torch.where(drawn < 3, table[drawn.clamp(max=2)], z)
    if kind == "infs":
        drawn = rng.integers(rng.key(seed, "infs"), 16, *row, column)
        z = torch.where(drawn == 0, float("inf"), torch.where(drawn < 5, float("-inf"), z))
    if kind == "nan":
        # Half of them with the sign bit set: as bits they lie below every number, as values above.
        drawn = rng.integers(rng.key(seed, "nan"), 64, *row, column)
        bits = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32, device=column.device).view(torch.float32)
        z = torch.where(drawn < 2, bits[drawn.clamp(max=1)], z)
    return z


def _crowded(seed: int, q: Tokens, column: Tensor, z: Tensor) -> Tensor:
    """``z`` with one special score in a share of the columns; which of them turns with the row."""
    table = torch.tensor([float("-inf"), float("nan"), float("inf"), float("-inf")], device=column.device)
    share = torch.tensor([20, 10, 10, 18], device=column.device)  # of 20
    turn = ((q.name + q.position) % len(table))[:, None]
    drawn = rng.integers(rng.key(seed, "crowd"), 20, q.name[:, None], q.position[:, None], column)
    return torch.where(drawn < share[turn], table[turn], z)


def garbage_scores(name: str, seed: int, q: Tokens, column: Tensor) -> Tensor:
    """Scores outside the window, fp32 [m, t]: NaN, +inf, huge and plausible ones mixed, or one sort of them."""
    place = (q.name[:, None], q.position[:, None], column)
    stale = rng.normal(rng.key(seed, "garbage"), *place) + 2
    if name == "stale":
        return stale
    fixed = torch.tensor([float("nan"), 3e38, float("inf")], device=column.device)
    if name in ("nan", "huge"):
        return fixed[("nan", "huge").index(name)].expand(column.shape)
    drawn = rng.integers(rng.key(seed, "garbage-kind"), 4, *place)
    return torch.where(drawn < 3, fixed[drawn.clamp(max=2)], stale)


def partial_out(kind: str, side: str, seed: int, q: Tokens, heads: int, width: int, dtype: str) -> Tensor:
    """Output of one side of a merge: fp32 [m, heads, width], with a mean of its own for each side."""
    device = q.name.device
    head, dims = torch.arange(heads, device=device).view(1, -1, 1), torch.arange(width, device=device)
    z = rng.normal(rng.key(seed, f"out-{side}"), q.name.view(-1, 1, 1), q.position.view(-1, 1, 1), head, dims)
    z = z + (0.5 if side == "a" else -0.5)
    if kind == "powers":
        return z * _turned(seed, "out", POWERS[dtype], q.name.view(-1, 1, 1), q.position.view(-1, 1, 1), head)
    return z


def leftover(kind: str, seed: int, q: Tokens, heads: int) -> Tensor:
    """What the buffer of an empty side holds: fp32 [m, heads, 1], NaN, or an infinity, or what fp16 ends with."""
    if kind != "leftovers":
        return torch.full((len(q.name), heads, 1), float("nan"), device=q.name.device)
    table = torch.tensor([float("nan"), float("inf"), float("-inf"), 65504.0], device=q.name.device)
    place = (q.name.view(-1, 1), q.position.view(-1, 1), torch.arange(heads, device=q.name.device))
    return table[rng.integers(rng.key(seed, "leftover"), 4, *place)][..., None]


def partial_lse(kind: str, side: str, seed: int, q: Tokens, heads: int) -> Tensor:
    """LSE of one side of a merge, fp32 [m, heads], natural log; -inf where the side is empty."""
    place = (q.name[:, None], q.position[:, None], torch.arange(heads, device=q.name.device))
    z = rng.normal(rng.key(seed, f"lse-{side}"), *place)
    if kind == "wide":
        return z * 60
    if kind == "powers":
        return (rng.normal(rng.key(seed, "lse"), *place) * 600).clamp(-2000, 2000) + z
    if kind == "ties":
        # Half the pairs apart, so that exchanged sides show; of the others half equal, half one step of fp32 apart.
        common = rng.normal(rng.key(seed, "lse"), *place) * 4
        step = torch.nextafter(common, torch.full_like(common, float("inf")))
        near = torch.where(rng.integers(rng.key(seed, f"step-{side}"), 2, *place) == 0, step, common)
        return torch.where(rng.integers(rng.key(seed, "apart"), 2, *place) == 0, common + z, near)
    lse = z + 5
    if kind in ("empties", "leftovers"):
        # 0: a is empty, 1: b is, 2: both are, 3 and above: neither.
        drawn = rng.integers(rng.key(seed, "empties"), 6, *place)
        empty = (drawn == 2) | (drawn == (0 if side == "a" else 1))
        lse = torch.where(empty, float("-inf"), lse)
    return lse
