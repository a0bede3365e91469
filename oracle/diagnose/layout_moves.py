"""Hypotheses read off an answer that has to be right bit by bit: rows and bytes that moved, places nobody wrote."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .hypothesis import Hypothesis
from .observation import Answer, Observation
from .rules import described
from .stages import LAYOUT_STAGES

#: Of the wrong rows (elements, columns) that many have to be explained.
MOST = 0.9
#: Stands for NaN where rows are compared.
_NAN = -(2.0**60)


def moved_rows(seen: Observation) -> Iterator[Hypothesis]:
    """Rows that hold, whole, what belongs to other rows: at one distance, or anywhere."""
    name, got, right = _first(seen)
    if got is None or right.dim() < 2 or len(right.flatten(0, -2)) < 2:
        return
    mine, theirs = (torch.nan_to_num(x, nan=_NAN).flatten(0, -2) for x in (got, right))
    wrong = (mine != theirs).any(1).nonzero().flatten()
    places = {row.numpy().tobytes(): place for place, row in reversed(list(enumerate(theirs)))}
    source = [places.get(mine[row].numpy().tobytes(), -1) for row in wrong.tolist()]
    found = [(row, place) for row, place in zip(wrong.tolist(), source, strict=True) if place >= 0]
    if not found or len(found) < MOST * len(wrong):
        return
    steps = {place - row for row, place in found}
    if len(steps) == 1:
        words = f"Rows hold what belongs to row {steps.pop():+d}."
    else:
        shown = ", ".join(f"{row} that of {place}" for row, place in found[:4])
        words = f"Rows hold what belongs to others: row {shown}{', …' if len(found) > 4 else ''}."
    changed = right.flatten(0, -2).clone()
    changed[[row for row, _ in found]] = right.flatten(0, -2)[[place for _, place in found]]
    yield _told(seen, "rows moved", words, {name: changed.view(right.shape)}, 3)


def unwritten(seen: Observation) -> Iterator[Hypothesis]:
    """Elements that were never written: they hold what was in the memory before."""
    before = _before(seen)
    changed, told = {}, []
    for name, right in seen.right.items():
        got = seen.answer.get(name)
        if got is None or got.shape != right.shape:
            return
        old = before.get(name)
        kept = torch.isnan(got) | (got == _EMPTY) if old is None else _alike(got, old)
        off = ~_alike(got, right)
        hit = kept & off
        if not bool(hit.any()) or int(hit.sum()) < MOST * int(off.sum()):
            continue
        changed[name] = torch.where(hit, got, right)
        told.append(f"{name} at {_places(seen, name, hit)}")
    if changed:
        yield _told(seen, "not written", f"Never written: {'; '.join(told)}.", changed, 4)


def moved_bytes(seen: Observation) -> Iterator[Hypothesis]:
    """Columns of written rows that hold what belongs to other columns, or are not written: the layout of a row."""
    if seen.operator != "write_cache":
        return
    name, got, right = _first(seen)
    old = _before(seen).get(name)
    if got is None or old is None:
        return
    rows = (~_alike(right, old)).flatten(0, -2).any(1)
    mine, theirs, kept = (torch.nan_to_num(x, nan=_NAN).flatten(0, -2)[rows].T.contiguous() for x in (got, right, old))
    if mine.shape[1] < 3:
        return
    columns: dict[bytes, list[int]] = {}
    for place, column in enumerate(theirs):
        columns.setdefault(column.numpy().tobytes(), []).append(place)
    source, moves = [], 0
    for place, column in enumerate(mine):
        if bool((column == theirs[place]).all()):
            source.append(place)
            continue
        found = columns.get(column.numpy().tobytes(), [])
        if not found and not bool((column == kept[place]).all()):
            return
        moves += 1
        source.append(min(found, key=lambda other: abs(other - place)) if found else -1)
    if not moves:
        return
    flat = right.flatten(0, -2).clone()
    pick = torch.tensor(source)
    moved = torch.where(pick >= 0, flat[rows][:, pick.clamp(min=0)], old.flatten(0, -2)[rows])
    flat[rows] = moved
    yield _told(seen, "bytes of a row", f"{_runs(source)}.", {name: flat.view(right.shape)}, 4)


#: An integer of nothing but ones, as memory that was never written holds.
_EMPTY = -1.0


def _before(seen: Observation) -> Answer:
    """What an output held before the call, of an operator that writes in place."""
    for name in ("cache", "pages"):
        if seen.operator.startswith("write_") and name in seen.arguments:
            from .exact import as_answer

            tail = seen.arguments[name]
            tail = tail[len(tail) - len(seen.right[name]) :]
            return as_answer(seen.operator, seen.arguments, (tail,), seen.contract)
    return {}


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (torch.isnan(a) & torch.isnan(b))


def _first(seen: Observation) -> tuple[str, Tensor | None, Tensor]:
    name = next(iter(seen.right))
    got = seen.answer.get(name)
    return name, got if got is not None and got.shape == seen.right[name].shape else None, seen.right[name]


def _told(seen: Observation, idea: str, words: str, changed: Answer, parameters: int) -> Hypothesis:
    answer = {**seen.right, **changed}
    return Hypothesis(idea, LAYOUT_STAGES[seen.operator], words, lambda **a: (), parameters, answer=answer)


def _places(seen: Observation, name: str, hit: Tensor) -> str:
    """Where, by the axis that says it shortest."""
    rules = []
    for axis, label in enumerate(seen.expected.axes[name]):
        others = tuple(i for i in range(hit.dim()) if i != axis)
        on = hit.any(others) if others else hit
        rule = next(described(torch.arange(len(on)), on, torch.ones_like(on), len(on), label.removesuffix("s")), "")
        if rule and not rule.startswith("all "):
            rules.append(rule)
    return " and ".join(rules) or f"{int(hit.sum()):,} elements"


def _runs(source: list[int]) -> str:
    """Bytes of a row and where they come from, in words."""
    parts, first = [], 0
    for place in range(1, len(source) + 1):
        before, now = source[place - 1], source[place] if place < len(source) else None
        if now is not None and ((before < 0 and now < 0) or (before >= 0 and now == before + 1)):
            continue
        if source[first] != first:
            span = f"{first} to {place - 1}" if place - 1 > first else f"{first}"
            what = "are not written" if source[first] < 0 else f"hold what belongs at {source[first]}"
            parts.append(f"elements {span} {what}")
        first = place
    text = "; ".join(parts[:4])
    return text[:1].upper() + text[1:]
