"""FlashInfer without a GPU and without FlashInfer: reasons, masks and selections, what a release must have."""

import sys
from importlib import import_module
from types import ModuleType

import pytest
import torch

from attnoracle.optimized.flashinfer_kernels import IMPLEMENTATIONS, support
from attnoracle.optimized.flashinfer_kernels.arrange import flattened, page_table
from attnoracle.optimized.flashinfer_kernels.interface import CALLS, missing
from attnoracle.optimized.torch_kernels.requests import requests, unpack_mask

FACTS = {
    "device": "cuda", "capability": (9, 0), "dtype": "bf16", "cache_format": "model", "d": 192, "v": 128, "c": 512,
    "r": 64, "k": 64,
    "q_lens": (3, 1), "k_lens": (9, 5), "options": (), "layout": "contiguous", "heads": 16,
}  # fmt: skip


@pytest.fixture
def there(monkeypatch):
    monkeypatch.setattr(support, "package", lambda: None)
    monkeypatch.setattr(support, "compiler", lambda: None)


@pytest.mark.parametrize("one", IMPLEMENTATIONS, ids=lambda one: one.name)
def test_each_runs_on_hopper_and_needs_a_gpu(one, there):
    assert one.supports(FACTS) is None
    assert one.supports(FACTS | {"device": "cpu", "capability": None}) == "flashinfer needs a CUDA device, got cpu"
    assert "compute capability" in one.supports(FACTS | {"capability": (7, 5)})


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("dense_mha/flashinfer-fa3", {"capability": (10, 0)}, "fa3 is built for compute capability 9.0 alone"),
        (
            "dense_mha/flashinfer-fa2",
            {"d": 128, "v": 128},
            "expected QK/V head dims of 192/128 or 256/256",
        ),
        ("dense_mha/flashinfer-fa2", {"dtype": "fp32"}, "expected one of the dtypes bf16, got fp32"),
        ("masked_mha/flashinfer-fa2", {"k_lens": (0, 0)}, "at least one query and one key"),
        ("sparse_mqa/flashinfer-fa3", {"options": ("sink",)}, "takes no attention sink"),
        ("sparse_mqa/flashinfer-fa2", {"c": 256}, "expected a latent rank of 512 and 0 or 64 rope dims, got 256+64"),
        ("merge_lse/flashinfer-state", {"layout": "strided"}, "needs contiguous tensors"),
        ("merge_lse/flashinfer-states", {"v": 192}, "expected a head dim of 64, 128, 256 or 512, got 192"),
        ("topk_select/flashinfer", {"k": 4096}, "expected a top-k of at most 2048, got 4096"),
    ],
)
def test_reasons_are_exact(name, change, words, there):
    one = next(one for one in IMPLEMENTATIONS if one.name == name)
    assert words in one.supports(FACTS | change)


@pytest.mark.parametrize(
    ("version", "words"), [(None, "not importable"), ("0.6.17", "needs flashinfer-python 0.6.18 or newer, got 0.6.17")]
)
def test_a_release_that_is_missing_or_too_old_is_said(monkeypatch, version, words):
    monkeypatch.setattr(support, "installed", lambda: version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert words in support.package()


def test_without_a_compiler_the_reason_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(support.Path, "is_file", lambda self: False)
    assert "set CUDA_HOME" in support.compiler()


def test_a_page_table_holds_the_slots_that_count():
    indices = torch.tensor([[3, -1, 7, 2], [9, 0, 0, 5], [-1, -5, 99, 8]], dtype=torch.int32)
    slots, counts = page_table(indices, 8, torch.tensor([4, 3, 4]))
    assert slots.tolist() == [3, 7, 2, 0, 0]
    assert counts.tolist() == [3, 2, 0]
    assert slots.dtype == counts.dtype == torch.int32


@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_is_laid_request_after_request(causal):
    words = torch.randint(-(2**31), 2**31 - 1, (3, 5, 3), generator=torch.Generator().manual_seed(0)).int()
    cu_q, cu_k = torch.tensor([0, 5, 5, 8]).int(), torch.tensor([0, 70, 71, 73]).int()
    expected = torch.cat([unpack_mask(words, one, causal).flatten() for one in requests(cu_q, cu_k)])
    assert torch.equal(flattened(words, cu_q, cu_k, causal), expected)


def _release(without=()):
    """A module with every name and parameter that is called, but for ``without``."""
    package = ModuleType("flashinfer")
    package.mla = ModuleType("mla")

    def function(name):
        leading, named = CALLS[name]
        words = [word for word in (*leading, *named) if f"{name}:{word}" not in without]
        return eval(f"lambda {', '.join(words)}: None")

    for name in CALLS:
        owner, _, last = name.rpartition(".")
        target = package
        for part in filter(None, owner.split(".")):
            target = getattr(target, part)
        if name in without:
            continue
        if last.endswith("Wrapper"):
            leading, named = CALLS[name]
            made = type(last, (), {"__init__": eval(f"lambda self, {', '.join((*leading, *named))}: None")})
            setattr(target, last, made)
        else:
            setattr(target, last, function(name))
    return package


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ((), []),
        (("top_k",), ["flashinfer.top_k is not there"]),
        (("BatchPrefillWithRaggedKVCacheWrapper.plan:custom_mask",), ["expected a parameter custom_mask"]),
        (("merge_state:s_a",), ["flashinfer.merge_state: expected its parameters to begin with"]),
    ],
    ids=["all-there", "function", "parameter", "order"],
)
def test_what_a_release_lacks_is_said(monkeypatch, without, words):
    monkeypatch.setitem(sys.modules, "flashinfer", _release(without))
    found = missing()
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


@pytest.fixture
def rows_only(monkeypatch):
    """``top_k`` over rows that prefers the last columns among equals, as it may."""
    package = ModuleType("flashinfer")

    def top_k(values, k):
        order = values.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :k]
        return values.gather(1, values.shape[1] - 1 - order), values.shape[1] - 1 - order

    package.top_k = top_k
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.delitem(sys.modules, "attnoracle.optimized.flashinfer_kernels.select", raising=False)
    yield import_module("attnoracle.optimized.flashinfer_kernels.select").top_k
    sys.modules.pop("attnoracle.optimized.flashinfer_kernels.select", None)


def test_scores_of_minus_infinity_inside_a_window_come_before_what_is_outside(rows_only):
    low = float("-inf")
    scores = torch.tensor([[9.0, low, 3.0, low, float("nan"), 9.0], [1.0, 2.0, low, low, low, low]])
    ks, ke = torch.tensor([1, 0]).int(), torch.tensor([4, 2]).int()
    (chosen,) = rows_only(scores, ks, ke, k=2)
    assert chosen[0].tolist() in ([1, 2], [1, 0]), "3.0 first, then one of the two that are -inf"
    assert chosen[1].tolist() == [0, 1]
