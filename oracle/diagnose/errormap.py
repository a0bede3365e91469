"""Where the errors of one answer lie: by request, head, query, column or key, with the rule that names those places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .distance import ratios
from .observation import Observation
from .rules import described

#: Cells of a strip.
CELLS = 48


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of one output."""

    name: str
    size: int
    hit: int
    """Places with at least one wrong element."""
    rule: str
    """Which ones, in words."""
    shares: tuple[float, ...]
    """Share of wrong elements in each of at most ``CELLS`` runs of neighbouring places."""


@dataclass(frozen=True, slots=True)
class ErrorMap:
    """The errors of one output."""

    output: str
    wrong: int
    strange: int
    """NaN or infinite where the reference is not."""
    size: int
    worst: float
    """Largest error over budget; infinite for a strange one."""
    axes: tuple[Axis, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "output": self.output,
            "wrong": self.wrong,
            "strange": self.strange,
            "size": self.size,
            "worst_ratio": self.worst,
            "axes": [
                {
                    "name": a.name,
                    "size": a.size,
                    "hit": a.hit,
                    "rule": a.rule,
                    "shares": [round(s, 4) for s in a.shares],
                }
                for a in self.axes
            ],
        }


def error_maps(seen: Observation) -> list[ErrorMap]:
    """A map for every output that is wrong somewhere."""
    found = []
    for name, exact in seen.expected.exact.items():
        got = seen.answer.get(name)
        if got is None or got.shape != exact.shape or not got.numel():
            continue
        ratio = ratios(got, exact, seen.expected.allowed[name])
        bad = ratio > 1.0
        if bool(bad.any()):
            strange = int((torch.isfinite(got) != torch.isfinite(exact)).sum())
            worst = float("inf") if strange or not bool(seen.expected.allowed[name].any()) else float(ratio.max())
            found.append(ErrorMap(name, int(bad.sum()), strange, bad.numel(), worst, tuple(_axes(seen, name, bad))))
    return found


def _axes(seen: Observation, name: str, bad: Tensor) -> list[Axis]:
    if name in seen.expected.axes:
        return [_plain_axis(bad, i, label) for i, label in enumerate(seen.expected.axes[name])]
    rows = bad.flatten(1).double().mean(1)
    axes = _request_axes(seen, rows) if len(seen.case.q_lens) else []
    names = {"scores": ("keys",)}.get(name, ("heads", "columns"))
    for axis, label in enumerate(names[: bad.dim() - 1], 1):
        others = tuple(i for i in range(bad.dim()) if i != axis)
        share = bad.double().mean(others)
        axes.append(_axis(label, share, torch.arange(len(share)), len(share)))
    if name == "scores":
        axes.append(_window_axis(seen, bad))
    return axes


def _plain_axis(bad: Tensor, axis: int, label: str) -> Axis:
    others = tuple(i for i in range(bad.dim()) if i != axis)
    share = bad.double().mean(others) if others else bad.double()
    return _axis(label, share, torch.arange(len(share)), len(share))


def _request_axes(seen: Observation, rows: Tensor) -> list[Axis]:
    """Requests, and queries by their place in the request."""
    lengths = torch.tensor(seen.case.q_lens)
    request = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    local = torch.cat([torch.arange(int(n)) for n in lengths]) if len(rows) else torch.zeros(0, dtype=torch.long)
    axes = []
    if len(lengths) > 1:
        total = torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, request, rows)
        axes.append(_axis("requests", total / lengths.clamp_min(1), torch.arange(len(lengths)), len(lengths)))
    axes.append(_axis("queries", rows, local, lengths[request]))
    return axes


def _window_axis(seen: Observation, bad: Tensor) -> Axis:
    """Keys counted back from the end of each query's window."""
    ke = seen.arguments["ke"].cpu().long()
    back = ke[:, None] - 1 - torch.arange(bad.shape[1])
    shown = back.clamp(0, bad.shape[1] - 1)
    total = torch.zeros(bad.shape[1], dtype=torch.float64).index_add_(
        0, shown[bad], torch.ones(int(bad.sum())).double()
    )
    share = total / max(1, bad.shape[0])
    return _axis("from the end", share, torch.arange(len(share)), len(share))


def _axis(name: str, share: Tensor, places: Tensor, length: Tensor | int) -> Axis:
    hit = share > 0
    singular = {"queries": "query", "from the end": "key"}.get(name, name.removesuffix("s"))
    rule = next(described(places, hit, torch.ones_like(hit), length, singular), "")
    plural = rule.replace("querys", "queries")
    if not plural and bool(hit.any()):
        where = hit.nonzero().flatten().tolist()
        plural = ", ".join(map(str, where[:6])) + (", …" if len(where) > 6 else "")
    size = len(share)
    cells = [float(part.mean()) for part in torch.chunk(share, min(CELLS, size))] if size else []
    return Axis(name, size, int(hit.sum()), plural, tuple(cells))


def strip(shares: tuple[float, ...]) -> str:
    """The shares as a line of blocks."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join("·" if share <= 0 else blocks[min(7, int(share * 8))] for share in shares)


def as_records(maps: list[ErrorMap]) -> list[Mapping[str, Any]]:
    """JSON-ready."""
    return [one.as_dict() for one in maps]
