"""Makes ``fixtures/golden/<operator>.safetensors``: inputs in exact arithmetic, outputs of the second formulation.

    PYTHONPATH=typings python tests/reference/make_golden.py

Inputs are multiples of 1/64 made from integers, so they are the same bits everywhere; no random generator is involved.
Tensors are named ``<case>/in/<argument>`` and ``<case>/out/<number>``; options stand in the metadata as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from attnoracle import fixtures
from attnoracle.reference.second import (
    dense_mha,
    indexer_scores,
    masked_mha,
    merge_lse,
    mla,
    rope,
    sparse_mqa,
    topk_select,
)

Call = dict[str, Any]
FOLDER = fixtures.PATH / "golden"


def integers(salt: int, *shape: int, below: int) -> np.ndarray:
    """Integers in [0, below), from squares modulo primes."""
    n = np.arange(int(np.prod(shape)), dtype=np.int64) + 1 + 7919 * salt
    return ((n * n % 1_000_003) * (n * 31 % 999_983) % 999_979 % below).reshape(shape)


def numbers(salt: int, *shape: int) -> np.ndarray:
    """Multiples of 1/64 in [-2, 2]."""
    return (integers(salt, *shape, below=257) - 128) / 64


def ragged(salt: int, lengths: list[tuple[int, int]], heads: int, d: int, v: int) -> Call:
    cu_q, cu_k = (np.cumsum([0, *column], dtype=np.int32) for column in zip(*lengths, strict=True))
    return {
        "q": numbers(salt, cu_q[-1], heads, d),
        "k": numbers(salt + 1, cu_k[-1], heads, d),
        "v": numbers(salt + 2, cu_k[-1], heads, v),
        "cu_q": cu_q,
        "cu_k": cu_k,
    }


def attention_cases() -> dict[str, dict[str, Call]]:
    ragged_batch = [(5, 5), (0, 3), (4, 33), (6, 2), (2, 0), (1, 40)]
    words = integers(10, 6, 6, 3, below=2**16) << 16 | integers(11, 6, 6, 3, below=2**16)
    mask = words.astype(np.uint32).view(np.int32)
    selected = integers(12, 7, 20, below=36).astype(np.int32) - 3  # some below 0, some at or beyond the 30 rows
    selected[3] = -1
    latent = {"q": numbers(13, 7, 3, 24), "kv": numbers(14, 30, 24), "indices": selected, "value_dim": 16}
    lengths, sink = np.array([20, 0, 7, 20, 1, 13, 99], dtype=np.int32), numbers(15, 3)
    return {
        "dense_mha": {
            "causal": {**ragged(1, ragged_batch, 2, 12, 8), "scale": 0.25, "causal": True},
            "full": {**ragged(4, ragged_batch, 2, 12, 8), "scale": 0.25, "causal": False},
            "sharp": {**ragged(7, [(4, 9)], 2, 16, 8), "scale": 8.0, "causal": True},
        },
        "masked_mha": {
            "causal": {**ragged(1, ragged_batch, 2, 12, 8), "mask": mask, "scale": 0.25, "causal": True},
            "full": {**ragged(4, ragged_batch, 2, 12, 8), "mask": mask, "scale": 0.25, "causal": False},
        },
        "sparse_mqa": {
            "plain": {**latent, "scale": 0.125},
            "lengths-sink": {**latent, "lengths": lengths, "sink": sink, "scale": 0.25},
        },
    }


def other_cases() -> dict[str, dict[str, Call]]:
    ks, ke = (np.array(ends, dtype=np.int32) for ends in ([0, 0, 5, 9, 30], [30, 1, 21, 9, 30]))
    index = {"q": numbers(20, 5, 4, 16), "k": numbers(21, 30, 16), "weights": numbers(22, 5, 4), "ks": ks, "ke": ke}
    empty_a, empty_b = (integers(salt, 6, 3, below=3) == 0 for salt in (24, 25))
    return {
        "indexer_scores": {"plain": {**index, "k_scale": 2.0 ** (integers(23, 30, below=5) - 2)}},
        "topk_select": {"ties": {"scores": integers(26, 5, 30, below=9) / 4, "ks": ks, "ke": ke, "k": 8}},
        "merge_lse": {
            "one-sided": {
                "out_a": numbers(27, 6, 3, 4),
                "lse_a": np.where(empty_a, -np.inf, 4 * numbers(28, 6, 3)),
                "out_b": numbers(29, 6, 3, 4),
                "lse_b": np.where(empty_b, -np.inf, 4 * numbers(30, 6, 3)),
            }
        },
        "rope": {
            style: {
                "x": numbers(31, 5, 2, 16),
                "positions": np.array([0, 1, 2, 77, 1000]),
                "interleaved": style[0] == "i",
            }
            for style in ("interleaved", "halves")
        },
        "mla": {
            "absorb": {"kv_b": numbers(32, 3 * 7, 8), "rows": numbers(33, 9, 12), "q": numbers(34, 4, 3, 9)},
        },
    }


def turn(x: np.ndarray, positions: np.ndarray, interleaved: bool) -> np.ndarray:
    """RoPE of theta 10000 without YaRN."""
    return rope.rotate(x, positions, rope.frequencies(x.shape[-1], 10000.0), interleaved=interleaved)


def latent_forms(kv_b: np.ndarray, rows: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, ...]:
    """k, v and the absorbed query of 3 heads with p = 5, v = 2, r = 4, c = 8."""
    keys, values = mla.head_matrices(kv_b, heads=3, nope=5, value=2, rope=4)
    return *mla.up_project(rows, keys, values, latent=8), mla.absorb_query(q, keys)


SECOND: dict[str, Callable[..., Any]] = {
    "dense_mha": dense_mha.dense_mha,
    "masked_mha": masked_mha.masked_mha,
    "sparse_mqa": sparse_mqa.sparse_mqa,
    "indexer_scores": indexer_scores.indexer_scores,
    "topk_select": topk_select.topk_select,
    "merge_lse": merge_lse.merge_lse,
    "rope": turn,
    "mla": latent_forms,
}


def cases() -> dict[str, dict[str, Call]]:
    """Calls by operator and case name."""
    return attention_cases() | other_cases()


def write(folder: Path) -> None:
    """One file an operator."""
    folder.mkdir(parents=True, exist_ok=True)
    for operator, calls in cases().items():
        arrays: dict[str, np.ndarray] = {}
        options: dict[str, Call] = {}
        for name, call in calls.items():
            result = SECOND[operator](**call)
            outputs = result if isinstance(result, tuple) else (result,)
            given = {key: value for key, value in call.items() if isinstance(value, np.ndarray)}
            options[name] = {key: value for key, value in call.items() if key not in given}
            arrays |= {f"{name}/in/{key}": np.ascontiguousarray(value) for key, value in given.items()}
            arrays |= {f"{name}/out/{number}": np.ascontiguousarray(x) for number, x in enumerate(outputs)}
        save_file(arrays, folder / f"{operator}.safetensors", {"options": json.dumps(options, sort_keys=True)})


if __name__ == "__main__":
    write(FOLDER)
