"""What the values are: pinned, kept when a case shrinks, and able to tell a wrong answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnoracle.oracle.inputs import KINDS, OPTIONS, Inputs, kinds_of
from attnoracle.oracle.inputs.kinds import ATTENTION
from attnoracle.reference.paged_indexer_scores import keys_of

Build = Callable[..., Inputs]
PAIRS = [(operator, kind) for operator in KINDS for kind in kinds_of(operator)]
GOLDEN = {
    ("dense_mha", "randn"): "db3c956d9c153b1c",
    ("dense_mha", "small"): "4579275a5f781728",
    ("dense_mha", "wide"): "8508133ccca78bb1",
    ("dense_mha", "offset"): "65540056e008ca84",
    ("dense_mha", "needle"): "dc628093c8f60930",
    ("dense_mha", "tagged"): "e240dd829c2327c6",
    ("dense_mha", "grid"): "b698025a1ec50de4",
    ("dense_mha", "constant"): "c0a2b104fa02fd0a",
    ("dense_mha", "negative"): "63d0f90a94cad670",
    ("dense_mha", "sinktoken"): "cd763ee58ff262e4",
    ("dense_mha", "mixed"): "0b9341ec45cd2de2",
    ("dense_mha", "positive"): "84d716212d672150",
    ("dense_mha", "climbing"): "9204bbc5ba57f1b8",
    ("dense_mha", "blank"): "9e38e9f2eb0ccfab",
    ("dense_mha", "powers"): "33e90ab3875b3e59",
    ("masked_mha", "randn"): "3ffb075101f2042f",
    ("masked_mha", "small"): "6f1fda19811dad13",
    ("masked_mha", "wide"): "d551252dd6e9a310",
    ("masked_mha", "offset"): "9001f5f1f52dc185",
    ("masked_mha", "needle"): "5ccd0c8730b6b646",
    ("masked_mha", "tagged"): "1dfe6e3f56cf4fc2",
    ("masked_mha", "grid"): "9ae3556772dded45",
    ("masked_mha", "constant"): "001fb7e895484ee4",
    ("masked_mha", "negative"): "5f98706381b12141",
    ("masked_mha", "sinktoken"): "26a4575c14b6100e",
    ("masked_mha", "mixed"): "c2c06306d903d12f",
    ("masked_mha", "positive"): "3d4eaa424b5dfcac",
    ("masked_mha", "climbing"): "1a23713d944e94bd",
    ("masked_mha", "blank"): "f70939d4f51132b6",
    ("masked_mha", "powers"): "e84789267235acaa",
    ("sparse_mqa", "randn"): "e49dd49eff2eab71",
    ("sparse_mqa", "small"): "6b7503dafb334718",
    ("sparse_mqa", "wide"): "f127830b99f80c06",
    ("sparse_mqa", "offset"): "82d213941cd7ae59",
    ("sparse_mqa", "needle"): "4caf04167ec176f1",
    ("sparse_mqa", "tagged"): "a80e1ad11b09c925",
    ("sparse_mqa", "grid"): "310d472b063ac307",
    ("sparse_mqa", "constant"): "d0f35c1fae69c7a9",
    ("sparse_mqa", "negative"): "7de4e015df0c3923",
    ("sparse_mqa", "sinktoken"): "8b96ac6b09697506",
    ("sparse_mqa", "mixed"): "6674c402f01fddd1",
    ("sparse_mqa", "positive"): "e724bb4b24b2b7ec",
    ("sparse_mqa", "climbing"): "c3f2d84344065f70",
    ("sparse_mqa", "blank"): "6902ea6f2f6a2dd6",
    ("sparse_mqa", "powers"): "fcbd4e5eea059d7b",
    ("indexer_scores", "randn"): "433f0079a7bdb899",
    ("indexer_scores", "negative"): "773c8155da73d9ce",
    ("indexer_scores", "clustered"): "bc94cf71c0634c9d",
    ("indexer_scores", "grid"): "900d1807e47502d9",
    ("indexer_scores", "wide"): "e7e035316e115d25",
    ("indexer_scores", "pow2"): "a6d42bc1b7113d6f",
    ("indexer_scores", "saturated"): "a328b8046cd32378",
    ("indexer_scores", "zerokeys"): "26f6af4dd60fbc25",
    ("indexer_scores", "farscales"): "403734d337a9648c",
    ("indexer_scores", "powers"): "50466a714f59cae3",
    ("paged_indexer_scores", "randn"): "feedbc796cf356ce",
    ("paged_indexer_scores", "negative"): "503f3bb286c8a19c",
    ("paged_indexer_scores", "clustered"): "93fc2becf327cd94",
    ("paged_indexer_scores", "grid"): "6e009daed3de6ceb",
    ("paged_indexer_scores", "wide"): "1092ca3e70c4e76d",
    ("paged_indexer_scores", "pow2"): "8e095ab01782772a",
    ("paged_indexer_scores", "saturated"): "abb2acdeb8f969ed",
    ("paged_indexer_scores", "zerokeys"): "94bdc06f1b2ef8b6",
    ("paged_indexer_scores", "farscales"): "92e60d1aaf227ff2",
    ("paged_indexer_scores", "powers"): "16b069705e7df389",
    ("topk_select", "randn"): "edd73b8ea2f26a0d",
    ("topk_select", "ties"): "b34f6acbfaf1b99d",
    ("topk_select", "clustered"): "980b2eaadaf4a19d",
    ("topk_select", "ramp"): "810e2323935f20a4",
    ("topk_select", "constant"): "aaa49f04c43e23e4",
    ("topk_select", "zeros"): "7db30c666b111da8",
    ("topk_select", "infs"): "88916c5986271127",
    ("topk_select", "negative"): "f8a2abda4559a7f5",
    ("topk_select", "nan"): "98f5b764ab3a1afe",
    ("topk_select", "signed"): "3aca60e4fe649772",
    ("topk_select", "crowded"): "97e21ce58c5cd7f4",
    ("topk_select", "spread"): "34a92e7a99c84ddc",
    ("topk_select", "specials"): "48ca7eac224be4fd",
    ("merge_lse", "randn"): "34bed2b02e2efce8",
    ("merge_lse", "wide"): "a9f269505c93d66a",
    ("merge_lse", "empties"): "18fe8c800e0b78aa",
    ("merge_lse", "ties"): "7541ffde12cdc6d3",
    ("merge_lse", "leftovers"): "79145c5ae6af2dec",
    ("merge_lse", "powers"): "681eebc1108e003a",
    ("quantize", "randn"): "d9df0f1a00e62ecc",
    ("quantize", "edges"): "a0ee678356b308b4",
    ("quantize", "zeros"): "7e2d35329ec2fbd9",
    ("quantize", "tiny"): "7c228de5553b6ff2",
    ("quantize", "nonfinite"): "4f94a024caf41de8",
    ("quantize", "spread"): "44482140a39c00f0",
    ("quantize", "large"): "89ad7209289bfc5d",
    ("write_cache", "randn"): "b48f786e75b6974e",
    ("write_cache", "edges"): "430c623b9b7fd4c0",
    ("write_cache", "tiny"): "7f43fa9aacf16ce6",
    ("write_cache", "zeros"): "185075382978cde3",
    ("write_cache", "nonfinite"): "ddc442e934f469fd",
    ("write_cache", "spread"): "4dfd427ce5b6994d",
    ("write_cache", "large"): "ba9a7f1389f25f34",
    ("write_index", "randn"): "1a502f9c7db65bf0",
    ("write_index", "edges"): "c272b5a28d233215",
    ("write_index", "zeros"): "3da2c54346e24c66",
    ("write_index", "tiny"): "f53c55ecfdef3948",
    ("write_index", "nonfinite"): "4f73538e7deedfb1",
    ("write_index", "spread"): "0ec4c17255e4647e",
    ("write_index", "large"): "e51f0cc3162907c8",
    ("gather", "randn"): "8fd91bc8e10860bb",
    ("gather", "pow2"): "8fd91bc8e10860bb",
    ("gather", "codes"): "8fd91bc8e10860bb",
    ("gather", "wide"): "8fd91bc8e10860bb",
    ("gather_index", "randn"): "2fbacab960865fec",
    ("gather_index", "pow2"): "f470d496bcf10722",
    ("gather_index", "codes"): "7a1702022163efb6",
    ("gather_index", "wide"): "f5295f04a14b8103",
    ("convert_indices", "randn"): "fda9efd2ea08b3cf",
    ("convert_indices", "far"): "93cf7ba39286e75d",
    ("build_mask", "randn"): "8f3cb87f846df30a",
}


@pytest.mark.parametrize(("operator", "kind"), PAIRS)
def test_values_are_pinned(build: Build, operator: str, kind: str) -> None:
    """A change here changes every stored case: bundles, incidents and measured rates refer to these values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(build(operator, kind=kind, seed=5).tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[operator, kind]


@pytest.mark.parametrize(("operator", "kind"), PAIRS)
def test_the_seed_changes_the_values(build: Build, operator: str, kind: str) -> None:
    a, b = build(operator, kind=kind, seed=0).tensors, build(operator, kind=kind, seed=1).tensors
    same = {name for name in a if torch.equal(a[name].float().nan_to_num(), b[name].float().nan_to_num())}
    expected = {"ks", "ke", "cu_q", "cu_k", "context_lens", "starts", "lengths", "requests"} & set(a)
    expected -= {"lengths"} if operator == "sparse_mqa" else set()
    same -= {"pages"} if operator == "write_index" else set()  # what they hold before may be one byte all over
    if kind == "tagged" and operator != "sparse_mqa":
        assert expected <= same <= expected | {"v"}
    else:
        assert same == expected


@pytest.mark.parametrize("kind", ATTENTION)
def test_fewer_heads_keep_their_values(build: Build, kind: str) -> None:
    for operator in ("dense_mha", "masked_mha", "sparse_mqa"):
        many, few = build(operator, kind=kind, heads=5).tensors, build(operator, kind=kind, heads=2).tensors
        for name in ("q", "k", "v"):
            if name in many:
                assert torch.equal(many[name][:, :2], few[name])
        for name in ("kv", "indices", "mask"):
            if name in many:
                assert _same(many[name], few[name])


@pytest.mark.parametrize("kind", ATTENTION)
def test_fewer_tokens_keep_their_values(build: Build, kind: str) -> None:
    """All but what hangs on the request's length: its last key, and in MQA the tag of that key in the queries."""
    long = build("dense_mha", kind=kind, q_lens=(5, 2), k_lens=(90, 40)).tensors
    short = build("dense_mha", kind=kind, q_lens=(3, 2), k_lens=(70, 40)).tensors
    assert torch.equal(long["q"][:3], short["q"][:3]) and torch.equal(long["q"][5:], short["q"][3:])
    for name in ("k", "v"):
        assert torch.equal(long[name][:69], short[name][:69]) and torch.equal(long[name][90:], short[name][70:])


@pytest.mark.parametrize(("operator", "kind"), PAIRS)
def test_other_requests_may_go(build: Build, operator: str, kind: str) -> None:
    """With ``ids-2`` the third request alone is what it was in the batch, but for its place in memory."""
    lens = {"q_lens": (3, 4, 6), "k_lens": (40, 9, 135)}
    poison = ("poison-stale",) if "poison-stale" in OPTIONS[operator] else ()
    batch = build(operator, kind=kind, options=poison, **lens)
    options = ("ids-2", *poison)
    alone = build(operator, kind=kind, q_lens=(6,), k_lens=(135,), options=options)
    a, b = batch.tensors, alone.tensors
    if operator == "paged_indexer_scores":
        assert _same(a["q"][2:].float(), b["q"].float()) and _same(a["weights"][12:], b["weights"])
        keys = [keys_of(x["k_cache"], x["block_table"][-1], 135, 16) for x in (a, b)]
        assert all(_same(x.float(), y.float()) for x, y in zip(*keys, strict=True))
        return
    for name in ("q", "weights", "out_a", "out_b", "lse_a", "lse_b"):
        if name in a:
            assert _same(a[name][7:], b[name])
    for name in ("k", "v", "k_scale", "x"):
        if name in a and operator != "write_index":
            assert _same(a[name][49:], b[name])
    for name in ("latent", "rope"):
        if name in a:
            assert _same(a[name][7:], b[name])
    if operator == "sparse_mqa":
        assert torch.equal((a["indices"] >= 0)[7:], b["indices"] >= 0)
        assert torch.equal(_gathered(a)[7:], _gathered(b))
    if operator == "topk_select":
        inside = torch.arange(135) < (b["ke"] - b["ks"])[:, None]
        assert _same(a["scores"][7:, 49:][inside], b["scores"][inside])
    if operator == "masked_mha":
        words = (a["mask"][2, :6, :4], b["mask"][0, :6, :4])
        assert torch.equal(*words)


@pytest.mark.parametrize("operator", ["dense_mha", "sparse_mqa"])
@pytest.mark.parametrize("kind", ATTENTION)
def test_answers_are_not_zeros_means_or_those_of_other_heads(build: Build, operator: str, kind: str) -> None:
    inputs = build(operator, kind=kind, q_lens=(4,), k_lens=(400,), topk=64, dtype="fp32")
    scores, values = _scores(inputs)
    out = torch.einsum("shk,skhv->shv", scores.softmax(-1), values)
    mean = values.mean(1)
    # What rounding the output to bf16 may move at most.
    floor = 2.0**-8 * out.norm()
    for wrong in (torch.zeros_like(out), mean, out.roll(1, 1), out.roll(1, 0)):
        assert (out - wrong).norm() > floor


def test_needles_take_most_of_the_mass(build: Build) -> None:
    scores, _ = _scores(build("dense_mha", kind="needle", heads=8, q_lens=(16,), k_lens=(400,), dtype="fp32"))
    edges = torch.tensor([0, 63, 64, 127, 128, 399])
    mass = scores.softmax(-1)[:, :, edges]
    assert float(mass.sum(-1).median()) > 0.9
    assert bool((mass > 0.2).any(0).any(0).all()), "every edge key counts for some query"


def test_negative_scores_lie_far_below_zero(build: Build) -> None:
    for operator in ("dense_mha", "sparse_mqa"):
        scores, _ = _scores(build(operator, kind="negative", q_lens=(4,), k_lens=(400,), dtype="fp32"))
        finite = scores[scores.isfinite()]
        assert float(finite.max()) < -130 and -230 < float(finite.mean()) < -170


def test_the_sink_token_takes_nearly_all_and_holds_little(build: Build) -> None:
    inputs = build("dense_mha", kind="sinktoken", q_lens=(4,), k_lens=(400,), dtype="fp32")
    scores, _ = _scores(inputs)
    mass = scores.softmax(-1)[:, :, 0]
    assert 0.8 < float(mass.mean()) < 0.9999
    v = inputs.tensors["v"]
    assert float(v[0].abs().mean()) < 0.1 * float(v[1:].abs().mean())


def test_constant_keys_score_at_one_or_two_levels(build: Build) -> None:
    for operator in ("dense_mha", "sparse_mqa"):
        scores, _ = _scores(build(operator, kind="constant", heads=2, q_lens=(1,), k_lens=(300,), dtype="fp32"))
        levels = [len(torch.unique(scores[0, head].round(decimals=3))) for head in range(2)]
        assert levels == [1, 2]


def test_tags_name_the_key(build: Build) -> None:
    v = build("dense_mha", kind="tagged", q_lens=(1,), k_lens=(40,)).tensors["v"]
    assert torch.equal(v.float().argmax(-1), (torch.arange(40)[:, None] + 7 * torch.arange(3)) % 16)
    assert bool((v.float().sum(-1) == 1).all())


@pytest.mark.parametrize("operator", ["dense_mha", "sparse_mqa"])
def test_grid_values_are_small_integers_and_mostly_zero(build: Build, operator: str) -> None:
    tensors = build(operator, kind="grid", options=("poison-stale",), q_lens=(5,), k_lens=(20,)).tensors
    used = {name: tensors[name].float() for name in ("q", "k", "v") if name in tensors}
    if operator == "sparse_mqa":
        used["kv"] = _gathered(tensors).float()
    for tensor in used.values():
        assert bool((tensor == tensor.round()).all()) and float(tensor.abs().max()) <= 5
    assert 0.1 < float((used["q"] != 0).float().mean()) < 0.4


def test_indexer_kinds(build: Build) -> None:
    lens = {"q_lens": (6,), "k_lens": (200,), "dtype": "fp32"}
    negative = _index(build("indexer_scores", kind="negative", **lens))
    assert bool((negative == 0).all())
    clustered = _index(build("indexer_scores", kind="clustered", **lens))
    assert max(len(row.to(torch.bfloat16).unique()) for row in clustered) <= 2 and len(clustered[0].unique()) > 150
    for kind, power in (("randn", False), ("wide", False), ("pow2", True), ("grid", True)):
        scale = build("indexer_scores", kind=kind, **lens).tensors["k_scale"].double()
        exact = torch.frexp(scale).mantissa == 0.5
        assert bool((scale > 0).all()) and bool(exact.all()) == power and (power or int(exact.sum()) < 5)
    randn = _index(build("indexer_scores", kind="randn", **lens))
    assert bool((randn > 0).any()) and bool((randn < 0).any())


def test_selection_kinds(build: Build) -> None:
    rows = {
        kind: build("topk_select", kind=kind, q_lens=(2,), k_lens=(9000,), topk=2048).tensors["scores"][1]
        for kind in kinds_of("topk_select")
    }
    assert rows["ties"].unique().numel() == 7 and rows["constant"].unique().numel() == 1
    assert rows["clustered"].unique().numel() == 9000 and rows["clustered"].half().unique().numel() == 3
    assert rows["ramp"].unique().numel() == 9000 and rows["ramp"].diff().unique().numel() == 1
    assert int((rows["zeros"] > 0).sum()) in range(98, 103) and int((rows["zeros"] == 0).sum()) > 8800
    assert bool((rows["infs"] == math.inf).any()) and bool((rows["infs"] == -math.inf).any())
    assert float(rows["negative"].max()) < 0 and 0 < int(rows["nan"].isnan().sum()) < 300
    assert bool(rows["randn"].isfinite().all())
    zeros = rows["signed"][rows["signed"] == 0]
    assert 0.2 < float(zeros.signbit().sum()) / 9000 < 0.3 and 0.4 < len(zeros) / 9000 < 0.6


def test_selection_kinds_that_turn_with_the_row(build: Build) -> None:
    def rows(kind: str, q: int) -> Tensor:
        return build("topk_select", kind=kind, q_lens=(q,), k_lens=(900,), topk=200).tensors["scores"][:, :800]

    every, large, small = rows("spread", 3).abs()
    assert float(every.max()) > 1e30 and float(every.min()) < 1e-25
    assert float(large.quantile(0.01)) > 1e26 and float(small.quantile(0.99)) < 1e-21 and float(small.min()) > 2**-126
    lowest, nan, infinite, most = rows("crowded", 4)
    assert bool((lowest == -math.inf).all()) and 0.8 < float((most == -math.inf).float().mean()) < 1
    assert int(nan.isnan().sum()) > 200 and int((infinite == math.inf).sum()) > 200


def test_scores_climb_over_128_keys(build: Build) -> None:
    for operator, options in (("dense_mha", ()), ("sparse_mqa", ("prefix",))):
        lens = {"q_lens": (1,), "k_lens": (140,), "topk": 140}
        scores, _ = _scores(build(operator, kind="climbing", options=options, **lens))
        row = scores[0, 0]
        assert float(row[100:128].min()) > float(row[:28].max()) + 88 and float(row[128:].max()) < float(row[60])


def test_every_third_query_and_key_may_be_zero(build: Build) -> None:
    lens = {"q_lens": (60,), "k_lens": (60,), "topk": 60}
    for operator, keys in (("dense_mha", "k"), ("sparse_mqa", "kv")):
        tensors = build(operator, kind="blank", **lens).tensors
        for rows in (tensors["q"][:, 0], tensors[keys].nan_to_num(1.0).flatten(1)):
            zero = (rows == 0).all(-1)
            assert 10 < int(zero.sum()) < 40
            assert 0.2 < float(rows[zero].signbit().float().mean()) < 0.8


def test_powers_are_beyond_fp16_and_scores_are_ordinary(build: Build) -> None:
    lens = {"q_lens": (2, 2, 2), "k_lens": (9, 9, 9), "topk": 9}
    for operator in ("dense_mha", "sparse_mqa"):
        inputs = build(operator, kind="powers", **lens)
        sizes = inputs.tensors["q"].abs().amax(-1)[:, 0]
        assert float(sizes.max()) > 65504 and float(sizes.min()) < 2**-24
    scores, _ = _scores(build("sparse_mqa", kind="powers", q_lens=(1,), k_lens=(9,), topk=9))
    assert float(scores.abs().max()) < 30
    plain, pages = (build("sparse_mqa", kind="powers", dtype="e4m3", options=o).options for o in ((), ("pages",)))
    assert plain["k_scale"] > 1 > plain["q_scale"] and pages["q_scale"] > 1 > pages["k_scale"]


def test_specials_are_all_in_one_row(build: Build) -> None:
    row = build("topk_select", kind="specials", q_lens=(1,), k_lens=(400,), topk=20).tensors["scores"][0]
    for found in (row.isnan(), row == math.inf, row == -math.inf, row.isfinite()):
        assert int(found.sum()) > 60


def test_large_blocks_are_finite_and_near_the_end(build: Build) -> None:
    x = build("quantize", kind="large", k_lens=(40,), q_lens=(1,)).tensors["x"].float()
    assert bool(x.isfinite().all()) and float(x.abs().max()) > 1e34 and float(x.abs().median()) > 1e15


def test_an_empty_side_may_hold_anything(build: Build) -> None:
    tensors = build("merge_lse", kind="leftovers", q_lens=(90,), k_lens=(90,)).tensors
    left = tensors["out_a"][tensors["lse_a"] == -math.inf][:, 0]
    assert bool(left.isnan().any()) and bool(left.isinf().any()) and bool((left > 6e4).any())


def test_merge_kinds(build: Build) -> None:
    lens = {"q_lens": (50,), "k_lens": (50,)}
    wide = build("merge_lse", kind="wide", **lens).tensors
    assert float((wide["lse_a"] - wide["lse_b"]).abs().max()) > 120
    randn = build("merge_lse", kind="randn", **lens).tensors
    assert float((randn["lse_a"] - randn["lse_b"]).abs().max()) < 8
    ties = build("merge_lse", kind="ties", **lens).tensors
    apart = (ties["lse_a"] - ties["lse_b"]).abs()
    assert int((apart == 0).sum()) > 20 and int(((apart > 0) & (apart < 1e-5)).sum()) > 20
    assert int((apart > 0.1).sum()) > 40


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def _gathered(tensors: dict[str, Tensor]) -> Tensor:
    valid = tensors["indices"] >= 0
    return tensors["kv"][tensors["indices"].clamp(min=0).long()] * valid.unsqueeze(-1)


def _scores(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Scaled scores [s,h,k] and values [s,k,h,v] of one causal request, in float64."""
    tensors, scale = {name: tensor.double() for name, tensor in inputs.tensors.items()}, inputs.geometry.softmax_scale
    q = tensors["q"]
    if "kv" in tensors:
        kv = tensors["kv"][inputs.tensors["indices"].long()]
        values = kv[..., None, : inputs.geometry.kv_lora_rank].expand(-1, -1, q.shape[1], -1)
        return torch.einsum("shd,skd->shk", q, kv) * scale, values
    scores = torch.einsum("shd,thd->sht", q, tensors["k"]) * scale
    seen = torch.arange(len(tensors["k"])) < torch.arange(len(q))[:, None] + len(tensors["k"]) - len(q) + 1
    values = tensors["v"].expand(len(q), -1, -1, -1)
    return scores.masked_fill(~seen[:, None], -math.inf), values


def _index(inputs: Inputs) -> Tensor:
    """Indexer scores [s, t] in float64, outside the windows as well."""
    t = {name: tensor.double() for name, tensor in inputs.tensors.items()}
    hits = torch.einsum("sie,te->sit", t["q"], t["k"]).relu()
    return torch.einsum("sit,si->st", hits, t["weights"]) * t["k_scale"]
