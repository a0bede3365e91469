"""Where peers are looked for, what is said when they are not there, and the padding of FlashMLA's adapter."""

import pytest
import torch

from attnoracle.optimized.peer_kernels import IMPLEMENTATIONS, flashmla, locate, support

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
        ("vllm", {"interpreted": True}, "interprets Triton"),
    ],
)
def test_reasons_are_exact(name, change, words, monkeypatch):
    monkeypatch.setattr(locate.Peer, "find", lambda self: object())
    assert getattr(support, name)(FACTS) is None or name.startswith("deepgemm")
    assert words in getattr(support, name)(FACTS | change)


def test_padding_keeps_what_was_there_and_fills_the_rest():
    x = torch.arange(6).view(2, 3)
    wide = flashmla.padded(x, 1, 4, fill=-1)
    assert wide.tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert flashmla.padded(x, 1, 3) is x
    assert flashmla.padded(x.float(), 0, 64).shape == (64, 3)
