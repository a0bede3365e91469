"""The space that a campaign draws from: implementations, and cases of everything that inputs can be made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import torch

from ..case import LAYOUTS, Case
from ..cause.named import named, operator_of
from ..config import load
from ..environment import installed
from ..errors import BadInput, Unsupported
from ..facts import facts
from ..fleet.pool import cost
from ..fleet.worker import Pair
from ..geometry import Geometry
from ..inputs import kinds_of
from ..inputs.options import INDEXERS
from ..inputs.options import check as check_options
from ..inputs.ranges import HEADS, SELECTING, TOPKS, choices, compatible, dtypes, settled
from .lengths import edged, uniform
from .scenes import KINDS, is_scene
from .scenes import drawn as drawn_scene

#: Requests of a batch, at most.
REQUESTS = 4
#: Dtypes that a quantised cache adds.
_MORE = {"sparse_mqa": ("e4m3",)}
#: Draws before one that is too large is cut down to its first request.
_TRIES = 8
#: Draws after which an implementation that none of them fits is left out.
_LOOKS = 60


@dataclass(frozen=True, slots=True)
class Space:
    """What is drawn from. Every implementation is as likely as every other."""

    implementations: tuple[str, ...]
    geometries: tuple[str, ...]
    largest: int = 200
    """Queries and keys of one request, at most."""
    most: int = 1 << 17
    """Scores (heads x queries x keys) of one case, at most: a minute of a GPU or of an interpreter buys so many."""

    def __post_init__(self) -> None:
        if not self.implementations:
            raise BadInput("campaign: no implementation is left to try")
        if not self.geometries:
            raise BadInput("campaign: no geometry is left to draw from")


def fitting_here(device: str | None) -> Callable[[Pair], bool]:
    """Whether a pair can be judged, asked before it is run; of ``device`` None only whether inputs can be made."""

    @cache
    def supports(name: str) -> Callable[[Mapping[str, Any]], str | None]:
        return named(name, operator_of(name))().supports

    def fits(pair: Pair) -> bool:
        case, name = pair
        if case.operator in KINDS:
            return case.geometry != "triton" or installed("triton") is not None
        geometry = _geometry(case.geometry)
        try:
            check_options(case, geometry)
        except BadInput:
            return False
        try:
            return device is None or supports(name)(facts(case, geometry, device)) is None
        except Exception:
            return True  # a supports() that raises is the kernel's own, and the verdict says so

    return fits


def usable(space: Space, fits: Callable[[Pair], bool]) -> Space:
    """The space without implementations that can judge none of many draws here.

    Raises Unsupported, with the reason of each, where none is left.
    """
    rng = Random(0)
    left, reasons = [], []
    for name in space.implementations:
        cases = [drawn_case(space, operator_of(name), rng, edges=True) for _ in range(_LOOKS)]
        if any(fits((case, name)) for case in cases):
            left.append(name)
        else:
            reasons.append(f"{name}: {_reason(name, cases[-1])}")
    if not left:
        raise Unsupported("campaign: nothing can run here: " + "; ".join(reasons[:6]))
    return replace(space, implementations=tuple(left))


def _reason(name: str, case: Case) -> str:
    if is_scene(name):
        return "Triton is not installed"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    told = named(name, case.operator)().supports(facts(case, _geometry(case.geometry), device))
    return told or "inputs cannot be made for the geometries that were named"


def draw(space: Space, rng: Random, *, edges: bool) -> Pair:
    """A pair. ``edges``: lengths and top-k near tiles, pages and each other; otherwise all are equally likely."""
    name = rng.choice(space.implementations)
    return drawn_case(space, operator_of(name), rng, edges=edges), name


def drawn_case(space: Space, operator: str, rng: Random, *, edges: bool) -> Case:
    """See ``draw``; sequences know no edges."""
    if is_scene(operator):
        return drawn_scene(operator, rng)
    for _ in range(_TRIES):
        case = _any(space, operator, rng, edges=edges)
        if cost(case) <= space.most:
            return case
    return replace(case, q_lens=case.q_lens[:1], k_lens=case.k_lens[:1], heads=1)


def _any(space: Space, operator: str, rng: Random, *, edges: bool) -> Case:
    topk = _topk(operator, space.largest, rng, edges=edges)
    lengths = edged if edges else uniform
    pairs = lengths(operator, topk, space.largest, rng.randint(1, REQUESTS), rng)
    options, dtype = settled(
        operator, _options(operator, rng), rng.choice((*dtypes(operator), *_MORE.get(operator, ())))
    )
    return Case(
        operator=operator,
        geometry=rng.choice(fitting(space.geometries, operator)),
        heads=1 if operator == "topk_select" else rng.choice(HEADS),
        q_lens=tuple(q for q, _ in pairs),
        k_lens=tuple(k for _, k in pairs),
        topk=topk,
        dtype=dtype,
        kind=rng.choice(kinds_of(operator)),
        layout=rng.choice(LAYOUTS),
        options=options,
        seed=rng.randrange(1_000_000),
    )


def fitting(geometries: Sequence[str], operator: str) -> tuple[str, ...]:
    """Geometries that have what the operator needs; all of them where none has, so that the reason shows."""
    if operator not in (*INDEXERS, "write_index", "gather_index"):
        return tuple(geometries)
    return tuple(name for name in geometries if _geometry(name).index_head_dim is not None) or tuple(geometries)


@cache
def _geometry(name: str) -> Geometry:
    """Read once: a night asks for it a million times."""
    return load(name)


def _topk(operator: str, largest: int, rng: Random, *, edges: bool) -> int:
    if operator not in SELECTING:
        return 0
    return min(largest, rng.choice(TOPKS)) if edges else rng.randint(1, largest)


def _options(operator: str, rng: Random) -> tuple[str, ...]:
    picked: list[str] = []
    for choice in choices(operator):
        if choice.names:
            picked += rng.sample(choice.names, min(len(choice.names), rng.randint(0, choice.most)))
    return compatible(picked)
