"""Layouts of caches as numpy structured types: the fields of a row or a page, and whose token lies where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer]


def mla_row(latent: int, rope: int) -> np.dtype[Any]:
    """A row of ``fp8_ds_mla``; rotated dims as the upper halves of fp32."""
    tiles = latent // 128 if latent > 128 else 1
    return np.dtype([("codes", "u1", (latent,)), ("scales", "<f4", (tiles,)), ("rope", "<u2", (rope,))])


def index_page(tokens: int, e: int) -> np.dtype[Any]:
    """A page of the indexer's cache."""
    return np.dtype([("codes", "u1", (tokens, e)), ("scales", "<f4", (tokens,))])


def walk(starts: Integers, cu: Integers) -> Iterator[tuple[int, int, int]]:
    """Every packed token: its number, its request, its position."""
    for request in range(len(starts)):
        for offset in range(int(cu[request + 1] - cu[request])):
            yield int(cu[request]) + offset, request, int(starts[request]) + offset


def find(table: Integers, request: int, position: int, size: int, blocks: int) -> tuple[int, int] | None:
    """Page and place of a position; None if there is none."""
    if position < 0 or not 0 <= request < len(table):
        return None
    column, place = divmod(position, size)
    page = int(table[request, column]) if column < table.shape[1] else -1
    return (page, place) if 0 <= page < blocks else None
