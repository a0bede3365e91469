"""Judges an answer that has to be right bit by bit, and says what kind of wrong it is.

No budget and no chance: an element is right or it is not, any NaN being equal to any other. What differs is named by
trying: each *reading* is a whole answer that a known mistake would give (codes of another format, a page read another
way, a truncated quotient). The first that agrees with what was observed wherever that is wrong, is the name; failing
that, the differences themselves are looked at: steps between neighbouring numbers, factors of two, whole rows.

The readings that are plain mistakes also measure the input's power: one that this input cannot tell from the right
answer survives, and the case is WEAK.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..verdict import Worst
from .findings import Judgement, where

Outputs = tuple[Tensor, ...]
#: What is said where nothing is found; a diagnosis has nothing to take from it.
NOTHING_KNOWN = "by no pattern known here"
#: Factors that mean something, beside powers of two: the largest number of a format that another was taken for.
_FACTORS = {448 / 240: "the largest number of the FNUZ format, 240, stood for 448"}
#: Places of the last axis that are looked for among the others.
MOST_EXCHANGED = 16
#: How far apart ratios of fp32 numbers may lie that are one factor: two roundings of each.
_ONE_FACTOR = 2.0**-21
_CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Part:
    """One output: what was expected and observed, the names of its axes, and what counts."""

    name: str
    expected: Tensor
    observed: Tensor
    axes: tuple[str, ...]
    counts: Tensor | None = None
    """bool, broadcastable: False where the contract leaves the value open."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer of a known mistake."""

    name: str
    """Completes "as if": "codes were truncated"."""
    answer: Callable[[], Outputs]
    plain: bool = False
    """Whether every input is to tell it from the right answer."""


def judge(parts: Sequence[Part], readings: Iterable[Reading], *, power: bool) -> Judgement:
    """Findings of check ``exact``, one an output that differs."""
    result, readings = Judgement(), tuple(readings)
    wrong = [_differs(part.expected, part.observed, part.counts) for part in parts]
    counts = [int(mask.sum()) for mask in wrong]
    result.measures["wrong_elements"] = float(sum(counts))
    if any(counts):
        cause = _cause(parts, wrong, readings)
        for part, mask, count in zip(parts, wrong, counts, strict=True):
            if count:
                kind = cause or _look(part, mask)
                message = f"{part.name}: {count} of {mask.numel()} elements are not the bits expected; {kind}"
                result.add("exact", message, where=where(mask, part.axes))
                result.worst.append(_first(part, mask))
    if power and any(part.expected.numel() for part in parts):
        result.survivors = tuple(sorted(_survivors(parts, readings)))
    return result


def bits(tensor: Tensor) -> Tensor:
    """The bits of each element as integers."""
    return tensor.contiguous().view(_CODES[tensor.element_size()])


def nan_of(tensor: Tensor) -> Tensor:
    """Where a tensor is NaN; float8 included, which torch cannot compare."""
    if tensor.dtype is torch.float8_e4m3fn:
        return bits(tensor) & 127 == 127
    return torch.isnan(tensor) if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)


def _differs(expected: Tensor, observed: Tensor, counts: Tensor | None) -> Tensor:
    differs = (bits(expected) != bits(observed)) & ~(nan_of(expected) & nan_of(observed))
    return differs if counts is None else differs & counts


def _cause(parts: Sequence[Part], wrong: Sequence[Tensor], readings: Iterable[Reading]) -> str:
    """The first reading that explains every difference; empty if none does."""
    for reading in readings:
        answer = reading.answer()
        explains = all(
            not bool((_differs(other, part.observed, part.counts) & mask).any())
            for part, mask, other in zip(parts, wrong, answer, strict=True)
        )
        if explains:
            return f"as if {reading.name}"
    return ""


def _survivors(parts: Sequence[Part], readings: Iterable[Reading]) -> Iterable[str]:
    for reading in readings:
        if reading.plain:
            answer = reading.answer()
            pairs = zip(parts, answer, strict=True)
            if not any(bool(_differs(part.expected, other, part.counts).any()) for part, other in pairs):
                yield reading.name


def _first(part: Part, wrong: Tensor) -> Worst:
    """The first wrong element."""
    place = tuple(int(i) for i in torch.nonzero(wrong)[0])
    return Worst(part.name, place, _number(part.observed[place]), _number(part.expected[place]), 0.0)


