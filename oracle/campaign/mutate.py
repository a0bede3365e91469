"""A case beside another one: one thing of it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ..case import LAYOUTS, Case
from ..inputs import kinds_of
from ..inputs.options import OPTIONS
from ..inputs.ranges import HEADS, compatible, settled
from .lengths import fitted
from .space import Space, fitting

Mutation = Callable[[Space, Case, Random], Case]
#: By how much a length moves: to the next one, or by a tile.
_STEPS = (-64, -16, -1, 1, 16, 64)
_TOO_LARGE = "hugerows"


def mutated(space: Space, case: Case, rng: Random) -> Case:
    """``case`` with one or two things changed; inputs need not exist for it."""
    for _ in range(rng.randint(1, 2)):
        case = rng.choice(MUTATIONS)(space, case, rng)
    return case


def _with_lengths(space: Space, case: Case, pairs: list[tuple[int, int]]) -> Case:
    inside = [(max(0, min(q, space.largest)), max(0, min(k, space.largest))) for q, k in pairs]
    lengths = fitted(case.operator, inside, space.largest)
    return replace(case, q_lens=tuple(q for q, _ in lengths), k_lens=tuple(k for _, k in lengths))


def _length(space: Space, case: Case, rng: Random) -> Case:
    """One length moves, or meets the other one of its request, or the top-k."""
    pairs = list(zip(case.q_lens, case.k_lens, strict=True))
    place = rng.randrange(len(pairs))
    q, k = pairs[place]
    way = rng.randrange(4)
    if way == 0:
        pairs[place] = (k, k)
    elif way == 1 and case.topk:
        pairs[place] = (q, case.topk + rng.randint(-1, 1))
    elif way == 2:
        pairs[place] = (q + rng.choice(_STEPS), k)
    else:
        pairs[place] = (q, k + rng.choice(_STEPS))
    return _with_lengths(space, case, pairs)


def _requests(space: Space, case: Case, rng: Random) -> Case:
    """One request more, made of two others, or one less."""
    pairs = list(zip(case.q_lens, case.k_lens, strict=True))
    if len(pairs) > 1 and rng.random() < 0.5:
        pairs.pop(rng.randrange(len(pairs)))
    else:
        pairs.insert(rng.randint(0, len(pairs)), (rng.choice(pairs)[0], rng.choice(pairs)[1]))
    return _with_lengths(space, case, pairs)


def _option(space: Space, case: Case, rng: Random) -> Case:
    """One option more or less."""
    known = [name for name in OPTIONS[case.operator] if name != _TOO_LARGE]
    if not known:
        return case
    name = rng.choice(known)
    names = [other for other in case.options if other != name] if name in case.options else [name, *case.options]
    options, dtype = settled(case.operator, compatible(names), case.dtype)
    return replace(case, options=options, dtype=dtype)


MUTATIONS: tuple[Mutation, ...] = (
    _length,
    _length,
    _requests,
    _option,
    lambda space, case, rng: replace(case, topk=max(1, case.topk + rng.choice((-1, 1)))) if case.topk else case,
    lambda space, case, rng: replace(case, heads=case.heads if case.operator == "topk_select" else rng.choice(HEADS)),
    lambda space, case, rng: replace(case, kind=rng.choice(kinds_of(case.operator))),
    lambda space, case, rng: replace(case, layout=rng.choice(LAYOUTS)),
    lambda space, case, rng: replace(case, geometry=rng.choice(fitting(space.geometries, case.operator))),
    lambda space, case, rng: replace(case, seed=rng.randrange(1_000_000)),
)
