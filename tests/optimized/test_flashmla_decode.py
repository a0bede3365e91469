"""The adapter of FlashMLA's sparse decode, judged on the CPU with its operator in PyTorch behind it."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnoracle.optimized.peer_kernels import IMPLEMENTATIONS, flashmla_decode
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check

spec = importlib.util.spec_from_file_location("in_torch", Path(__file__).with_name("flashmla_decode_in_torch.py"))
in_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(in_torch)

ADAPTER = next(one for one in IMPLEMENTATIONS if one.name == "sparse_mqa/flashmla-decode")
CASE = "sparse_mqa:deepseek-v3.2:"
LENGTHS = CASE + "h12:q3,2x1:k150,64,65:top48:bf16:needle:offset:ds-mla+lengths+pages+pow2-scales:s301"
SINK = CASE + "h16:q3,2:k90,63:top33:bf16:small:contiguous:ds-mla+empty-rows+pages+sink+zero-tiles:s303"
ROWS = CASE + "h16:q4,2:k200,40:top64:bf16:randn:contiguous:ds-mla+wide-scales:s300"


def judged(id_, monkeypatch, read=torch.bfloat16, **declared):
    monkeypatch.setattr(flashmla_decode, "_forward", lambda: in_torch.forward(read))
    one = replace(ADAPTER, supports=lambda facts: None, contract=replace(ADAPTER.contract, **declared))
    return check(Case.parse(id_), one)


@pytest.mark.parametrize("id_", [LENGTHS, SINK, ROWS])
def test_pages_rows_lengths_sinks_and_empty_queries_pass(id_, monkeypatch):
    verdict = judged(id_, monkeypatch)
    assert verdict.status == "PASS", verdict.reason


def test_scales_are_read_as_the_contract_says(monkeypatch):
    assert judged(ROWS, monkeypatch, scale_read="fp32").status == "FAIL"
    assert judged(ROWS, monkeypatch, read=torch.float32).status == "FAIL"
    assert judged(ROWS, monkeypatch, read=torch.float32, scale_read="fp32").status == "PASS"
    # Powers of two are the same in both.
    assert judged(LENGTHS, monkeypatch, read=torch.float32).status == "PASS"


def test_what_lies_behind_a_length_does_not_count(monkeypatch):
    monkeypatch.setattr(flashmla_decode, "counted", lambda indices, lengths: indices)
    assert judged(LENGTHS, monkeypatch).status in ("FAIL", "ERROR")


def test_a_forgotten_padding_of_heads_is_seen(monkeypatch):
    monkeypatch.setattr(flashmla_decode, "HEADS", 1)
    assert judged(SINK, monkeypatch).status == "ERROR"


@pytest.mark.parametrize(
    ("kv", "cache_format", "words"),
    [
        (torch.zeros(4, 576, dtype=torch.uint8), "fp8_ds_mla", "expected fp8_ds_mla rows of 656 bytes"),
        (torch.zeros(4, 656, dtype=torch.uint8), "fp8_e4m3", "got fp8_e4m3 rows"),
        (torch.zeros(4, 1312, dtype=torch.uint8)[:, :656], "fp8_ds_mla", "without gaps, got strides"),
    ],
)
def test_other_rows_are_refused_before_anything_runs(kv, cache_format, words):
    q, indices = torch.zeros(1, 64, 576, dtype=torch.bfloat16), torch.zeros(1, 64, dtype=torch.int32)
    with pytest.raises(ValueError, match=words):
        flashmla_decode.plan(q, kv, indices, scale=1.0, value_dim=512, cache_format=cache_format)
