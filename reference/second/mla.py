"""MLA through one matrix a head that takes a cache row to a key.

    B_h = [[w_uk[h], 0], [0, I]]  [p+r, c+r]      k[t,h] = B_h row_t      q'[s,h] = B_h^T q[s,h]

so that q . k = q^T B_h row = q' . row. Different from the first: the whole matrix is built, both forms come from it,
and the weights are cut from ``kv_b`` row by row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def head_matrices(kv_b: Array, *, heads: int, nope: int, value: int, rope: int) -> tuple[list[Array], list[Array]]:
    """B_h [p+r, c+r] and w_uv [v, c] of every head."""
    latent = kv_b.shape[1]
    keys, values = [], []
    for head in range(heads):
        start = head * (nope + value)
        matrix = np.zeros((nope + rope, latent + rope))
        for row in range(nope):
            matrix[row, :latent] = kv_b[start + row]
        for row in range(rope):
            matrix[nope + row, latent + row] = 1.0
        keys.append(matrix)
        values.append(kv_b[start + nope : start + nope + value])
    return keys, values


def up_project(rows: Array, keys: list[Array], values: list[Array], *, latent: int) -> tuple[Array, Array]:
    """k [t, h, p+r] and v [t, h, v] of cache rows [t, c+r]."""
    k = np.stack([rows @ matrix.T for matrix in keys], axis=1)
    v = np.stack([rows[:, :latent] @ matrix.T for matrix in values], axis=1)
    return k, v


def absorb_query(q: Array, keys: list[Array]) -> Array:
    """q [s, h, p+r] as [s, h, c+r]."""
    return np.stack([q[:, head] @ matrix for head, matrix in enumerate(keys)], axis=1)


def project_output(out: Array, values: list[Array]) -> Array:
    """out [s, h, c] as [s, h, v]."""
    return np.stack([out[:, head] @ matrix.T for head, matrix in enumerate(values)], axis=1)
