"""Stages wired to each other: each gets what the stage before gave, and its error is split into two.

    inherited   the exact stage on the inputs that came, against the exact intermediates: what the stages before brought
    local       what the stage gave, against the exact stage on the same inputs: what it added itself

Only the local part is judged, by the budget of its stage, so a fault fails where it is and shows as inherited in every
stage behind it. What stages fed by the reference cannot show comes out here: an output that the next stage refuses, and
an error that is there only for what one's own stages give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...reference.stages import STAGES, Stage
from .suite import DTYPES, Found, StageCase, Suite


@dataclass(frozen=True, slots=True)
class Link:
    """One stage of a chain; errors are relative to the largest exact value, of a selection the share that differs."""

    stage: str
    own: bool
    """Whether it is code under test; else the reference stands in."""
    inherited: float
    local: float
    found: Found | None

    def __str__(self) -> str:
        told = f"{self.stage:14s} inherited {self.inherited:.2g}, local {self.local:.2g}"
        told += "" if self.own else " (the reference)"
        return told if self.found is None else f"{told}\n  {self.found}"


def chain_stages(suite: Suite) -> tuple[Stage, ...]:
    """From hidden states to the output projection; without an indexer every key is selected."""
    return tuple(stage for stage in STAGES if suite.model.index_heads or not stage.indexer)


def chain(suite: Suite, case: StageCase, own: Mapping[str, Callable[..., Any]], dtype: str) -> tuple[Link, ...]:
    """The links of a case; it ends at a stage that raises."""
    exact = suite.exact(case)
    known: dict[str, Any] = {
        name: exact[name].to(DTYPES[dtype]) if exact[name].is_floating_point() else exact[name]
        for name in ("hidden", "new", "positions", "new_positions")
    }
    if not suite.model.index_heads:
        known["indices"] = exact["indices"]
    links: list[Link] = []
    for stage in chain_stages(suite):
        here = replace(case, stage=stage.name)
        inputs = {keyword: known[name] for keyword, name in stage.inputs.items()}
        # With the widths of exact arithmetic, as ``judged`` has them too.
        wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        try:
            right = _tuple(stage.function(suite.model, suite.weights, **wide))
            if stage.name in own:
                came = _tuple(own[stage.name](**{name: x.clone() for name, x in inputs.items()}))
            else:
                came = tuple(x.to(DTYPES[dtype]) if x.is_floating_point() else x for x in right)
            found = suite.judged(here, inputs, came, dtype) if stage.name in own else None
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            told = f"given what the stages before gave, it raised {type(error).__name__}: {str(error).splitlines()[0]}"
            links.append(Link(stage.name, stage.name in own, 0.0, torch.inf, Found(here, told)))
            break
        brought = max(map(_off, right, (exact[name] for name in stage.outputs)))
        links.append(Link(stage.name, stage.name in own, brought, max(map(_off, came, right)), found))
        known |= zip(stage.outputs, came, strict=True)
    return tuple(links)


def _off(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return torch.inf
    if not other.is_floating_point():
        rows = zip(one.tolist(), other.tolist(), strict=True)
        shared = sum(len(set(a) & set(b)) / max(1, len(set(b))) for a, b in rows)
        return 1.0 - shared / max(1, len(other))
    finite = other.isfinite()
    size = float(other[finite].abs().max()) if bool(finite.any()) else 1.0
    error = torch.where(one == other, 0.0, (one.double() - other).abs())
    return float(error.nan_to_num(torch.inf, torch.inf).max()) / (size or 1.0) if error.numel() else 0.0


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
