"""Red zones see every stray write, and a kernel's own allocations come poisoned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnoracle.oracle.calling.memory import Arena, guarded_allocations
from attnoracle.oracle.errors import BadInput

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.float8_e4m3fn]
LAYOUTS = ["contiguous", "offset", "strided"]
WRITES: dict[str, int] = {"all-ones": 0xFF, "zero": 0x00, "one-bit": 0x01}


def beside(arena: Arena, name: str, offset: int) -> Tensor:
    """The one byte at ``offset`` from the start of a tensor."""
    guarded = arena.tensors[name]
    return guarded.buffer[guarded.begin + offset : guarded.begin + offset + 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 8), (0, 4), (3, 0)], ids=str)
def test_a_fresh_tensor_is_undamaged_whatever_it_holds(layout: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arena = Arena(layout, "cpu")
    tensor = arena.place("x", torch.ones(shape).to(dtype))
    assert tensor.shape == shape and tensor.dtype is dtype and bool((tensor.float() == 1).all())
    assert arena.tensors["x"].damage() == []


def test_layouts_keep_their_promises() -> None:
    for layout, alignment in (("contiguous", 512), ("offset", 16), ("strided", 512)):
        arena = Arena(layout, "cpu")
        tensor = arena.allocate("x", (4, 3, 24), torch.bfloat16)
        base = arena.tensors["x"].buffer.data_ptr()
        assert (tensor.data_ptr() - base) % alignment == 0 and tensor.stride(-1) == 1
        assert ((tensor.data_ptr() - base) % 32 != 0) == (layout == "offset")
        assert tensor.is_contiguous() == (layout != "strided")
        assert all(step * 2 % 16 == 0 for step in tensor.stride()[:-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_float_guards_read_as_nan(dtype: torch.dtype) -> None:
    arena = Arena("strided", "cpu")
    tensor = arena.allocate("x", (3, 8), dtype)
    guarded = arena.tensors["x"]
    tensor.zero_()
    row = torch.as_strided(tensor, (3, tensor.stride(0)), tensor.stride())
    assert bool(row[:, 8:].isnan().all())
    after = guarded.buffer[guarded.begin + guarded.payload :].view(dtype)
    assert bool(after.isnan().all()) and bool(guarded.buffer[: guarded.begin].view(dtype).isnan().all())


def test_other_guards_are_nan_codes_and_far_indices() -> None:
    arena = Arena("contiguous", "cpu")
    arena.allocate("fp8", (16,), torch.float8_e4m3fn)
    arena.allocate("index", (16,), torch.int32)
    assert bool(arena.tensors["fp8"].buffer.view(torch.float8_e4m3fn).float().isnan().all())
    assert int(arena.tensors["index"].buffer.view(torch.int32).min()) > 2**30


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", WRITES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32], ids=str)
def test_one_stray_byte_is_seen(layout: str, value: str, dtype: torch.dtype) -> None:
    for place in ("before", "after", "far"):
        arena = Arena(layout, "cpu")
        arena.place("x", torch.ones(3, 8).to(dtype))
        end = arena.tensors["x"].payload
        offset = {"before": -1, "after": end, "far": end + 4000}[place]
        beside(arena, "x", offset).fill_(WRITES[value])
        (message,) = arena.tensors["x"].damage()
        assert message.startswith("x: 1 guard byte") and f"at byte offsets {offset} to {offset}" in message
        assert ("before" if place == "before" else "after") in message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("where", ["before", "after"])
def test_two_stray_nans_are_seen(dtype: torch.dtype, where: str) -> None:
    arena = Arena("contiguous", "cpu")
    arena.place("x", torch.ones(16).to(dtype))
    guarded = arena.tensors["x"]
    elements = guarded.buffer.view(dtype)
    start = guarded.begin // dtype.itemsize + (-2 if where == "before" else 16)
    elements[start : start + 2] = torch.full((2,), float("nan")).to(dtype)
    assert len(guarded.damage()) == 1


def test_a_stray_minus_one_in_an_index_row_is_seen() -> None:
    arena = Arena("strided", "cpu")
    indices = arena.place("indices", torch.zeros(4, 6, dtype=torch.int32))
    torch.as_strided(indices, (4, 7), indices.stride(), indices.storage_offset())[2, 6] = -1
    (message,) = arena.tensors["indices"].damage()
    assert "in the gaps between its rows" in message and f"offsets {(2 * indices.stride(0) + 6) * 4} to" in message


def test_a_stray_head_row_is_seen() -> None:
    arena = Arena("strided", "cpu")
    q = arena.place("q", torch.zeros(2, 3, 8))
    torch.as_strided(q, (2, 4, 8), q.stride(), q.storage_offset())[1, 3, 0] = 0.0
    assert len(arena.tensors["q"].damage()) == 1


def test_fingerprint_follows_every_byte() -> None:
    arena = Arena("offset", "cpu")
    tensor = arena.place("x", torch.arange(64, dtype=torch.float32))
    before = arena.tensors["x"].fingerprint()
    assert arena.tensors["x"].fingerprint() == before
    tensor[[3, 4]] = tensor[[4, 3]]
    assert arena.tensors["x"].fingerprint() != before
    tensor[[3, 4]] = tensor[[4, 3]]
    assert arena.tensors["x"].fingerprint() == before
    beside(arena, "x", -1).fill_(0)
    assert arena.tensors["x"].fingerprint() != before


BASE = torch.ones(3, 4, dtype=torch.bfloat16)
REQUESTS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(2, 3),
    "empty-size": lambda: torch.empty((2, 3), dtype=torch.float16, device="cpu"),
    "empty-int32": lambda: torch.empty(5, dtype=torch.int32),
    "empty-int64": lambda: torch.empty((5, 1), dtype=torch.int64),
    "empty-uint8": lambda: torch.empty(5, dtype=torch.uint8),
    "empty-bool": lambda: torch.empty(5, dtype=torch.bool),
    "empty-e4m3": lambda: torch.empty(2, 2, dtype=torch.float8_e4m3fn),
    "empty-e5m2": lambda: torch.empty(2, 2, dtype=torch.float8_e5m2),
    "empty-fp64": lambda: torch.empty(2, 2, dtype=torch.float64),
    "empty-scalar": lambda: torch.empty(()),
    "empty-none": lambda: torch.empty(0, 3),
    "empty-grad": lambda: torch.empty(3, requires_grad=True),
    "empty-channels": lambda: torch.empty((1, 2, 3, 4), memory_format=torch.channels_last),
    "empty_like": lambda: torch.empty_like(BASE),
    "empty_like-transposed": lambda: torch.empty_like(BASE.t()),
    "empty_like-dtype": lambda: torch.empty_like(BASE, dtype=torch.float32),
    "empty_strided": lambda: torch.empty_strided((2, 2), (1, 5)),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
    "new_empty": lambda: BASE.new_empty((4, 2)),
    "new_empty-dtype": lambda: BASE.new_empty(3, dtype=torch.int32),
    "new_empty_strided": lambda: BASE.new_empty_strided((2, 2), (8, 1)),
}


@pytest.mark.parametrize("fill", ["nan", "huge", "stale"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_an_allocation_is_as_asked_for_and_poisoned(fill: str, request_name: str) -> None:
    plain = REQUESTS[request_name]()
    with guarded_allocations(fill) as memory:  # type: ignore[arg-type]
        got = REQUESTS[request_name]()
    assert len(memory.guarded) == 1 and memory.damage() == []
    assert (got.shape, got.stride(), got.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert (got.device, got.layout, got.requires_grad, got.is_leaf) == (
        plain.device,
        plain.layout,
        plain.requires_grad,
        plain.is_leaf,
    )
    values = got.detach().double()
    if got.dtype is torch.bool:
        assert bool(got.all())
    elif fill == "nan":
        ones = 255 if got.dtype is torch.uint8 else -1
        assert bool(values.isnan().all() if got.is_floating_point() else (got == ones).all())
    elif fill == "huge":
        assert bool(values.isfinite().all()) and bool((values > 100).all())
    else:
        assert bool((values.abs() < 64).all())


def test_allocations_see_a_write_outside() -> None:
    for offset, place in ((-1, "before"), (6, "after")):
        with guarded_allocations("nan") as memory:
            out = torch.empty(2, 3)
            torch.as_strided(out, (1,), (1,), out.storage_offset() + offset).fill_(-1.0)
            out.zero_()
        (message,) = memory.damage()
        assert place in message and "allocation 0 (float32 [2, 3])" in message and f"offsets {offset * 4} " in message


def test_zeros_full_and_pass_through_stay_as_they_are() -> None:
    target = torch.ones(2)
    with guarded_allocations("nan") as memory:
        assert torch.zeros(3).tolist() == [0, 0, 0]
        assert torch.full((2,), 7).tolist() == [7, 7]
        assert BASE.new_zeros(2).tolist() == [0, 0]
        assert torch.empty(2, device="meta").device.type == "meta"
        assert torch.empty(2, out=target) is target
    assert memory.guarded == []


def test_stale_answers_come_from_the_provider_where_it_has_one() -> None:
    earlier = torch.arange(6.0).view(2, 3)
    for stale in ([torch.zeros(3), earlier], lambda size, dtype: earlier if size == (2, 3) else None):
        with guarded_allocations("stale", stale=stale) as memory:
            assert torch.equal(torch.empty(2, 3), earlier)
            other = torch.empty(100)
        assert 0.5 < float(other.std()) < 2 and memory.damage() == []


def test_stale_values_follow_the_seed() -> None:
    def drawn(seed: int) -> Tensor:
        with guarded_allocations("stale", seed=seed):
            return torch.empty(50)

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))


def test_outside_the_context_nothing_is_caught() -> None:
    with guarded_allocations("nan") as memory:
        pass
    torch.empty(4)
    assert memory.guarded == []


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BadInput, match="expected nan, huge or stale"):
        guarded_allocations("zeros")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="expected contiguous, offset or strided"):
        Arena("blocked", "cpu")
