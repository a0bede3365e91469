"""Every operator, kind, option and layout can be built; what cannot be is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attnoracle.oracle.case import DTYPES as CASE_DTYPES
from attnoracle.oracle.case import LAYOUTS, Case
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.geometry import Geometry
from attnoracle.oracle.inputs import DTYPES, KINDS, OPTIONS, Inputs, kinds_of, make

Build = Callable[..., Inputs]
SHAPES = {
    "dense_mha": {"q": (9, 3, 24), "k": (150, 3, 24), "v": (150, 3, 16), "cu_q": (5,), "cu_k": (5,)},
    "masked_mha": {
        "q": (9, 3, 24),
        "k": (150, 3, 24),
        "v": (150, 3, 16),
        "cu_q": (5,),
        "cu_k": (5,),
        "mask": (4, 128, 8),
    },
    "sparse_mqa": {"q": (9, 3, 24), "kv": (166, 24), "indices": (9, 24), "lengths": (9,), "sink": (3,)},
    "indexer_scores": {
        "q": (9, 3, 16),
        "k": (150, 16),
        "k_scale": (150,),
        "weights": (9, 3),
        "ks": (9,),
        "ke": (9,),
    },
    "paged_indexer_scores": {
        "q": (4, 2, 3, 16),
        "k_cache": (8, 64 * 20),
        "weights": (8, 3),
        "context_lens": (4,),
        "block_table": (4, 6),
    },
    "topk_select": {"scores": (9, 150), "ks": (9,), "ke": (9,)},
    "merge_lse": {"out_a": (9, 3, 16), "lse_a": (9, 3), "out_b": (9, 3, 16), "lse_b": (9, 3)},
    "quantize": {"x": (150, 16)},
    "write_cache": {"latent": (9, 16), "rope": (9, 8), "slots": (9,), "cache": (8, 64, 24)},
    "write_index": {"k": (9, 16), "slots": (9,), "pages": (8, 64 * 20)},
    "gather": {"cache": (8, 64, 24), "block_table": (4, 3), "starts": (4,), "cu_k": (5,)},
    "gather_index": {"pages": (8, 64 * 20), "block_table": (4, 3), "starts": (4,), "cu_k": (5,)},
    "convert_indices": {"indices": (9, 24), "requests": (9,), "block_table": (4, 3)},
    "build_mask": {"indices": (9, 24), "cu_q": (5,), "starts": (4,), "lengths": (4,)},
}
KEYWORDS = {
    "dense_mha": {"scale": 0.25, "causal": True},
    "masked_mha": {"scale": 0.25, "causal": True},
    "sparse_mqa": {"scale": 0.25, "value_dim": 16},
    "indexer_scores": {},
    "paged_indexer_scores": {"max_model_len": 140},
    "topk_select": {"k": 24},
    "merge_lse": {},
    "quantize": {"block": 16, "scale_format": "pow2", "least_amax": 1e-4, "least_scale": 0.0},
    "write_cache": {
        "cache_format": "model",
        "scale_format": "pow2",
        "least_amax": 0.0,
        "least_scale": 1e-4,
        "k_scale": 1.3,
    },
    "write_index": {"scale_format": "pow2", "least_amax": 1e-4},
    "gather": {"tokens": 150, "latent": 16, "rope": 8, "cache_format": "model", "k_scale": 1.3},
    "gather_index": {"tokens": 150, "e": 16},
    "convert_indices": {"block_size": 64, "blocks": 8, "page_rows": 64, "compact": False},
    "build_mask": {"rows": 128, "words": 8},
}
FLOATS = {"q", "k", "v", "kv", "out_a", "out_b", "x", "latent", "rope", "cache"}
OTHERS = {"pages": torch.uint8, "k_cache": torch.uint8, "slots": torch.int64}
SINGLES = {"k_scale", "weights", "scores", "lse_a", "lse_b", "sink"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", KINDS)
def test_shapes_dtypes_and_keywords(build: Build, operator: str, layout: str) -> None:
    inputs = build(operator, layout=layout, options=("lengths", "sink") if operator == "sparse_mqa" else ())
    assert {name: tuple(tensor.shape) for name, tensor in inputs.tensors.items()} == SHAPES[operator]
    for name, tensor in inputs.tensors.items():
        floats = DTYPES["e4m3" if operator == "paged_indexer_scores" else "bf16"]
        expected = floats if name in FLOATS else torch.float32 if name in SINGLES else torch.int32
        assert tensor.dtype is OTHERS.get(name, expected) and tensor.stride(-1) == 1
        assert tensor.is_contiguous() == (layout != "strided" or tensor.dim() < 2)
    assert inputs.options == KEYWORDS[operator]
    assert inputs.kwargs() == {**inputs.tensors, **inputs.options}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("operator", "kind"), [(op, kind) for op in KINDS for kind in kinds_of(op)])
def test_every_kind_builds_whole_and_alike_in_every_layout(build: Build, operator: str, kind: str, layout: str) -> None:
    inputs, dense = build(operator, kind=kind, layout=layout), build(operator, kind=kind)
    for name, tensor in inputs.tensors.items():
        assert torch.equal(_bytes(tensor), _bytes(dense.tensors[name]))
        if tensor.dtype is torch.uint8:
            continue  # any byte may stand in a page, that of the guards too
        guard = inputs.arena.tensors[name].buffer[: tensor.element_size()]
        assert not bool((_bytes(tensor).view(-1, tensor.element_size()) == guard).all(1).any())
    assert inputs.damage() == []


@pytest.mark.parametrize(("operator", "option"), [(op, option) for op in OPTIONS for option in OPTIONS[op]])
def test_every_option_builds(build: Build, operator: str, option: str) -> None:
    beside = ("ds-mla",) if option in ("pages", "pow2-scales", "wide-scales", "zero-tiles") else ()
    inputs = build(operator, options=tuple(sorted((option, *beside))), seed=1)
    assert inputs.damage() == [] and inputs.options.get("causal", True) == (option != "noncausal")


@pytest.mark.parametrize("operator", KINDS)
@pytest.mark.parametrize("dtype", CASE_DTYPES)
def test_every_dtype_builds_or_is_refused(build: Build, operator: str, dtype: str) -> None:
    if operator == "paged_indexer_scores" and dtype != "e4m3":
        with pytest.raises(BadInput, match=f"expected dtype e4m3, got {dtype}"):
            build(operator, dtype=dtype)
        return
    if dtype == "e4m3" and operator not in ("indexer_scores", "paged_indexer_scores", "sparse_mqa"):
        with pytest.raises(BadInput, match="takes bf16, fp16 or fp32, got e4m3"):
            build(operator, dtype=dtype)
        return
    tensors = build(operator, dtype=dtype).tensors
    assert {tensors[name].dtype for name in FLOATS & set(tensors)} <= {DTYPES[dtype]}


@pytest.mark.parametrize("operator", KINDS)
@pytest.mark.parametrize("lens", [((0,), (0,)), ((0,), (5,)), ((2,), (0,)), ((4,), (2,)), ((0, 0), (0, 0))], ids=str)
def test_degenerate_lengths_build(build: Build, operator: str, lens: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    inputs = build(operator, q_lens=lens[0], k_lens=lens[1])
    assert inputs.damage() == [] and len(inputs.fingerprint()) == len(inputs.tensors)


def test_fingerprint_and_damage_name_the_tensor(build: Build) -> None:
    inputs = build("dense_mha", layout="strided")
    before = inputs.fingerprint()
    inputs.tensors["v"][4, 1, 2] += 1
    after = inputs.fingerprint()
    assert [name for name in before if before[name] != after[name]] == ["v"]
    guarded = inputs.arena.tensors["k"]
    guarded.buffer[guarded.begin - 1] = 0
    (message,) = inputs.damage()
    assert message.startswith("k: 1 guard byte(s) before the tensor overwritten")


GOOD = Case(operator="sparse_mqa", geometry="tiny", heads=3, q_lens=(2,), k_lens=(9,), topk=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operator": "paged_mha"}, "operator 'paged_mha': expected one of dense_mha"),
        ({"kind": "ties"}, "kind 'ties' does not fit sparse_mqa; expected one of randn, small"),
        ({"options": ("leadnig",)}, "option 'leadnig' does not fit sparse_mqa; expected one of: leading"),
        ({"options": ("noncausal",)}, "option 'noncausal' does not fit sparse_mqa"),
        ({"options": ("leading", "prefix")}, "expected at most one pattern, got 2"),
        ({"options": ("poison-huge", "poison-nan")}, "expected at most one of poison-nan"),
        ({"options": ("highrows", "hugerows")}, "expected at most one of highrows"),
        ({"options": ("ids-1.2",)}, "expected 1 numbers joined by '.'"),
        ({"options": ("ids-a",)}, "expected 1 numbers joined by '.'"),
        ({"q_lens": (1, 1), "k_lens": (1, 1), "options": ("ids-1.1",)}, "expected distinct numbers"),
        ({"topk": 0}, "expected a top-k of at least 1, got 0"),
        ({"operator": "topk_select", "topk": 0}, "expected a top-k of at least 1, got 0"),
        ({"operator": "masked_mha", "topk": 0}, "expected a top-k of at least 1, got 0"),
        ({"geometry": "glm"}, "case geometry 'glm': got the dimensions of 'tiny'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "+".join(f"{k}={v}" for k, v in value.items()),
)
def test_cases_that_cannot_be_are_refused(geometry: Geometry, fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        make(replace(GOOD, **fields), geometry)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_an_indexer_needs_its_dimensions(geometry: Geometry) -> None:
    plain = replace(geometry, index_head_dim=None, index_n_heads=None)
    with pytest.raises(BadInput, match="geometry 'tiny' has no indexer"):
        make(replace(GOOD, operator="indexer_scores"), plain)
    assert make(GOOD, plain).case == GOOD


@pytest.mark.parametrize("pattern", ["dense-mask", "blocks"])
def test_some_masks_need_no_topk(build: Build, pattern: str) -> None:
    assert build("masked_mha", topk=0, options=(pattern,)).damage() == []


def test_every_kind_and_option_says_what_it_is_for() -> None:
    texts = [text for table in (*KINDS.values(), *OPTIONS.values()) for text in table.values()]
    assert min(map(len, texts)) > 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("operator", "kind"), [(op, kind) for op in KINDS for kind in kinds_of(op)])
def test_a_gpu_gets_the_same_bytes(geometry: Geometry, operator: str, kind: str) -> None:
    case = replace(GOOD, operator=operator, kind=kind, q_lens=(3, 0, 40), k_lens=(140, 7, 200))
    cpu, gpu = make(case, geometry), make(case, geometry, "cuda")
    for name, tensor in cpu.tensors.items():
        assert torch.equal(_bytes(tensor), _bytes(gpu.tensors[name]).cpu())
    assert gpu.fingerprint() == cpu.fingerprint() and gpu.damage() == []


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).flatten()
