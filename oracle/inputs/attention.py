"""Queries, keys and values of the attention operators, one function a kind.

In the MHA form keys and values have heads of their own. In the MQA form a cache row is key and value at once: its first
c columns are the value, so a kind shapes both together. Coefficients are multiples of 1/64, exact in fp32.

A "direction" is a random sign vector u: a query holding a*u and a key holding b*u score about scale*a*b*width above the
others, which is how a kind decides where the mass goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from . import rng
from .batch import Tokens
from .tensors import power_of

#: Positions where tiles of 64 and 128 keys begin and end, beside the last one.
EDGES = (0, 63, 64, 127, 128)
#: What ``mixed`` mixes.
MIX = ("randn", "needle", "offset", "grid", "wide", "tagged", "negative", "sinktoken", "small")
_CLASSES = 3
#: What normal keys of the MHA form, and rows of the MQA form, are multiplied by.
_KEYS = {"small": 0.1, "offset": 2.0, "negative": 0.5, "positive": 0.5, "climbing": 0.5}
_ROWS = {"small": 0.1, "negative": 0.5, "positive": 0.5, "climbing": 0.5}
#: How much the score of a key of ``climbing`` is above the one before it, and over how many keys.
_STEP, _CLIMB = 1.5, 128


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of an attention operator depend on beside the tokens."""

    seed: int
    scale: float
    width: int
    """d, or c + r."""
    value_width: int
    """v, or c."""
    shared: bool
    """One key head that holds the values as well (MQA)."""
    powers: tuple[int, int] = (-40, 40)
    """Least and largest power of two that keys of ``powers`` are multiplied by (see ``POWERS``)."""


def _exact(value: float) -> float:
    return max(1, round(value * 64)) / 64


def _grid(*parts: Tensor) -> tuple[Tensor, ...]:
    """Name, position and head, ready to broadcast over [m, heads, width]."""
    return tuple(part.view(-1, 1, 1) for part in parts)


def is_edge(tokens: Tokens) -> Tensor:
    """Key tokens on a tile or sequence edge; bool [m]."""
    edge = tokens.position == tokens.length - 1
    for place in EDGES:
        edge = edge | (tokens.position == place)
    return edge


class Draw:
    """fp32 values of q, k, v [m, heads, width] for some tokens and heads."""

    def __init__(self, form: Form, tokens: Tokens, heads: Tensor) -> None:
        self.form = form
        self.tokens = tokens
        self.heads = heads
        self.name, self.position = _grid(tokens.name, tokens.position)
        self.head = heads.view(1, -1, 1)

    def z(self, role: str, width: int) -> Tensor:
        dims = torch.arange(width, device=self.heads.device)
        return rng.normal(rng.key(self.form.seed, role), self.name, self.position, self.head, dims)

    def direction(self, choice: Tensor | int) -> Tensor:
        """The sign vector u of each (choice, head): [m or 1, heads, width]."""
        device = self.heads.device
        dims = torch.arange(self.form.width, device=device)
        wanted = choice if isinstance(choice, Tensor) else torch.tensor(choice, device=device)
        head = torch.zeros_like(self.head) if self.form.shared else self.head
        return rng.signs(rng.key(self.form.seed, "direction"), wanted, head, dims)

    def columns(self, role: str, width: int) -> Tensor:
        """A mean for every value column, [1, heads, width], so that an average of values is not zero."""
        dims = torch.arange(width, device=self.heads.device)
        return rng.normal(rng.key(self.form.seed, role), self.head, dims) * 0.5

    def reach(self, score: float, query: float, columns: float | None = None) -> float:
        """The b for which a key b*u scores ``score`` against a query ``query``*u over so many ``columns``."""
        return _exact(score / (abs(self.form.scale) * (columns or self.form.width) * query))

    def choice(self, role: str, heads: bool) -> Tensor:
        head = self.head if heads else torch.zeros_like(self.head)
        return rng.integers(rng.key(self.form.seed, role), _CLASSES, self.name, self.position, head)

    def edge(self) -> Tensor:
        return is_edge(self.tokens).view(-1, 1, 1)

    def first(self) -> Tensor:
        return self.position == 0

    def power(self, role: str, sign: int = 1) -> Tensor:
        """A power of two for every request and, where keys have heads, head: the least, 1 and the largest in turn."""
        head = torch.zeros_like(self.head) if self.form.shared else self.head
        choice = (self.name + head + (rng.key(self.form.seed, f"{role}-power") & 0xFF)) % 3
        return power_of(choice, self.form.powers, sign)

    def blank(self, role: str) -> Tensor:
        """Every third token of ``blank``, with all its heads; bool [m, 1, 1]."""
        return rng.integers(rng.key(self.form.seed, f"{role}-blank"), 3, self.name, self.position) == 0


