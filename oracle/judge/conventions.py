"""The convention audit: a wrong answer that is right under another convention is told so, by name.

Two implementations are compared only through their declared conventions. Where an answer fails, it is judged again as
if another convention had been declared, or as if the kernel had read its inputs by one. What held then, with the same
budgets, was no arithmetic error: the finding gets the name of the convention, and the sentence that goes with it.

A hypothesis needs power as every check does. One that changes nothing on this input is left out, and so is one under
which the right answer would pass as well: a row of poison that is read gives a budget in which anything fits. Only a
looser rule that has no budget is excepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ..verdict import Finding
from . import readings
from .findings import Judgement
from .units import LN2

Arguments = Mapping[str, Any]
Outputs = tuple[Any, ...]
Judge = Callable[[Arguments, Outputs, Contract, bool], Judgement]


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at an answer: the inputs as the kernel read them, the outputs and contract as they were meant."""

    arguments: Arguments
    outputs: Outputs
    contract: Contract


#: A view under the convention, or None where it cannot matter.
Look = Callable[[View], View | None]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    name: str
    words: str
    """Ends the sentence "the answer is right …"."""
    look: Look
    looser: bool = False
    """Asks for less than what is declared, by rules without a budget: the right answer holds under it as well."""


def _lse(change: Callable[[Tensor, Contract], Tensor]) -> Look:
    """A view with another LSE."""

    def look(view: View) -> View | None:
        if len(view.outputs) < 2 or view.contract.lse_base is None:
            return None
        return replace(view, outputs=(view.outputs[0], change(view.outputs[1], view.contract), *view.outputs[2:]))

    return look


def _declared(**fields: Any) -> Look:
    """A view under a contract that says something else."""

    def look(view: View) -> View | None:
        if len(view.outputs) < 2 or view.contract.lse_base is None:
            return None
        if all(getattr(view.contract, name) == value for name, value in fields.items()):
            return None
        return replace(view, contract=replace(view.contract, **fields))

    return look


def _read(change: Callable[[Arguments], dict[str, Any] | None]) -> Look:
    """A view whose inputs were read in another way; ``change`` returns what it changes."""

    def look(view: View) -> View | None:
        changed = change(view.arguments)
        return None if changed is None else replace(view, arguments={**view.arguments, **changed})

    return look


def _transposed(view: View) -> View | None:
    """[s,h] whose memory holds [h,s]; an LSE of the shape [h,s] is only turned."""
    if len(view.outputs) < 2 or view.outputs[1].dim() != 2:
        return None
    out, lse, *rest = view.outputs
    kept = tuple(lse.shape) == tuple(out.shape[:2])
    return replace(view, outputs=(out, lse.reshape(lse.shape[::-1]).T if kept else lse.T, *rest))


def _returned_in_other_base(lse: Tensor, contract: Contract) -> Tensor:
    """What a merge returns alone: the sides were taken as declared."""
    return lse.double() * (1.0 / LN2 if contract.lse_base == "2" else LN2)


def _other_base(view: View) -> View | None:
    if len(view.outputs) < 2 or view.contract.lse_base is None:
        return None
    return replace(view, contract=replace(view.contract, lse_base="e" if view.contract.lse_base == "2" else "2"))


