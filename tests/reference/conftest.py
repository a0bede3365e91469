"""What the tests of the references share: ragged inputs from a seed, and the comparison of two formulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

Arrays = dict[str, Any]


def _tensors(arrays: Arrays) -> Arrays:
    """The same call for the first formulation: arrays become tensors, everything else stays."""
    return {name: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for name, x in arrays.items()}


def _agree(first: Sequence[torch.Tensor], second: Sequence[Any], relative: float = 1e-12) -> None:
    """Equal shapes, NaN and infinities in the same places, and the rest within ``relative`` of the largest value."""
    assert len(first) == len(second)
    for tensor, expected in zip(first, second, strict=True):
        got, expected = tensor.double().numpy(), np.asarray(expected, dtype=np.float64)
        assert got.shape == expected.shape
        assert np.array_equal(np.isnan(got), np.isnan(expected))
        finite = np.isfinite(expected)
        assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)
        if finite.any():
            largest = np.abs(expected[finite]).max()
            assert np.abs(got[finite] - expected[finite]).max() <= relative * largest


def _ragged(seed: int, lengths: Sequence[tuple[int, int]], *, heads: int = 2, d: int = 5, v: int = 3) -> Arrays:
    """q, k, v, cu_q and cu_k of requests with (queries, keys), normally distributed."""
    draw = np.random.default_rng(seed).standard_normal
    cu_q, cu_k = (np.cumsum([0, *column], dtype=np.int32) for column in zip(*lengths, strict=True))
    sizes = {"q": (cu_q[-1], heads, d), "k": (cu_k[-1], heads, d), "v": (cu_k[-1], heads, v)}
    return {**{name: draw(size) for name, size in sizes.items()}, "cu_q": cu_q, "cu_k": cu_k}


@pytest.fixture(scope="session")
def tensors() -> Callable[[Arrays], Arrays]:
    return _tensors


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    return _agree


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Arrays]:
    return _ragged
