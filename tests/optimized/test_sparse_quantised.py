"""Sparse MQA on quantised caches: verdicts at odd shapes, pages, rows past 2**31, padded heads, and refusals."""

from __future__ import annotations

import math

import pytest
import torch

from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.config import load
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.inputs import make

MLA = ("sparse_mqa/triton", "sparse_mqa/gather", "sparse_mqa/triton-pad64")
PLAIN = ("sparse_mqa/triton", "sparse_mqa/gather", "sparse_mqa/gather-fp8")


def case(text: str) -> Case:
    return Case.parse(f"sparse_mqa:{text}")


def call(text: str) -> dict:
    made = case(text)
    return make(made, load(made.geometry)).kwargs()


@pytest.mark.parametrize("name", MLA)
@pytest.mark.parametrize(
    "text",
    [
        "deepseek-v3.2:h1:q2:k90:top33:bf16:randn:strided:ds-mla+pages:s1",
        "glm-5.3-flash:h3:q2:k40:top16:bf16:randn:offset:ds-mla:s2",
        "tiny:h5:q3,1:k50,0:top20:bf16:randn:contiguous:ds-mla+zero-tiles:s3",
        "deepseek-v3.2:h2:q2:k20:top8:bf16:randn:strided:ds-mla+hugerows+pages:s4",
    ],
)
def test_ds_mla(name, text):
    assert check(case(text), find(name)).status == "PASS"


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    "text",
    [
        "deepseek-v3.2:h1:q2:k90:top33:e4m3:randn:strided:pages:s1",
        "glm-5.3-flash:h3:q2:k40:top16:e4m3:randn:offset:-:s2",
        "tiny:h5:q3,1:k50,0:top20:e4m3:randn:contiguous:-:s3",
        "deepseek-v3.2:h2:q2:k20:top8:e4m3:randn:contiguous:hugerows:s4",
    ],
)
def test_plain_e4m3(name, text):
    assert check(case(text), find(name)).status == "PASS"


def test_power_of_two_scales_are_dequantised_exactly():
    """A code has four significant bits, so its product with a power of two is a bf16 number: both ways agree."""
    made = call("deepseek-v3.2:h16:q3:k90:top64:bf16:randn:contiguous:ds-mla+pow2-scales:s1")
    (ours, lse), (exact, exact_lse) = (find(f"sparse_mqa/{one}").load()(**made) for one in ("triton", "gather"))
    assert float((ours.float() - exact.float()).abs().max()) <= 2.0**-7 * float(exact.float().abs().max())
    assert torch.allclose(lse, exact_lse, rtol=0, atol=1e-5)


def test_padded_heads_do_not_reach_the_others(monkeypatch):
    """Memory of the heads that are added holds NaN, then infinity, then zero: the answer stays, bit for bit."""
    made = call("deepseek-v3.2:h12:q3:k60:top24:bf16:randn:contiguous:ds-mla+sink:s1")
    function, empty, answers = find("sparse_mqa/triton-pad64").load(), torch.empty, []
    for held in (math.nan, math.inf, 0.0):
        monkeypatch.setattr(torch, "empty", lambda *size, held=held, **more: empty(*size, **more).fill_(held))
        answers.append(function(**made))
    monkeypatch.undo()
    plain = find("sparse_mqa/triton").load()(**made)
    assert answers[0][0].shape == (3, 12, 512)
    for answer in answers[1:]:
        assert all(torch.equal(*pair) for pair in zip(answer, answers[0], strict=True))
    # The interpreter's products may add in another order for another number of heads.
    assert torch.allclose(answers[0][0].float(), plain[0].float(), rtol=2.0**-6, atol=1e-3)
    assert torch.allclose(answers[0][1], plain[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["sparse_mqa/triton", "sparse_mqa/gather"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": lambda kv: kv[:, :655]}, r"kv: expected shape \[n, bytes\] = \['any', 656\], got \[66, 655\]"),
        ({"kv": lambda kv: kv.view(torch.int8)}, "kv: expected torch.uint8"),
        ({"kv": lambda kv: kv.new_zeros(kv.numel() + 2)[2:].view(kv.shape)}, "rows and pages at multiples of 4 bytes"),
        ({"kv": lambda kv: kv.new_zeros(66, 658)[:, :656]}, "rows and pages at multiples of 4 bytes"),
        ({"kv": lambda kv: kv * 0}, "kv scales: expected finite scales above 0, got 0.0"),
        ({"q": lambda q: q.float()}, "q: expected torch.bfloat16, got torch.float32"),
        ({"k_scale": lambda _: 0.5}, "q_scale, k_scale: expected 1 for fp8_ds_mla, got 1.0 and 0.5"),
        ({"cache_format": lambda _: "fp8"}, "cache_format: expected model, fp8_e4m3 or fp8_ds_mla, got 'fp8'"),
    ],
    ids=["row-size", "dtype", "misaligned", "row-stride", "zero-scale", "query-dtype", "scale", "format"],
)
def test_what_cannot_be_is_refused(name, change, message):
    made = call("deepseek-v3.2:h2:q3:k50:top8:bf16:randn:contiguous:ds-mla:s1")
    ((field, new),) = change.items()
    with pytest.raises(ValueError, match=message):
        find(name).load()(**made | {field: new(made.get(field))})


@pytest.mark.parametrize("scale", [0.0, -2.0, math.nan, math.inf])
def test_a_scale_that_is_none_is_refused(scale):
    made = call("deepseek-v3.2:h2:q3:k50:top8:e4m3:randn:contiguous:-:s1")
    for name in PLAIN:
        for field in ("q_scale", "k_scale"):
            with pytest.raises(ValueError, match=f"{field}: expected a finite scale above 0"):
                find(name).load()(**made | {field: scale})


def test_a_nan_code_in_use_is_seen():
    made = call("deepseek-v3.2:h2:q3:k50:top8:e4m3:randn:contiguous:-:s1")
    made["kv"].view(torch.uint8)[made["indices"][1, 2], 5] = 0x7F
    for name in PLAIN:
        out, _ = find(name).load()(**made)
        assert bool(out[1].isnan().all())
