"""Hypotheses about where the rows of a packed tensor are read: at another head, or at another request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from .hypothesis import Hypothesis
from .observation import Observation

_NAMES = {"q": "Queries", "k": "Keys", "v": "Values"}
_WAYS: tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...] = (
    ("those of the first head", lambda x, cu: x[:, :1].expand_as(x)),
    ("those of the head before", lambda x, cu: x.roll(1, 1)),
    ("those of the next head", lambda x, cu: x.roll(-1, 1)),
    ("those of the first request", lambda x, cu: x[_local(cu)]),
    ("those of the token before", lambda x, cu: x.roll(1, 0)),
)


def misread(seen: Observation) -> Iterator[Hypothesis]:
    """Every tensor of dense and masked attention, read in every way."""
    kernel = simulated(seen.operator)
    for name, what in _NAMES.items():
        for words, way in _WAYS:

            def predict(name: str = name, way: Callable[[Tensor, Tensor], Tensor] = way, **a: Any) -> tuple[Any, ...]:
                changed = way(a[name], a["cu_q" if name == "q" else "cu_k"])
                return kernel(**{**a, name: changed})

            yield Hypothesis("tensor misread", "gather", f"{what} are {words}.", predict, 1, fixed=True)


def _local(cu: Tensor) -> Tensor:
    """The place of every token in its request: the row it has if all requests begin where the first does."""
    cu = cu.cpu().long()
    rows = torch.arange(int(cu[-1]))
    return rows - cu[torch.searchsorted(cu, rows, right=True) - 1]