def queries(kind: str, form: Form, tokens: Tokens, heads: Tensor) -> Tensor:
    """q: fp32 [m, heads, width]."""
    draw = Draw(form, tokens, heads)
    z = draw.z("q", form.width)
    if kind == "randn":
        return z
    if kind == "offset":
        return z * _latent_columns(form, z.device, 8.0, 1.0) if form.shared else z
    if kind == "small":
        return z * 0.3
    if kind == "powers":
        return z * draw.power("k", -1)
    if kind == "blank":
        return torch.where(draw.blank("q"), z * 0.0, z)
    if kind == "wide":
        return z * 4
    if kind == "needle":
        return z * 0.5 + draw.direction(draw.choice("wanted", True))
    if kind == "tagged":
        if form.shared:
            return z * _latent_columns(form, z.device, _exact(1 / abs(form.scale)), 0.5) + _tag_boost(draw)
        return z * 0.5 + draw.direction(0)
    if kind == "grid":
        return _sparse(draw, "q", form.width, 2)
    if kind == "constant":
        return _level_query(draw, z) if form.shared else z
    if kind in ("negative", "positive", "climbing"):
        return z * 0.5 + draw.direction(0) * _mass_columns(form, z.device) * 2
    return z * 0.5 + draw.direction(0) * _mass_columns(form, z.device) * 0.5  # sinktoken


def keys(kind: str, form: Form, tokens: Tokens, heads: Tensor) -> Tensor:
    """k of the MHA form: fp32 [m, heads, width]."""
    draw = Draw(form, tokens, heads)
    if kind == "constant":
        dims = torch.arange(form.width, device=heads.device)
        key = rng.normal(rng.key(form.seed, "k"), draw.head, dims)
        step = _exact(2 / (abs(form.scale) * math.sqrt(form.width)))
        return key + draw.direction(0) * _level(draw) * (draw.head % 2) * step
    if kind == "grid":
        return _sparse(draw, "k", form.width, 2)
    if kind == "powers":
        return draw.z("k", form.width) * draw.power("k")
    if kind == "blank":
        z = draw.z("k", form.width)
        return torch.where(draw.blank("k"), z * 0.0, z)
    return draw.z("k", form.width) * _KEYS.get(kind, 1.0) + _pull(kind, draw)


def values(kind: str, form: Form, tokens: Tokens, heads: Tensor) -> Tensor:
    """v of the MHA form: fp32 [m, heads, value_width]."""
    draw = Draw(form, tokens, heads)
    width = form.value_width
    if kind == "tagged":
        return _one_hot(draw, width)
    if kind == "grid":
        return _sparse(draw, "v", width, 4) + 1
    z = draw.z("v", width)
    if kind == "offset":
        return z * 0.05 + 3
    v = z + draw.columns("v-mean", width)
    if kind == "small":
        return v * 0.1
    if kind == "powers":
        return v * draw.power("v")
    return torch.where(draw.first(), v * 0.0625, v) if kind == "sinktoken" else v


def latents(kind: str, form: Form, tokens: Tokens) -> Tensor:
    """kv of the MQA form: fp32 [m, width], the first ``value_width`` columns being the values."""
    draw = Draw(form, tokens, torch.zeros(1, dtype=torch.int64, device=tokens.name.device))
    c = form.value_width
    z = draw.z("kv", form.width)
    if kind == "tagged":
        z[..., :c] = _one_hot(draw, c)
    elif kind == "grid":
        z = _sparse(draw, "kv", form.width, 2)
        z[..., :c:4] += 1
    elif kind == "constant":
        dims = torch.arange(form.width, device=z.device)
        key = rng.normal(rng.key(form.seed, "k"), dims)
        z = torch.where(_score_columns(form, z.device) > 0, key, z + 0.5)
        z[..., 1] = _level(draw)[..., 0]
    elif kind == "offset":
        z = torch.cat([z[..., :c] * 0.05 + 3, z[..., c:] * 2], -1)
    else:
        z[..., :c] += draw.columns("kv-mean", c)
        if kind == "sinktoken":
            z = torch.where(draw.first(), z * 0.0625, z)
        if kind == "powers":
            z = z * draw.power("k")
        z = z * _ROWS.get(kind, 1.0) + _pull(kind, draw)
        if kind == "blank":
            z = torch.where(draw.blank("k"), z * 0.0, z)
    return z[:, 0]


