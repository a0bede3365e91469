"""Hypotheses about what is read and stored of packed tensors: other heads, requests, strides, dims, rows too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.wrapped import packed_strides, reread
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


def misstrided(seen: Observation) -> Iterator[Hypothesis]:
    """Keys and values read with a stride that the other tensor has, or that a packed one would have."""
    kernel, a = simulated(seen.operator), seen.arguments
    axes = ("tokens", "heads")
    for name, other in (("k", "v"), ("v", "k"), ("q", "k")):
        right = a[name].stride()
        given = {
            f"have the stride of {_NAMES[other].lower()}": a[other].stride(),
            "lie as close as if packed": packed_strides(a[name].shape),
        }
        for words, strides in given.items():
            for axis, what in enumerate(axes):
                changed = tuple(strides[i] if i == axis else right[i] for i in range(3))
                if changed != right:
                    told = f"{_NAMES[name]}: {what} {words}, {strides[axis]} and not {right[axis]} elements."
                    yield Hypothesis(
                        "tensor misread", "gather", told,
                        lambda name=name, s=changed, **a: kernel(**{**a, name: reread(a[name], s)}), 1, fixed=True,
                    )  # fmt: skip


def dims(seen: Observation) -> Iterator[Hypothesis]:
    """Dims left out of q.k: a tile of the head dim that is not loaded, or whose product is written over."""
    width = seen.arguments["q"].shape[-1]
    sizes = [size for size in (16, 32, 64, 128, 256, 512) if size < width]
    parts = {f"the first {size}": slice(size, width) for size in sizes}
    parts |= {f"the last {size}": slice(0, width - size) for size in sizes}
    for size in sizes:
        if width - size not in sizes:
            parts |= {
                f"all but the first {size}": slice(0, size),
                f"all but the last {size}": slice(width - size, width),
            }
    for words, part in parts.items():
        yield Hypothesis(
            "dims of q.k", "scores", f"Dims left out of q.k: {words} of {width}.",
            simulated(seen.operator, dot=lambda q, k, p=part: q[..., p] @ k[..., p].transpose(-1, -2)),
            1, fixed=True,
        )  # fmt: skip


def overrun(seen: Observation) -> Iterator[Hypothesis]:
    """Rows past the end of a request are stored, over the first ones of the next."""
    kernel = simulated(seen.operator)
    for count in (1, 2, 3):

        def predict(count: int = count, **a: Any) -> tuple[Any, ...]:
            out, lse = (x.clone() for x in kernel(**a))
            cu_q, cu_k = a["cu_q"].tolist(), a["cu_k"].tolist()
            for b in range(len(cu_q) - 2):
                first, last = cu_q[b + 1], min(cu_q[b + 1] + count, cu_q[-1])
                keys = slice(cu_k[b], cu_k[b + 1])
                if last > first and keys.stop > keys.start:
                    ends = {"cu_q": torch.tensor([0, last - first]), "cu_k": torch.tensor([0, keys.stop - keys.start])}
                    part = {"q": a["q"][first:last], "k": a["k"][keys], "v": a["v"][keys], **ends, "causal": False}
                    out[first:last], lse[first:last] = simulated("dense_mha")(**part, scale=a["scale"])
            return out, lse

        words = (
            f"{'One row' if count == 1 else f'{count} rows'} past each request {'is' if count == 1 else 'are'} stored"
        )
        yield Hypothesis("rows past a request", "output", f"{words}, over the next one's.", predict, 1, fixed=True)


def _local(cu: Tensor) -> Tensor:
    """The place of every token in its request: the row it has if all requests begin where the first does."""
    cu = cu.cpu().long()
    rows = torch.arange(int(cu[-1]))
    return rows - cu[torch.searchsorted(cu, rows, right=True) - 1]
