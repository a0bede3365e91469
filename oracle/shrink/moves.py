"""Smaller cases, axis by axis, smallest first: the first that fails is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..case import Case
from ..config import load, names
from ..inputs.batch import IDS, names_of

#: One axis: smaller cases, the smallest first.
Move = Callable[[Case], Iterator[Case]]
#: Options that say where the rows in use lie.
PAGES = ("highrows", "hugerows", "packed", "row0")
#: Kinds of values by how easily they are read.
SIMPLE_KINDS = ("grid", "randn")
SMALL_GEOMETRY = "tiny"


def ladder(size: int, least: int) -> Iterator[int]:
    """Sizes from ``least`` up to below ``size``: the first few, then powers of two, then closer and closer to it."""
    close = (size - size // part for part in (2, 4, 8, 16, size or 1))
    steps = sorted({least, least + 1, least + 2, *(2**power for power in range(32)), *close})
    return (step for step in steps if least <= step < size)


def requests(case: Case) -> Iterator[Case]:
    """One request, then half of them, then all but one. The option ``ids-…`` keeps their values."""
    count = len(case.q_lens)
    if count < 2:
        return
    groups: list[tuple[int, ...]] = [
        (i,) for i in sorted(range(count), key=lambda i: case.q_lens[i] * case.k_lens[i] or 2**62)
    ]
    half = count // 2
    groups += [tuple(range(half)), tuple(range(half, count))]
    groups += [tuple(j for j in range(count) if j != i) for i in range(count)]
    for group in dict.fromkeys(group for group in groups if 0 < len(group) < count):
        ids = [names_of(case)[i] for i in group]
        plain = tuple(option for option in case.options if not option.startswith(IDS))
        spelt = () if ids == list(range(len(ids))) else (IDS + ".".join(map(str, ids)),)
        yield replace(
            case,
            q_lens=tuple(case.q_lens[i] for i in group),
            k_lens=tuple(case.k_lens[i] for i in group),
            options=tuple(sorted((*plain, *spelt))),
        )


def heads(case: Case) -> Iterator[Case]:
    for count in ladder(case.heads, 1):
        yield replace(case, heads=count)


def queries(case: Case) -> Iterator[Case]:
    """Fewer queries of a request, its keys as they are: the queries left keep their values and are the newest still."""
    for i, length in enumerate(case.q_lens):
        for count in ladder(length, 1 if sum(case.q_lens) == length else 0):
            yield replace(case, q_lens=_with(case.q_lens, i, count))


def keys(case: Case) -> Iterator[Case]:
    """Fewer keys of a request; the last ones go. Where both lengths are equal they shrink together as well."""
    for i, length in enumerate(case.k_lens):
        for count in ladder(length, 0 if len(case.k_lens) > 1 else 1):
            shorter = replace(case, k_lens=_with(case.k_lens, i, count))
            if case.operator == "merge_lse" or (case.q_lens[i] > count and case.q_lens[i] <= length):
                yield replace(shorter, q_lens=_with(case.q_lens, i, min(case.q_lens[i], max(count, 1))))
            yield shorter


def slots(case: Case) -> Iterator[Case]:
    """Fewer selected slots, and rows where nobody has to look for them."""
    for count in ladder(case.topk, 1):
        yield replace(case, topk=count)
    for option in PAGES:
        yield from _without(case, option)


def dims(case: Case) -> Iterator[Case]:
    """The smallest geometry that has what the operator needs."""
    if case.geometry != SMALL_GEOMETRY and SMALL_GEOMETRY in names():
        small = load(SMALL_GEOMETRY)
        if case.operator != "indexer_scores" or small.index_head_dim is not None:
            yield replace(case, geometry=SMALL_GEOMETRY)


def values(case: Case) -> Iterator[Case]:
    """Values that are easier to read: small integers first."""
    from ..inputs import kinds_of

    for kind in SIMPLE_KINDS:
        if kind in kinds_of(case.operator) and kind != case.kind:
            yield replace(case, kind=kind)
        elif kind == case.kind:
            return


def layout(case: Case) -> Iterator[Case]:
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")


def options(case: Case) -> Iterator[Case]:
    """Each option away, but for the names of the requests, which carry their values."""
    for option in case.options:
        if option not in PAGES and not option.startswith(IDS):
            yield from _without(case, option)


#: In the order of meaning.
MOVES: tuple[tuple[str, Move], ...] = (
    ("requests", requests),
    ("heads", heads),
    ("queries", queries),
    ("keys", keys),
    ("slots and pages", slots),
    ("dims", dims),
    ("values", values),
    ("layout", layout),
    ("options", options),
)


def _with(lengths: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*lengths[:place], value, *lengths[place + 1 :])


def _without(case: Case, option: str) -> Iterator[Case]:
    if option in case.options:
        yield replace(case, options=tuple(other for other in case.options if other != option))