BASE = Hypothesis(
    "lse-base", "with the LSE in the other base, a ratio of 1.4427 (log2(e)) to the one declared", _other_base
)
EMPTY = (
    Hypothesis("empty-lse-+inf", "with +inf as the LSE of a query without keys", _declared(empty_lse="+inf")),
    Hypothesis("empty-lse--inf", "with -inf as the LSE of a query without keys", _declared(empty_lse="-inf")),
    Hypothesis("empty-lse-nan", "with NaN as the LSE of a query without keys", _declared(empty_lse="nan")),
    Hypothesis("empty-lse-zero", "with 0 as the LSE of a query without keys", _declared(empty_lse="zero")),
    Hypothesis(
        "empty-lse-sentinel",
        "with a finite number in place of -inf as the LSE of a query without keys",
        _declared(empty_lse="sentinel"),
    ),
)
LSE: tuple[Hypothesis, ...] = (
    BASE,
    Hypothesis(
        "lse-base-returned",
        "with the LSE that is returned, and no other, in the other base, a ratio of 1.4427",
        _lse(_returned_in_other_base),
    ),
    *EMPTY,
    Hypothesis("lse-transposed", "with the LSE stored head by head, [h,s] for [s,h]", _transposed),
)
READINGS: tuple[Hypothesis, ...] = (
    Hypothesis("softmax-base", "with the scores in base 2: exp2 of scores without log2(e)", _read(readings.base_two)),
    Hypothesis("softmax-base-twice", "with the scores multiplied by log2(e) twice", _read(readings.base_two_twice)),
    Hypothesis(
        "scale-of-width", "with scores scaled by the width of q, d^-1/2, not as given", _read(readings.scale_of_width)
    ),
    Hypothesis("causal-top-left", "with the causal diagonal anchored at the top left", _read(readings.top_left)),
    Hypothesis(
        "mask-bit-order",
        "with the mask's bits read from the most significant of each word",
        _read(readings.words_reversed),
    ),
    Hypothesis(
        "mask-bit-order-bytes",
        "with the mask's bits read from the most significant of each byte",
        _read(readings.bytes_reversed),
    ),
    Hypothesis("sink-base", "with the sink taken as a base-2 exponent", _read(readings.sink_base_two)),
)
#: Readings of an index: told apart only where the rows that they read are not all poison of one size.
INDEXING: tuple[Hypothesis, ...] = (
    Hypothesis("index-space-relative", "with every index counted from the lowest of its row", _read(readings.relative)),
    Hypothesis("index-space-one-based", "with indices counted from 1", _read(readings.one_based)),
    Hypothesis(
        "negative-index-wraps", "with negative indices counted from the end, as in Python", _read(readings.wrapped)
    ),
    Hypothesis("minus-one-wraps", "with -1 read as the last row", _read(readings.last_row)),
    Hypothesis("invalid-index-row-0", "with invalid indices read as row 0", _read(readings.row_zero)),
    Hypothesis("invalid-index-clamped", "with indices past the end read as the last row", _read(readings.clamped)),
    Hypothesis("duplicates-collapsed", "with an index that stands twice counted once", _read(readings.collapsed)),
    Hypothesis("lengths-ignored", "with every slot counted, whatever the lengths say", _read(readings.all_slots)),
)


def _packed_indices(view: View) -> View | None:
    """Selected columns that count from the first packed key, not from the request's."""
    ks = view.arguments.get("ks")
    if ks is None or "scores" not in view.arguments or not bool((ks != 0).any()):
        return None
    indices = view.outputs[0]
    if indices.dim() != 2 or indices.shape[0] != ks.shape[0]:
        return None
    local = torch.where(indices >= 0, indices - ks[:, None].to(indices.dtype), indices)
    return replace(view, outputs=(local, *view.outputs[1:]))


def _short_in_any_order(view: View) -> View | None:
    """The positions of a window of at most k keys in whatever order they come."""
    if "ks" not in view.arguments or "scores" not in view.arguments or view.contract.topk_short == "any":
        return None
    return replace(view, contract=replace(view.contract, topk_short="any"))


def _packed_in_any_order(view: View) -> View | None:
    packed = _packed_indices(view)
    return None if packed is None else _short_in_any_order(packed)


SELECTION: tuple[Hypothesis, ...] = (
    Hypothesis("nan-lowest", "with NaN ranked below every score", _read(readings.nan_lowest)),
    Hypothesis(
        "index-space-packed",
        "with indices that count from the first packed key, not from the request's",
        _packed_indices,
    ),
    Hypothesis(
        "short-window-order",
        'with the keys of a window of at most k in any order, as topk_short = "any" declares',
        _short_in_any_order,
        looser=True,
    ),
    Hypothesis(
        "index-space-packed+short-window-order",
        "with indices that count from the first packed key, those of a window of at most k in any order",
        _packed_in_any_order,
    ),
)


def _pairs() -> Iterator[Hypothesis]:
    """Another base and another value for empty rows at once, as libraries differ in both."""
    for empty in EMPTY:

        def look(view: View, empty: Hypothesis = empty) -> View | None:
            based = _other_base(view)
            return None if based is None else empty.look(based)

        yield Hypothesis(f"{BASE.name}+{empty.name}", f"{BASE.words}, and {empty.words}", look)


