"""Ranks hypotheses by how well they explain what a kernel returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from .dictionary import catalogue, tiled
from .distance import Gap
from .exact import LAYOUTS
from .formats import formats
from .hypothesis import Hypothesis
from .keys import keys
from .layout_families import readings, variants
from .layout_moves import moved_bytes, moved_rows, unwritten
from .misread import dims, misread, misstrided, overrun
from .moved import constant, moved
from .observation import Answer, Observation
from .paged_families import compressed, not_written, paged, paged_formats
from .quantised_families import quantised
from .ranking_families import indexer, merge, selection
from .solved import gain, lse, lse_parts, scale, sink, softcap

Family = Callable[[Observation], Iterator[Hypothesis]]
#: Answers of fixed hypotheses on one case; None for one that changes nothing there.
Known = dict[str, Answer | None]

#: Explains the answer: all but a fiftieth of what is off.
FITS = 0.98
#: Budgets that an element of an answer may be off whose many numbers were solved for from rounded outputs.
SLACK = 2.0
#: Explains a part of it that is worth showing.
PARTLY = 0.3
#: What a free parameter has to gain, as a share of the energy of the deviation.
PRICE = 2e-4

#: Costs as close as this are a tie.
TIE = 0.01

#: Left of the deviation where a hypothesis is so close that nothing else has to be tried.
CERTAIN = 2e-3

#: Families of an operator: those tried at once, and those tried where nothing is certain yet.
_FAMILIES: dict[str, tuple[tuple[Family, ...], tuple[Family, ...]]] = {
    "sparse_mqa": ((scale, lse, lse_parts, gain, sink, moved, constant), (keys, quantised, softcap, dims, formats)),
    "dense_mha": (
        (scale, lse, lse_parts, gain, moved, constant),
        (keys, softcap, misread, misstrided, dims, overrun, formats),
    ),
    "masked_mha": (
        (scale, lse, lse_parts, gain, moved, constant),
        (keys, softcap, misread, misstrided, dims, overrun, formats),
    ),
    "indexer_scores": ((indexer, compressed, gain, constant, not_written, formats), ()),
    "paged_indexer_scores": ((paged, gain, constant, not_written), (paged_formats,)),
    "topk_select": ((selection, formats), ()),
    **dict.fromkeys(LAYOUTS, ((readings, variants, moved_rows, moved_bytes, unwritten), ())),
    "merge_lse": ((merge, lse, lse_parts, gain, moved, constant, formats), ()),
}


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """One hypothesis and how well it does."""

    hypothesis: Hypothesis
    explained: float
    """Share of the deviation that is inside the budget of the hypothesis' own answer; can be negative."""
    cost: float
    """What the ranking goes by: the energy that is left, and the price of parameters."""
    also: tuple[Hypothesis, ...] = ()
    """Hypotheses that return the very same on these inputs."""
    answer: Answer | None = None

    @property
    def fits(self) -> bool:
        return self.explained >= FITS


def rank(seen: Observation, known: Known | None = None) -> list[Ranked]:
    """Every hypothesis that explains something, best first; equals in one entry.

    ``known`` keeps the answers of fixed hypotheses on this case for the next kernel.
    """
    return grouped(scored(seen, known))


def scored(seen: Observation, known: Known | None = None, *, thorough: bool = False) -> list[Ranked]:
    """Every hypothesis that explains something, one entry each, best first.

    Those that cost more are computed where nothing is certain without them, or all of them if ``thorough``.
    """
    whole = seen.deviation()
    if whole.energy <= 0.0 or seen.operator not in _FAMILIES:
        return []
    first, further = _FAMILIES[seen.operator]
    found = _tried(seen, whole, chain(catalogue(seen.operator), *(family(seen) for family in first)), known)
    if thorough or not found or min(one.cost for one in found) > CERTAIN:
        more = chain(*(family(seen) for family in further), tiled(seen.operator))
        found += _tried(seen, whole, more, known)
    return sorted(found, key=_order)


