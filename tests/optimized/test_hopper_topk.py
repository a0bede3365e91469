"""Hopper's top-k without a GPU: its own source, run on numpy, against a sort."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from attnoracle.optimized import triton_runtime

triton_runtime.prepare()

from triton.language import constexpr  # noqa: E402

from attnoracle.optimized.hopper_kernels import row_threshold, topk_select  # noqa: E402

spec = importlib.util.spec_from_file_location("gluon_on_numpy", Path(__file__).with_name("gluon_on_numpy.py"))
gluon_on_numpy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gluon_on_numpy)

ROWS, COLUMNS, TAKEN = 5, 4093, 300


def draw(shape=(ROWS, COLUMNS)):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


Z, ROW, U = draw(), draw((ROWS, 1)), np.random.default_rng(8).random((ROWS, COLUMNS))
KINDS = {
    "normal": Z,
    "a shift a row": Z + 3 * ROW,
    "a factor a row": Z * np.exp(ROW),
    "clusters": 100 * ROW + 1e-4 * Z,
    "mostly zero": np.where(U < 0.5, np.float32(-0.0), np.maximum(Z - 1.9, 0)),
    "equal": np.broadcast_to(ROW, Z.shape),
    "few": np.floor(U * 10) - 5,
    "mostly -inf": np.where(U < 0.95, -np.inf, Z),
    "NaN and inf": np.where(U < 0.04, np.nan, np.where(U < 0.1, np.inf, Z)),
    "all NaN": Z * np.nan,
    "any bits": np.random.default_rng(9).integers(0, 2**32, Z.shape, dtype=np.uint32).view(np.float32),
    "denormal": Z * np.float32(1e-42),
}


def run(scores, ks, ke, taken, *, stride=COLUMNS, deep=32, tail=None, sampled=True):
    """Rows in memory that ends where the last one does, NaN between them."""
    rows, columns = scores.shape
    memory = np.full((rows - 1) * stride + columns, np.nan, np.float32)
    for row in range(rows):
        memory[row * stride : row * stride + columns] = scores[row]
    indices = np.full(rows * taken, -7, np.int32)
    tail = len(memory) % 4 != 0 if tail is None else tail
    gluon_on_numpy.launch(
        (row_threshold, topk_select), "_topk_select_kernel", 2, memory, ks, ke, indices, rows, columns, taken, stride,
        *map(constexpr, (deep, 128, tail, sampled)),
    )  # fmt: skip
    return indices.reshape(rows, taken)


def order(scores):
    bits = np.where(scores == 0, np.float32(0), scores).view(np.int32)
    return np.where(np.isnan(scores), 2**31 - 2, bits ^ ((bits >> 31) & 0x7FFFFFFF))


def hold(scores, ks, ke, taken, found):
    for row, got in enumerate(found):
        window = scores[row, max(ks[row], 0) : max(min(ke[row], scores.shape[1]), 0)]
        if len(window) <= taken:
            assert got.tolist() == [*range(len(window)), *[-1] * (taken - len(window))]
        else:
            assert got.min() >= 0 and len(set(got.tolist())) == taken
            assert np.array_equal(np.sort(order(window[got])), np.sort(order(window))[-taken:])


def windows(rows=ROWS):
    draws = np.random.default_rng(3)
    return draws.integers(-3, 40, rows).astype(np.int32), draws.integers(3500, 4100, rows).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
def test_it_selects_as_a_sort_does(kind):
    scores = np.ascontiguousarray(KINDS[kind], np.float32)
    hold(scores, *windows(), TAKEN, run(scores, *windows(), TAKEN, stride=COLUMNS + len(kind) % 4))


def test_without_the_spread_of_a_row_it_selects_the_same():
    scores = KINDS["a shift a row"]
    with_it, without = (np.sort(run(scores, *windows(), TAKEN, sampled=sampled), 1) for sampled in (True, False))
    assert np.array_equal(with_it, without)


@pytest.mark.parametrize("taken", [1, 3500, COLUMNS - 1])
def test_any_number_is_taken(taken):
    ks, ke = np.zeros(2, np.int32), np.full(2, COLUMNS, np.int32)
    hold(Z[:2], ks, ke, taken, run(Z[:2], ks, ke, taken))


@pytest.mark.parametrize("ends", [500, 499, 498, 497])
def test_nothing_is_read_past_the_scores(ends):
    """The memory ends with the last window: a copy that goes beyond raises."""
    scores = np.ascontiguousarray(Z[:3, :ends])
    ks, ke = np.array([0, 3, 6], np.int32), np.full(3, ends + 9, np.int32)
    for stride in (ends, ends + 3):
        hold(scores, ks, ke, 64, run(scores, ks, ke, 64, stride=stride, deep=4))
    if (3 * ends) % 4:
        with pytest.raises(IndexError, match=f"of {3 * ends}$"):
            run(scores, ks, ke, 64, stride=ends, deep=4, tail=False)