def _number(element: Tensor) -> float:
    return float(element.float() if element.is_floating_point() else element)


def _look(part: Part, wrong: Tensor) -> str:
    """What the differences have in common, in words."""
    if part.expected.is_floating_point():
        steps = (_sizes(part.observed) - _sizes(part.expected))[wrong]
        if bool((steps.abs() == 1).all()):
            toward = "toward zero, as if truncated" if bool((steps < 0).all()) else "up or down"
            return f"each by one step of its format, {toward}"
        seen, right = part.observed.float()[wrong], part.expected.float()[wrong]
        if bool(torch.isnan(seen).all()):
            return "all of them NaN"
        plain = torch.isfinite(seen) & torch.isfinite(right) & (seen != 0) & (right != 0)
        ratio = (seen / right)[plain]
        if ratio.numel() and bool((ratio == ratio[0]).all()) and math.frexp(abs(float(ratio[0])))[0] == 0.5:
            power = math.frexp(abs(float(ratio[0])))[1] - 1
            hint = ", as if codes of the FNUZ and the FN format were mixed up" if abs(power) == 1 else ""
            return f"all by the factor 2^{power}{hint}"
        if part.expected.dtype is torch.float32 and ratio.numel() > 1 and (factor := _one_factor(ratio)) is not None:
            return factor
    return _shifted(part, wrong) or _exchanged(part, wrong) or NOTHING_KNOWN


def _one_factor(ratio: Tensor) -> str | None:
    """The factor that fp32 numbers are off by, if it is one."""
    factor = float(ratio.double().mean())
    if not bool(((ratio.double() / factor - 1.0).abs() <= _ONE_FACTOR).all()):
        return None
    meaning = next((words for known, words in _FACTORS.items() if abs(factor / known - 1.0) <= _ONE_FACTOR), "")
    return f"all by the factor {factor:.6g}" + (f", as if {meaning}" if meaning else "")


def _sizes(values: Tensor) -> Tensor:
    """Magnitudes of a float format counted from zero, int64: neighbours differ by one."""
    return bits(values).to(torch.int64) & ((1 << (8 * values.element_size() - 1)) - 1)


def _shifted(part: Part, wrong: Tensor) -> str:
    """Whether the wrong rows hold what belongs to other rows, at one distance."""
    if part.expected.dim() < 2 or len(part.expected) < 2:
        return ""
    expected, observed = bits(part.expected).flatten(1), bits(part.observed).flatten(1)
    rows = torch.nonzero(wrong.flatten(1).any(1)).flatten()
    for distance in (1, -1, 2, -2):
        if bool((expected.roll(-distance, 0)[rows] == observed[rows]).all()):
            return f"each wrong row holds that of row {distance:+d}"
    same = (observed[rows[0]] == expected).all(1)
    if bool(same.any()):
        return f"row {int(rows[0])} holds that of row {int(torch.nonzero(same)[0])}"
    return ""


def _exchanged(part: Part, wrong: Tensor) -> str:
    """Whether the wrong places of the last axis hold what belongs to others, all rows alike."""
    if part.expected.dim() < 2 or len(part.expected) < 2:
        return ""
    expected, observed = bits(part.expected).flatten(0, -2), bits(part.observed).flatten(0, -2)
    columns = torch.nonzero(wrong.flatten(0, -2).any(0)).flatten().tolist()
    if len(columns) > MOST_EXCHANGED:
        return ""
    given = []
    for column in columns:
        same = (observed[:, column : column + 1] == expected).all(0)
        if int(same.sum()) != 1:  # none, or several that these rows cannot tell apart
            return ""
        given.append(int(torch.nonzero(same)[0]))
    # Without spaces between them the numbers count as one in a signature, however many there are.
    held, by = (",".join(map(str, each)) for each in (given, columns))
    return f"{part.axes[-1]} {by} hold what belongs to {held}"


def roll(outputs: Outputs) -> Outputs:
    """The answer of the previous row."""
    return tuple(bits(t).roll(1, 0).view(t.dtype) for t in outputs)  # torch rolls no float8 on a GPU


def zeros(outputs: Outputs) -> Outputs:
    return tuple(torch.zeros_like(bits(t)).view(t.dtype) for t in outputs)