def mixed(role: str, form: Form, tokens: Tokens, heads: Tensor) -> Tensor:
    """The kinds of ``MIX`` in turn over requests, and over heads where keys have them; q, k, v or kv."""
    width = form.value_width if role == "v" else form.width
    out = torch.empty(len(tokens.name), len(heads), width, device=heads.device)
    draws = {"q": queries, "k": keys, "v": values}
    for shift in torch.unique(tokens.name % len(MIX)).tolist():
        rows = torch.nonzero(tokens.name % len(MIX) == shift).flatten()
        if form.shared:
            kind, part = MIX[shift], tokens[rows]
            out[rows] = latents(kind, form, part)[:, None] if role == "kv" else queries(kind, form, part, heads)
            continue
        for turn in range(min(len(MIX), len(heads))):
            kind = MIX[(shift + turn) % len(MIX)]
            columns = torch.nonzero(heads % len(MIX) == turn).flatten()
            out[rows[:, None], columns] = draws[role](kind, form, tokens[rows], heads[columns])
    return out


def _pull(kind: str, draw: Draw) -> Tensor | float:
    """What a key holds along directions, [m, heads, width]."""
    if kind == "needle":
        return torch.where(draw.edge(), draw.direction(draw.choice("owned", False)) * draw.reach(14.0, 1.0), 0.0)
    if kind == "tagged":
        return torch.where(draw.edge(), draw.direction(0) * draw.reach(6.0, 1.0), 0.0)
    if kind in ("negative", "positive", "sinktoken", "climbing"):
        columns = _mass_columns(draw.form, draw.heads.device)
        pull = draw.direction(0) * columns
        if kind == "climbing":
            return pull * (draw.position % _CLIMB) * draw.reach(_STEP, 2.0, float(columns.sum()))
        if kind != "sinktoken":
            return pull * draw.reach(200.0, 2.0, float(columns.sum())) * (-1 if kind == "negative" else 1)
        return torch.where(draw.first(), pull * draw.reach(12.0, 0.5, float(columns.sum())), 0.0)
    return 0.0


def _sparse(draw: Draw, role: str, width: int, high: int) -> Tensor:
    """Three in four zero, the others integers of -high..high."""
    dims = torch.arange(width, device=draw.heads.device)
    drawn = rng.integers(
        rng.key(draw.form.seed, f"{role}-grid"), 4 * (2 * high + 1), draw.name, draw.position, draw.head, dims
    )
    return torch.where(drawn <= 2 * high, drawn - high, 0).to(torch.float32)


def _one_hot(draw: Draw, width: int) -> Tensor:
    """1 at column (position + 7 * head) mod width."""
    dims = torch.arange(width, device=draw.heads.device)
    return ((draw.position + 7 * draw.head) % width == dims).to(torch.float32)


def _tag_boost(draw: Draw) -> Tensor:
    """Adds 6 to the scores of keys tagged like an edge key of the query's request (MQA), [m, 1, width]."""
    dims = torch.arange(draw.form.width, device=draw.heads.device)
    c = draw.form.value_width
    wanted = (draw.tokens.length.view(-1, 1, 1) - 1) % c == dims
    for place in EDGES:
        wanted = wanted | (dims == place % c)
    return wanted.to(torch.float32) * _exact(6.0 / abs(draw.form.scale))


def _latent_columns(form: Form, device: torch.device, latent: float, rope: float) -> Tensor:
    """``latent`` in the value columns of the MQA form, ``rope`` in the others; fp32 [width]."""
    return torch.where(torch.arange(form.width, device=device) < form.value_width, latent, rope)


def _score_columns(form: Form, device: torch.device) -> Tensor:
    """1 where keys are constant and queries are not zero: the even value columns and all rope columns."""
    dims = torch.arange(form.width, device=device)
    return ((dims % 2 == 0) | (dims >= form.value_width)).to(torch.float32)


def _mass_columns(form: Form, device: torch.device) -> Tensor:
    """1 in the columns that decide the mass; in the MQA form rope columns, or few, so that values stay small."""
    dims = torch.arange(form.width, device=device)
    if not form.shared:
        return torch.ones_like(dims, dtype=torch.float32)
    first = form.value_width if form.width > form.value_width else form.value_width - max(1, form.value_width // 8)
    return (dims >= first).to(torch.float32)


def _level(draw: Draw) -> Tensor:
    """-1 or 1 for each key, [m, 1, 1]: the two levels of score in the odd heads of ``constant``."""
    return rng.signs(rng.key(draw.form.seed, "level"), draw.name, draw.position)


def _level_query(draw: Draw, z: Tensor) -> Tensor:
    """Queries that see the constant columns of a cache row and, in odd heads, its level in column 1."""
    q = z * _score_columns(draw.form, z.device)
    q[..., 1] = (draw.head[..., 0] % 2) * _exact(1 / abs(draw.form.scale))
    return q