def _order(one: Ranked) -> tuple[bool, bool, float, float]:
    """Of those that fit, one with many solved numbers comes last: it fits whatever is linear in them."""
    return (not one.fits, one.fits and one.hypothesis.parameters > 1, one.cost, -one.explained)


def _tried(seen: Observation, whole: Gap, hypotheses: Iterable[Hypothesis], known: Known | None) -> list[Ranked]:
    found = []
    for hypothesis in hypotheses:
        answer = _answer(seen, hypothesis, known)
        if answer is None:
            continue
        left = seen.gap(answer, SLACK if hypothesis.parameters > 1 else 1.0)
        if left.energy >= whole.energy and left.off >= whole.off:
            continue
        explained = 1.0 - left.off / whole.off if whole.off else 1.0 - left.energy / whole.energy
        cost = left.energy / whole.energy + PRICE * hypothesis.parameters
        found.append(Ranked(hypothesis, explained, cost, (), answer))
    return found


def _answer(seen: Observation, hypothesis: Hypothesis, known: Known | None) -> Answer | None:
    """What a hypothesis returns; None if it cannot be computed here, or returns what a right kernel does."""
    key = f"{hypothesis.name}{hypothesis.words}{seen.contract.probabilities}"
    if known is not None and hypothesis.fixed and key in known:
        return known[key]
    try:
        given = hypothesis.answer
        answer: Answer | None = dict(given) if given is not None else seen.predicted(hypothesis.predict)
    except (RuntimeError, IndexError, ValueError, TypeError, KeyError):
        answer = None  # a defect that this shape does not allow, two heads exchanged where there is one
    if answer is not None and not (set(seen.right) <= set(answer)):
        answer = None
    if known is not None and hypothesis.fixed:
        # One that acts nowhere on this case is that of a right kernel, and explains nothing.
        known[key] = None if answer is not None and same(answer, seen.right) else answer
    return answer


def tied(ranked: Sequence[Ranked]) -> tuple[Hypothesis, ...]:
    """Hypotheses that explain a case as well as the first does: the first entry, its equals, and those of its cost.

    One that solves for more numbers than the first restates a plainer idea, and makes no tie by itself.
    """
    if not ranked:
        return ()
    first = ranked[0]
    alike = [one for one in ranked if one.fits == first.fits and abs(one.cost - first.cost) < TIE]
    found = {each.words: each for one in alike for each in (one.hypothesis, *one.also)}
    plain = [each for each in found.values() if each.parameters <= first.hypothesis.parameters]
    return tuple(found.values()) if len(plain) > 1 else (first.hypothesis,)


def grouped(found: list[Ranked]) -> list[Ranked]:
    """Entries with the same answer put together, under the first of them; one entry an idea."""
    groups: list[list[Ranked]] = []
    for one in found:
        for group in groups:
            first = group[0]
            if abs(first.cost - one.cost) < TIE and same(first.answer, one.answer):
                group.append(one)
                break
        else:
            groups.append([one])
    names: set[str] = set()
    ranked = []
    for group in groups:
        first = group[0]
        if first.hypothesis.name in names:
            continue
        also = {
            one.hypothesis.name: one.hypothesis for one in group[1:] if one.hypothesis.name != first.hypothesis.name
        }
        names |= {first.hypothesis.name, *also}
        ranked.append(Ranked(first.hypothesis, first.explained, first.cost, tuple(also.values()), first.answer))
    return ranked


def same(a: Answer | None, b: Answer | None) -> bool:
    """Whether two answers are equal, any NaN equal to any other."""
    if a is None or b is None or set(a) != set(b):
        return False
    return all(
        a[n].shape == b[n].shape and bool(((a[n] == b[n]) | (torch.isnan(a[n]) & torch.isnan(b[n]))).all()) for n in a
    )
