"""What the Triton implementations say about themselves: contracts, what they cannot run and why, and imports."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest
import torch

from attnoracle.optimized import triton_runtime
from attnoracle.optimized.triton_kernels import IMPLEMENTATIONS, launch

BY_OPERATOR = {one.operator: one for one in IMPLEMENTATIONS if one.backend == "triton"}
HOPPER = {
    "device": "cuda", "capability": (9, 0), "interpreted": False, "dtype": "bf16", "cache_format": "model",
    "heads": 128, "d": 192, "v": 128,
    "c": 512, "r": 64, "k": 2048, "i": 64, "e": 128, "q_lens": (1,), "k_lens": (1,), "causal": True,
    "layout": "contiguous", "options": (),
}  # fmt: skip
INTERPRETED = HOPPER | {"device": "cpu", "capability": None, "interpreted": True}


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch):
    """Facts of other machines are judged as if on them."""
    monkeypatch.setattr(triton_runtime, "availability", lambda: None)


@pytest.mark.parametrize("operator", BY_OPERATOR)
@pytest.mark.parametrize("facts", [HOPPER, INTERPRETED], ids=["hopper", "interpreted"])
def test_supported(operator, facts):
    dtype = "e4m3" if operator == "paged_indexer_scores" else "bf16"
    assert BY_OPERATOR[operator].supports(facts | {"dtype": dtype}) is None


@pytest.mark.parametrize(
    ("operator", "change", "reason"),
    [
        ("dense_mha", {"dtype": "e4m3"}, "expected one of the dtypes bf16, fp16, fp32, got e4m3"),
        ("merge_lse", {"dtype": "e4m3"}, "expected one of the dtypes bf16, fp16, fp32, got e4m3"),
        ("sparse_mqa", {"capability": (7, 5)}, "these kernels need compute capability 8.0, got (7, 5)"),
        ("topk_select", {"device": "cpu"}, "compiled Triton kernels need a CUDA device, got cpu"),
        ("indexer_scores", {"dtype": "e4m3", "capability": (8, 0)}, "e4m3 needs compute capability 8.9, got (8, 0)"),
        ("dense_mha", {"d": 8192}, "head dims 8192/128: expected tiles that fit 232448 bytes"),
        ("sparse_mqa", {"c": 4096, "dtype": "fp32"}, "latent and rope dims 4096+64: expected tiles that fit"),
    ],
)
def test_reasons(operator, change, reason):
    assert BY_OPERATOR[operator].supports(HOPPER | change).startswith(reason)


@pytest.mark.parametrize("operator", BY_OPERATOR)
def test_unavailable_triton_is_the_reason(operator, monkeypatch):
    monkeypatch.setattr(triton_runtime, "availability", lambda: "triton is not installed")
    assert BY_OPERATOR[operator].supports(HOPPER) == "triton is not installed"


@pytest.mark.parametrize("operator", BY_OPERATOR)
def test_signature_is_that_of_the_reference(operator):
    reference = getattr(import_module(f"attnoracle.reference.{operator}"), operator)
    ours, theirs = (inspect.signature(f).parameters.values() for f in (BY_OPERATOR[operator].load(), reference))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


def test_listing_imports_no_triton():
    code = "import sys; import attnoracle.optimized.triton_kernels; sys.exit('triton' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # installed or not
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def test_launches_prefer_the_fastest_that_fits():
    hopper, ada = launch.room_of((9, 0)), launch.room_of((8, 9))
    assert launch.dense(192, 128, 2, hopper).rows == 128
    assert launch.dense(256, 256, 2, hopper).columns == 64
    assert launch.dense(256, 256, 2, ada).rows < 128
    assert [launch.sparse(h, 512, 64, 2, hopper).rows for h in (1, 16, 17, 64, 128)] == [16, 16, 32, 64, 64]
    assert launch.room_of((99, 0)) == min(launch.ROOM.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
def test_graph_replays_on_changed_buffers(draw, device):
    """The whole call is captured, allocation included: no launch depends on what a buffer holds."""
    function = BY_OPERATOR["sparse_mqa"].load()
    q, kv = draw(8, 16, 576, seed=1, dtype=torch.bfloat16), draw(300, 576, seed=2, dtype=torch.bfloat16)
    indices = torch.randint(-9, 300, (8, 128), dtype=torch.int32, device=device)
    function(q, kv, indices, scale=0.1, value_dim=512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = function(q, kv, indices, scale=0.1, value_dim=512)
    indices.copy_(indices.flip(0))
    kv.mul_(2)
    graph.replay()
    expected = function(q, kv, indices, scale=0.1, value_dim=512)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