#: Simple ones first: the first group that explains an answer is taken.
GROUPS: tuple[tuple[Hypothesis, ...], ...] = (*((one,) for one in (*LSE, *_pairs())), READINGS, INDEXING, SELECTION)
HYPOTHESES: tuple[Hypothesis, ...] = tuple(one for group in GROUPS for one in group)
#: Between what is wrong and the words of the convention under which it is right.
NAMED = "; the answer is right "
#: An answer so many times larger than the right one is made of poison.
POISONED = 1e4


def explained(
    judgement: Judgement, view: View, judge: Judge, shapes: tuple[tuple[int, ...], ...], right: Callable[[], Outputs]
) -> Judgement:
    """The same judgement, with the convention named in the findings that it would make go away.

    The first group with a hypothesis under which nothing is found any more wins; those of one group that this input
    cannot tell apart are all named. Failing that, the first under which one of the two outputs is right.
    ``shapes``: those that the outputs must have to be judged. ``right``: the answer under the declared conventions.
    """
    wrong = {finding.check for finding in judgement.findings} - {"memory", "rerun"}
    if not wrong:
        return judgement
    answer: Outputs | None = None
    partly: tuple[Hypothesis, set[str]] | None = None
    for group in GROUPS:
        clear = []
        for hypothesis in group:
            left = _found(hypothesis, view, judge, shapes)
            if left is None or not left < wrong:
                continue
            if left and (partly or not _half_right(hypothesis, wrong - left, left)):
                continue
            answer = right() if answer is None else answer
            if group is INDEXING and _largest(view.outputs) > POISONED * _largest(answer):
                continue
            seen = _found(hypothesis, replace(view, outputs=answer), judge, shapes)
            # Half right has to have power where it is right: poison that is read leaves only the LSE's budget small.
            if not (seen or hypothesis.looser) or (left and not (seen or set()) & (wrong - left)):
                continue
            if left:
                partly = hypothesis, wrong - left
            else:
                clear.append(hypothesis)
        if clear:
            return _named(judgement, clear, wrong)
    return judgement if partly is None else _named(judgement, [partly[0]], partly[1])


def _half_right(hypothesis: Hypothesis, cleared: set[str], left: set[str]) -> bool:
    """Whether one of the two outputs is right under a hypothesis that leaves something: the LSE, or all but the LSE."""
    if left == {"lse"}:
        return hypothesis is BASE or hypothesis in (*READINGS, *INDEXING)
    return hypothesis in LSE and "lse" in cleared and "element" in left


def _largest(outputs: Outputs) -> float:
    """Largest finite size of the first output."""
    return float(torch.nan_to_num(outputs[0], 0.0, 0.0, 0.0).abs().max()) if outputs[0].numel() else 0.0


def _found(hypothesis: Hypothesis, view: View, judge: Judge, shapes: tuple[tuple[int, ...], ...]) -> set[str] | None:
    """The checks that fire under the hypothesis; None where it does not apply."""
    seen = hypothesis.look(view)
    if seen is None or tuple(tuple(output.shape) for output in seen.outputs) != shapes[: len(seen.outputs)]:
        return None
    return {finding.check for finding in judge(seen.arguments, seen.outputs, seen.contract, False).findings}


def _named(judgement: Judgement, hypotheses: list[Hypothesis], checks: set[str]) -> Judgement:
    words = ", or ".join(hypothesis.words for hypothesis in hypotheses)
    names = " | ".join(hypothesis.name for hypothesis in hypotheses)

    def named(finding: Finding) -> Finding:
        if finding.check not in checks:
            return finding
        return replace(finding, message=f"{finding.message}{NAMED}{words}", convention=names)

    judgement.findings = [named(finding) for finding in judgement.findings]
    return judgement


def declared(answer: Outputs, contract: Contract, dtypes: tuple[torch.dtype, ...]) -> Outputs:
    """The reference's outputs as the contract promises them: base and value of the LSE, format of the output."""
    out = answer[0].to(dtypes[0])
    if len(answer) < 2 or contract.lse_base is None:
        return (out,)
    lse = answer[1].double()
    empty = torch.isneginf(lse)
    lse = lse / LN2 if contract.lse_base == "2" else lse
    lse = torch.where(empty, readings.EMPTY.get(contract.empty_lse, -5e4), lse)
    if contract.empty_out == "nan":
        out = torch.where(empty[..., None], math.nan, out)
    return out, lse.float()
