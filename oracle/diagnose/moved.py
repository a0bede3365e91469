"""Hypotheses about rows as wholes: stored in another place, never stored, or left at a constant."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .distance import ratios
from .hypothesis import Hypothesis
from .observation import Observation

#: Most rows (query, head) that are compared with each other.
MOST_ROWS = 3000
#: A row is another one's answer if nearly all of its elements are.
ALIKE = 0.98


def moved(seen: Observation) -> Iterator[Hypothesis]:
    """Rows that hold the right answer of another row, with and without their LSE."""
    got, right = seen.answer.get("out"), seen.right.get("out")
    if got is None or right is None or got.shape != right.shape or not 0 < got.shape[0] * got.shape[1] <= MOST_ROWS:
        return
    bad = _bad_rows(seen)
    if not bool(bad.any()):
        return
    source = _sources(seen, got, right, bad)
    if source is None:
        return
    words = _told(source, bad, got.shape[1])
    flat = right.flatten(0, 1)[source].view(right.shape)
    for told, lse in ((words, None), (f"{words[:-1]}, and so does the LSE.", "moved")):
        yield Hypothesis(
            "rows moved", "output", told, lambda lse=lse, **a: _outputs(seen, flat, source if lse else None), 2
        )


def constant(seen: Observation) -> Iterator[Hypothesis]:
    """Rows that hold one value: never written, or written with a constant."""
    for name in ("out", "scores"):
        got, right = seen.answer.get(name), seen.right.get(name)
        if got is None or right is None or got.shape != right.shape or not got.numel():
            continue
        wide = got.unsqueeze(1) if got.dim() == 2 else got
        first = wide[..., :1]
        flat = ((wide == first) | (torch.isnan(wide) & torch.isnan(first))).all(-1)
        flat = flat & ~(seen.expected.exact[name].view(wide.shape) == first).all(-1)
        if not bool(flat.any()):
            continue
        value = float(first[flat][0, 0])
        changed = torch.where(flat[..., None], first.expand_as(wide), right.view(wide.shape)).view(right.shape)
        empty = seen.expected.exact["lse"] == -torch.inf if "lse" in seen.expected.exact else torch.zeros_like(flat)
        rows = "queries without keys" if bool((flat & ~empty).sum() == 0) else _rows(flat)
        told = "are never written: they hold the NaN of a fresh allocation" if value != value else f"hold {value:.5g}"
        kept = {key: seen.right[key] for key in seen.right}
        kept[name] = changed
        lse = seen.answer.get("lse")
        if lse is not None and name == "out" and lse.shape == flat.shape:
            kept["lse"] = torch.where(flat, lse, seen.right["lse"])
        words = f"{rows[:1].upper()}{rows[1:]} {told}."
        yield Hypothesis("rows constant", "output", words, lambda kept=kept, **a: tuple(kept.values()), 2)


def _bad_rows(seen: Observation) -> Tensor:
    return (ratios(seen.answer["out"], seen.right["out"], seen.expected.allowed["out"]) > 1.0).any(-1)


def _sources(seen: Observation, got: Tensor, right: Tensor, bad: Tensor) -> Tensor | None:
    """For every row the number of the row whose answer it holds, [s*h]; None unless most wrong rows hold one."""
    rows, known = got.flatten(0, 1), torch.nan_to_num(right.flatten(0, 1), 0.0, 0.0, 0.0)
    budget = seen.expected.allowed["out"].flatten(0, 1)
    wrong = bad.flatten().nonzero().flatten()
    source = torch.arange(len(rows))
    near = torch.cdist(torch.nan_to_num(rows[wrong], 0.0, 0.0, 0.0), known).argmin(1)
    close = (ratios(rows[wrong], known[near], torch.maximum(budget[near], budget[wrong])) <= 1.0).double().mean(
        1
    ) >= ALIKE
    if int(close.sum()) < 0.9 * len(wrong):
        return None
    source[wrong] = torch.where(close, near, wrong)
    return source


def _outputs(seen: Observation, out: Tensor, source: Tensor | None) -> tuple[Tensor, ...]:
    lse = seen.right["lse"]
    return out, lse if source is None else lse.flatten()[source].view(lse.shape)


def _told(source: Tensor, bad: Tensor, heads: int) -> str:
    """What moved where, in words."""
    rows = bad.flatten().nonzero().flatten()
    to_query, to_head, query, head = rows // heads, rows % heads, source[rows] // heads, source[rows] % heads
    if bool((to_query == query).all()):
        pairs = sorted({(int(a), int(b)) for a, b in zip(to_head, head, strict=True)})
        step = {(a - b) % heads for a, b in pairs}
        if len(step) == 1 and len(pairs) == heads:
            return f"Each head holds the answer of the head {step.pop()} before."
        shown = ", ".join(f"{a} that of {b}" for a, b in pairs[:4])
        return f"Heads hold the answer of others: head {shown}{', …' if len(pairs) > 4 else ''}."
    if bool((to_head == head).all()):
        steps = sorted(set((to_query - query).tolist()))
        if len(steps) == 1:
            which = "Each query" if bool(bad.any(1).all()) else f"Queries {_listed(to_query)}"
            return f"{which} hold{'s' if which == 'Each query' else ''} the answer of the query {steps[0]:+d} before."
        shown = ", ".join(f"{a} that of {b}" for a, b in list(zip(to_query.tolist(), query.tolist(), strict=True))[:4])
        return f"Queries hold the answer of others: query {shown}, …."
    return "Rows hold the answer of other queries and heads, as if stored in another order."


def _rows(flat: Tensor) -> str:
    """Which rows of [s,h] are meant."""
    queries, heads = flat.any(1).nonzero().flatten(), flat.any(0).nonzero().flatten()
    if bool(flat.all()):
        return "all rows"
    if bool(flat.any(1).all()):
        return f"heads {_listed(heads)} of all queries"
    return f"queries {_listed(queries)}"


def _listed(places: Tensor) -> str:
    found = sorted(set(places.tolist()))
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found[:6])) + (", …" if len(found) > 6 else "")
