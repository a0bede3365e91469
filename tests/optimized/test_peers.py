"""Where peers are looked for, what is said when they are not there, and the padding of FlashMLA's adapter."""

import sys
from pathlib import Path

import pytest
import torch

from attnoracle.optimized.peer_kernels import IMPLEMENTATIONS, fa4, flashmla, locate, support, vllm_ops

FACTS = {
    "device": "cuda", "capability": (9, 0), "dtype": "bf16", "cache_format": "model", "d": 192, "v": 128, "c": 512,
    "r": 64, "e": 128,
    "heads": 64, "q_lens": (2, 2), "k_lens": (9, 5), "options": (), "layout": "contiguous", "interpreted": False,
}  # fmt: skip


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.setattr(locate, "folder_of", lambda package: None)
    for peer in locate.PEERS:
        monkeypatch.delenv(peer.variable, raising=False)


@pytest.mark.parametrize("peer", locate.PEERS, ids=lambda peer: peer.name)
def test_a_peer_that_is_nowhere_is_said_with_its_variable(peer, nowhere):
    assert peer.find() is None
    assert peer.variable in peer.missing() and peer.expects in peer.missing()


@pytest.mark.parametrize("one", IMPLEMENTATIONS, ids=lambda one: one.name)
def test_no_implementation_runs_without_its_peer(one, nowhere):
    dtype = "e4m3" if "indexer" in one.name else "bf16"
    assert "was not found" in one.supports(FACTS | {"dtype": dtype})
    if one.operator != "merge_lse":  # Triton kernels, which are interpreted as well
        assert "needs a CUDA device, got cpu" in one.supports(FACTS | {"device": "cpu"})


def test_a_library_is_found_by_its_folder_and_by_itself(nowhere, monkeypatch, tmp_path):
    library = tmp_path / "_flashmla_C.abi3.so"
    library.write_bytes(b"not a library")
    for value in (tmp_path, library):
        monkeypatch.setenv("ATTNORACLE_FLASHMLA", str(value))
        found = locate.FLASHMLA.find()
        assert (found.path, found.origin) == (library, "ATTNORACLE_FLASHMLA")
        assert found.version.startswith("sha256:")
    assert support.flashmla(FACTS) is None


def test_a_variable_that_names_nothing_is_an_error_that_says_what_it_should_name(nowhere, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNORACLE_DEEPGEMM", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ATTNORACLE_DEEPGEMM: expected its package deep_gemm"):
        locate.DEEPGEMM.find()
    assert "ATTNORACLE_DEEPGEMM" in support.deepgemm(FACTS | {"dtype": "e4m3"})


def test_a_copy_inside_vllm_is_found_without_importing_vllm(nowhere, monkeypatch, tmp_path):
    (tmp_path / "third_party" / "deep_gemm").mkdir(parents=True)
    (tmp_path / "third_party" / "deep_gemm" / "__init__.py").write_text("")
    (tmp_path / "_flashmla_C.abi3.so").write_bytes(b"")
    monkeypatch.setattr(locate, "folder_of", lambda package: tmp_path if package == "vllm" else None)
    assert locate.DEEPGEMM.find().origin == locate.FLASHMLA.find().origin == "inside vLLM"
    assert locate.DEEPGEMM.find().path == tmp_path / "third_party" / "deep_gemm"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("flashmla", {"heads": 192}, "at most 128 heads"),
        ("flashmla", {"capability": (10, 0)}, "compute capability 9.0"),
        ("flashmla", {"c": 256}, "expected a cache row of 512"),
        ("deepgemm", {"dtype": "e4m3", "options": ("compressed",)}, "deepgemm-unclean takes them"),
        ("deepgemm_unclean", {"dtype": "e4m3", "heads": 8}, "expected 32 or 64 heads"),
        ("deepgemm_paged", {"dtype": "e4m3", "q_lens": (4, 4)}, "1 or 2 queries a request, got 4"),
        ("fa4", {"d": 512}, "at most 256"),
        ("flashmla_decode", {"cache_format": "model"}, "for caches of fp8_ds_mla, got model"),
        ("flashmla_decode", {"cache_format": "fp8_ds_mla", "r": 0}, "expected a cache row of 512+64, got 512+0"),
        ("flashmla_decode", {"cache_format": "fp8_ds_mla", "layout": "strided"}, "follow each other without gaps"),
        ("flashmla_decode", {"cache_format": "fp8_ds_mla", "options": ("invalid",)}, "knows -1 alone as invalid"),
        ("vllm", {"layout": "strided"}, "as long as its heads"),
        ("vllm_masked", {"interpreted": True}, "minutes where Triton is interpreted"),
    ],
)
def test_reasons_are_exact(name, change, words, monkeypatch):
    monkeypatch.setattr(locate.Peer, "find", lambda self: object())
    monkeypatch.setattr(support.triton_runtime, "availability", lambda: None)
    served = FACTS | ({"cache_format": "fp8_ds_mla"} if name == "flashmla_decode" else {})
    assert getattr(support, name)(served) is None or name.startswith("deepgemm")
    assert words in getattr(support, name)(FACTS | change)


