"""Faults that are not in the catalogue: other constants, positions, operators. Each has to be explained by an idea."""

import math

import pytest
import torch

from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.diagnose.observation import observe
from attnoracle.oracle.diagnose.ranking import rank
from attnoracle.oracle.faults.simulated import SIMULATED, simulated
from attnoracle.oracle.faults.simulated.indexer import window
from attnoracle.oracle.faults.wrapped import reread

DENSE = "dense_mha:deepseek-v3.2:h2:q5,7:k40,50:bf16:randn:contiguous:-:s3"
MASKED = "masked_mha:deepseek-v3.2:h2:q5,7:k40,50:top24:bf16:randn:contiguous:-:s3"
SPARSE = "sparse_mqa:tiny:h4:q4,3:k80,50:top40:bf16:randn:contiguous:-:s3"
SINK = "sparse_mqa:tiny:h6:q4,3:k80,50:top40:bf16:randn:contiguous:sink:s3"
INDEXER = "indexer_scores:tiny:h4:q9,6:k50,40:bf16:randn:contiguous:-:s3"
SELECT = "topk_select:tiny:h1:q6,4:k90,60:top16:bf16:randn:contiguous:-:s3"
MERGE = "merge_lse:tiny:h4:q20:k20:bf16:randn:contiguous:-:s3"


def _e5m2(x):
    return x.to(torch.float8_e5m2).to(x.dtype)


def _window(cols, last):
    return (cols <= last[:, None]) & (cols > last[:, None] - 24)


def _scale_of_16(total, scale):
    return total * scale[torch.arange(len(scale)) // 16 * 16]


def _log2_of_sum(joint, a, b):
    top = torch.maximum(a, b)
    return top + (joint - top) / math.log(2)


HELD_OUT = [
    (DENSE, {"scale": lambda s, n: s * 0.963}, "softmax scale", "scores", "0.13023,"),
    (MASKED, {"scale": lambda s, n: 1 / math.sqrt(80)}, "softmax scale", "scores", "1/sqrt(80)"),
    (DENSE, {"score": lambda qk, s: 30 * torch.tanh(qk * s / 30)}, "soft cap", "scores", "30 tanh"),
    (DENSE, {"lse": lambda lse, out: lse + 0.0125}, "LSE base or offset", "lse", "off by +0.0125"),
    (DENSE, {"log": lambda peak, total: 0.7 * peak + torch.log(total)}, "parts of the LSE", "lse", "times 0.7"),
    (DENSE, {"seen": lambda seen, cols: seen & (cols % 32 != 5)}, "keys read", "mask", "keys = 5 mod 32"),
    (DENSE, {"last_key": lambda rows, q, k: rows + (k - q) + 2}, "keys read", "mask", "past the diagonal"),
    (DENSE, {"diagonal": _window}, "keys read", "mask", "24 to"),
    (SPARSE, {"seen": lambda seen, slots: seen & (slots % 16 != 7)}, "keys read", "mask", "slots = 7 mod 16"),
    (SPARSE, {"slots": lambda k, block: range(0, k, block - 2), "block_k": 16}, "keys read", "mask", "more than once"),
    (SPARSE, {"output": lambda out, dtype: out.flip(1).to(dtype)}, "rows moved", "output", "0 that of 3"),
    (DENSE, {"rows_written": lambda rows, n: rows[rows % 4 != 3]}, "rows constant", "output", "Queries 3"),
    (MASKED, {"probabilities": lambda p, dtype: _e5m2(p)}, "format of probabilities", "softmax", "e5m2"),
    (DENSE, {"inputs": lambda q, k, v: (q, k, v[:, :1].expand_as(v))}, "tensor misread", "gather", "the first head"),
    (DENSE, {"inputs": lambda q, k, v: (q, k, reread(v, (v.stride(0), k.stride(1), 1)))}, "tensor misread", "gather",
     "heads have the stride of keys"),
    (DENSE, {"dot": lambda q, k: q[..., 128:] @ k[..., 128:].transpose(-1, -2)}, "dims of q.k", "scores",
     "the first 128 of 192"),
    (INDEXER, {"activate": lambda x: torch.where(x < 0, 0.07 * x, x)}, "slope of the ReLU", "logits", "0.07"),
    (INDEXER, {"heads": lambda n: [0, 1, 3]}, "heads summed", "logits", "Left out: head 2"),
    (INDEXER, {"dequantise": _scale_of_16}, "key scale of a block", "logits", "16"),
    (INDEXER, {"window": lambda c, ks, ke: window(c, ks, ke - 2)}, "window end", "logits", "-2"),
    (SELECT, {"local": lambda columns, ks: columns + 2}, "stored index", "top-k", "+2"),
    (SELECT, {"window": lambda ks, ke, t: (ks, max(ke - 3, ks))}, "window end", "top-k", "-3"),
    (MERGE, {"share": lambda lse, joint: torch.full_like(lse, 0.4)}, "merge weights", "merge", "0.4"),
    (MERGE, {"lse": _log2_of_sum}, "parts of the LSE", "lse", "1.4427"),
]  # fmt: skip


def _ranked(case, sites):
    case = Case.parse(case)
    kernel = simulated(case.operator, **sites)
    held_out = Implementation(f"{case.operator}/held-out", SIMULATED, lambda facts: None, lambda: kernel)
    return rank(observe(case, held_out))


@pytest.mark.parametrize(
    ("case", "sites", "idea", "stage", "words"), HELD_OUT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_fault_with_another_constant_is_explained(case, sites, idea, stage, words):
    best = _ranked(case, sites)[0]
    names = {best.hypothesis.name: best.hypothesis, **{other.name: other for other in best.also}}
    assert best.explained >= 0.98 or (idea == "merge weights" and best.explained > 0.9), (
        best.explained,
        best.hypothesis,
    )
    assert idea in names, names
    assert names[idea].stage == stage or (stage, names[idea].stage) == ("mask", "index conversion")
    assert words in names[idea].words, names[idea].words


def test_a_sink_with_another_factor_is_solved_for():
    case = Case.parse(SINK)
    kernel = simulated("sparse_mqa")
    faulty = Implementation(
        "sparse_mqa/x", SIMULATED, lambda facts: None, lambda: lambda **a: kernel(**{**a, "sink": a["sink"] * 0.8})
    )
    best = rank(observe(case, faulty))[0]
    assert best.hypothesis.name == "sink logit" and "multiplied by 0.8" in best.hypothesis.words and best.fits


def test_a_right_kernel_needs_no_explanation():
    assert _ranked(DENSE, {}) == [] and _ranked(SPARSE, {}) == []
