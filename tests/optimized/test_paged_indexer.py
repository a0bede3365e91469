"""Indexer scores on planar pages, with Triton and with torch, against the reference in float64."""

from __future__ import annotations

import mmap

import pytest
import torch

from attnoracle.oracle.guests.known import find
from attnoracle.reference import paged_indexer_scores as reference

U32 = 2.0**-24
PAGE = 64


@pytest.fixture(params=["triton", "torch"])
def function(request):
    return find(f"paged_indexer_scores/{request.param}").load()


@pytest.fixture
def call(device):
    """A call of random finite codes and scales, on shuffled pages with a spare one."""

    def make(m: int, lengths: list[int], *, i: int = 8, e: int = 128, seed: int = 0, q_scale: bool = False) -> dict:
        draw = torch.Generator().manual_seed(seed)
        held = [-(-length // PAGE) for length in lengths]
        order = torch.randperm(sum(held) + 1, generator=draw)
        cache = torch.zeros(len(order), PAGE * (e + 4), dtype=torch.uint8)
        codes = torch.randn(len(order), PAGE * e, generator=draw).to(torch.float8_e4m3fn)
        cache[:, : PAGE * e] = codes.view(torch.uint8)
        cache[:, PAGE * e :].view(torch.float32)[:] = torch.rand(len(order), PAGE, generator=draw) + 0.1
        table = torch.full((len(lengths), max(held) + 1), 2**31 - 1, dtype=torch.int32)
        for request, count in enumerate(held):
            table[request, :count] = order[sum(held[:request]) : sum(held[: request + 1])]
        made = {
            "q": torch.randn(len(lengths), m, i, e, generator=draw).to(torch.float8_e4m3fn),
            "k_cache": cache,
            "weights": torch.randn(len(lengths) * m, i, generator=draw),
            "context_lens": torch.tensor(lengths, dtype=torch.int32),
            "block_table": table,
        }
        if q_scale:
            made["q_scale"] = torch.rand(len(lengths) * m, i, generator=draw) + 0.1
        return {name: x.to(device) for name, x in made.items()} | {"max_model_len": max(lengths) + 5}

    return make


@pytest.fixture
def check(function, assert_within):
    def run(call):
        (got,) = function(**call)
        (expected,) = reference(**call | {"q": call["q"].float().double()})
        magnitude = call["q"].float().abs().sum(-1).amax() * 448 * 1.2 * call["weights"].abs().sum(1, keepdim=True)
        terms = call["q"].shape[2] + call["q"].shape[3] + 5
        bound = terms * U32 * (magnitude * call.get("q_scale", torch.ones(1, device=got.device)).max()).expand_as(got)
        assert_within(got, expected, bound.double())
        return got

    return run


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_next_n_and_lengths_around_a_page(check, call, m):
    check(call(m, [0, 1, 63, 64, 65, 128, 129], q_scale=m % 2 == 0))


@pytest.mark.parametrize(("i", "e"), [(1, 16), (3, 32), (32, 64), (64, 128)])
def test_heads_and_dims(check, call, i, e):
    check(call(2, [70, 3], i=i, e=e))


def test_pages_may_lie_apart_and_queries_be_strided(check, call):
    made = call(2, [130, 60])
    wide = torch.zeros(len(made["k_cache"]), made["k_cache"].shape[1] + 16, dtype=torch.uint8, device=made["q"].device)
    wide[:, : made["k_cache"].shape[1]] = made["k_cache"]
    made["k_cache"] = wide[:, : made["k_cache"].shape[1]]
    made["block_table"] = made["block_table"].repeat_interleave(2, 1)[:, ::2].contiguous()
    raw = made["q"].view(torch.uint8)
    made["q"] = raw.transpose(1, 2).contiguous().transpose(1, 2).view(torch.float8_e4m3fn)
    check(made)


def test_pages_past_two_to_the_31(check, call, device):
    made = call(1, [100])
    size = made["k_cache"].shape[1]
    far = 2**31 // size + 1
    total = (far + len(made["k_cache"])) * size
    if device.type == "cuda":
        flat = torch.zeros(total, dtype=torch.uint8, device=device)
    else:
        pages = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        flat = torch.frombuffer(pages, dtype=torch.uint8)
    cache = flat.view(-1, size)
    cache[far:] = made["k_cache"]
    used = made["block_table"] < 2**31 - 1
    made["block_table"] = torch.where(used, made["block_table"] + far, -1).int()
    check(made | {"k_cache": cache})


def test_nothing_behind_a_context_matters(function, call):
    made = call(2, [70, 5])
    (before,) = function(**made)
    used = made["block_table"][0, 1]
    made["k_cache"][used, 6 * 128 : PAGE * 128] = 0x7F
    made["k_cache"][used, PAGE * 128 :].view(torch.float32)[6:] = torch.nan
    (after,) = function(**made)
    assert torch.equal(before, after)


def test_a_nan_code_in_use_is_seen(function, call):
    made = call(1, [70])
    made["k_cache"][made["block_table"][0, 0], 5 * 128] = 0xFF
    (scores,) = function(**made)
    assert bool(scores[0, 5].isnan()) and int(scores.isnan().sum()) == 1


def test_no_requests(function, call):
    made = call(2, [3])
    empty = {name: x[:0] if isinstance(x, torch.Tensor) and name != "k_cache" else x for name, x in made.items()}
    assert function(**empty)[0].shape == (0, made["max_model_len"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_cache": lambda x: x[:, :-1]}, "k_cache: expected pages of a multiple of 132 bytes, got 8447"),
        ({"q": lambda x: x.float()}, "q: expected torch.float8_e4m3fn, got torch.float32"),
        ({"block_table": lambda x: x * 0 - 1}, "block_table: expected pages 0 to 3 where a context has keys, got -1"),
        ({"context_lens": lambda x: x + 1000}, "context_lens: expected 0 to 135, got 1130"),
        ({"context_lens": lambda x: x - 1000}, "context_lens: expected 0 to 135, got -870"),
        ({"weights": lambda x: x[:1]}, r"weights: expected shape \[b\*m, i\]"),
        ({"q_scale": lambda x: x * 0}, "q_scale: expected finite scales above 0, got 0.0"),
        ({"q_scale": lambda x: x * torch.nan}, "q_scale: expected finite scales above 0, got nan"),
        ({"k_cache": lambda x: (x.view(torch.int8) * 0).view(torch.uint8)}, "k_cache scales: expected finite"),
    ],
    ids=["page-size", "dtype", "outside", "too-long", "negative", "weights", "zero", "nan", "zero-in-page"],
)
def test_what_cannot_be_is_refused(function, call, device, change, message):
    made = call(2, [130], q_scale=True)
    if device.type == "cuda" and not message.startswith(("k_cache: ", "q: ", "weights")):
        pytest.skip("values are looked at on the CPU alone")
    ((name, new),) = change.items()
    with pytest.raises(ValueError, match=message):
        function(**made | {name: new(made[name])})


def test_misaligned_scales_are_refused(triton_operator, call):
    made = call(1, [70])
    raw = torch.zeros(made["k_cache"].numel() + 1, dtype=torch.uint8, device=made["q"].device)
    with pytest.raises(ValueError, match="expected scales aligned to 4 bytes"):
        triton_operator("paged_indexer_scores")(**made | {"k_cache": raw[1:].view(made["k_cache"].shape)})