def vllm_in(folder, source):
    path = folder / "vllm" / locate.VLLM_HELPERS
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return path


HELPERS = """
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton

LARGEST = torch.finfo(current_platform.fp8_dtype()).max


@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


def merge_attn_states(out, out_a, lse_a, out_b, lse_b, lse):
    assert lse_a.is_contiguous() and lse.shape == lse_a.shape
    out.copy_(out_a + out_b)
    lse.copy_(torch.logaddexp(lse_a, lse_b))


def mask_empty_context(lse, output, query_start_loc, context_start_loc):
    assert lse.shape == (1, len(output)) and len(query_start_loc) == len(output) + 1
    empty = context_start_loc.diff() == 0
    lse[:, empty] = float("-inf")
    output.masked_fill_(empty[:, None, None], 0.0)
"""


def test_helpers_of_vllm_are_loaded_from_their_file_alone(monkeypatch, tmp_path):
    path = vllm_in(tmp_path, HELPERS)
    vllm_ops.helpers.cache_clear()
    for value in (tmp_path, tmp_path / "vllm"):
        monkeypatch.setenv("ATTNORACLE_VLLM", str(value))
        found = locate.VLLM.find()
        assert (found.path, found.origin) == (tmp_path / "vllm", "ATTNORACLE_VLLM")
        assert found.version.startswith("sha256:")
    before = {name for name in sys.modules if name.partition(".")[0] == "vllm"}
    module = vllm_ops.helpers()
    vllm_ops.helpers.cache_clear()
    assert module.LARGEST == 448.0 and Path(module.__file__) == path
    assert {name for name in sys.modules if name.partition(".")[0] == "vllm"} == before


def test_empty_sides_are_cleared_a_head_at_a_time_and_nothing_else(monkeypatch, tmp_path):
    vllm_in(tmp_path, HELPERS)
    monkeypatch.setenv("ATTNORACLE_VLLM", str(tmp_path))
    vllm_ops.helpers.cache_clear()
    out, lse = torch.randn(3, 2, 4), torch.randn(3, 2)
    lse[1, 0], out[1, 0] = -torch.inf, torch.nan
    given = out.clone(), lse.clone()
    cleared, logs = vllm_ops.cleared(out, lse)
    assert torch.equal(cleared, out.nan_to_num(0.0)) and torch.equal(logs, lse)
    assert torch.equal(lse, given[1]) and bool(out[1, 0].isnan().all()), "the caller's tensors stay as they are"
    merged, total = vllm_ops.merge_masked(out, lse, torch.zeros_like(out), torch.full_like(lse, -torch.inf))
    vllm_ops.helpers.cache_clear()
    assert torch.equal(merged, cleared) and total.shape == (3, 2)


def test_padding_keeps_what_was_there_and_fills_the_rest():
    x = torch.arange(6).view(2, 3)
    wide = flashmla.padded(x, 1, 4, fill=-1)
    assert wide.tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert flashmla.padded(x, 1, 3) is x
    assert flashmla.padded(x.float(), 0, 64).shape == (64, 3)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, "
         "causal, *, return_lse=False): ...", None),
        ("def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, "
         "causal, return_softmax_lse=False): ...", "expected a parameter return_lse"),
        ("def flash_attn_varlen_func(q, kv, cu_seqlens_q): ...", "expected its parameters to begin with"),
        ("def flash_attn_func(q, k, v): ...", "expected a function flash_attn_varlen_func, got flash_attn_func"),
    ],
)  # fmt: skip
def test_what_a_release_of_fa4_lacks_is_said_without_importing_it(source, words, tmp_path):
    (tmp_path / "interface.py").write_text(source)
    found = fa4.missing(tmp_path)
    assert words in found[0] if words else found == []
