"""The emulator freezes what a graph freezes, and refuses what a capturing stream refuses."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.graphs.checks import difference
from attnoracle.oracle.graphs.makers import EagerMaker, EmulatedMaker, maker
from attnoracle.oracle.graphs.pool import Pool
from attnoracle.oracle.graphs.violation import CaptureFailed
from attnoracle.oracle.guests.known import find

DEVICE = torch.device("cpu")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(12.0).view(3, 4)


def test_kernels_run_again_on_what_the_buffers_hold(x: Tensor) -> None:
    left = torch.zeros(3)
    graph = EmulatedMaker().capture("f", lambda: left.copy_((x * 2).sum(1)), {"x": x, "left": left})
    x.fill_(1)
    graph.replay()
    assert left.tolist() == [8.0, 8.0, 8.0]
    assert [op.name for op in graph.ops] == ["aten.mul", "aten.sum", "aten.copy_"]


def test_host_values_and_control_flow_are_frozen(x: Tensor) -> None:
    said = {"add": 1, "twice": False}

    def function() -> Tensor:
        y = x + said["add"]
        return y * 2 if said["twice"] else y

    graph = EmulatedMaker().capture("f", function, {"x": x})
    said.update(add=5, twice=True)
    graph.replay()
    assert torch.equal(graph.outputs, x + 1)
    shadow = EagerMaker().capture("f", function, {"x": x})
    shadow.replay()
    found = difference(graph, shadow)
    assert found is not None and "froze 1 in aten.add" in found[0] and found[1] == "this step would put 5"


def test_addresses_are_frozen(x: Tensor) -> None:
    held = {"x": x}
    graph = EmulatedMaker().capture("f", lambda: held["x"] + 0, {"x": x})
    held["x"] = torch.zeros(3, 4)
    x.fill_(7)
    graph.replay()
    assert graph.outputs.eq(7).all()


def test_a_capture_runs_nothing(x: Tensor) -> None:
    """Beyond the warm-up: memory outside the pool is as it was, and the outputs hold nothing yet."""
    calls = []

    def function() -> Tensor:
        calls.append(1)
        x.add_(1)
        return x * 2

    graph = EmulatedMaker().capture("f", function, {"x": x})
    assert len(calls) == 2 and x[0, 0] == 1
    assert graph.outputs.isnan().all()
    graph.replay()
    assert x[0, 0] == 2 and graph.outputs[0, 0] == 4


def test_allocations_without_a_kernel_keep_what_lies_there(x: Tensor) -> None:
    graph = EmulatedMaker().capture("f", lambda: torch.empty(4, device=DEVICE), {})
    graph.replay()
    assert graph.outputs.isnan().all()
    graph = EmulatedMaker().capture("f", lambda: torch.zeros(4, device=DEVICE), {})
    graph.outputs.fill_(3)
    graph.replay()
    assert graph.outputs.eq(0).all()


def test_a_pool_gives_freed_memory_again_and_keeps_what_is_held() -> None:
    pool = Pool()
    first, second = pool.adopt(torch.ones(300)), pool.adopt(torch.ones(300))
    at = first.data_ptr()
    view = first[10:]
    del first
    gc.collect()
    assert pool.adopt(torch.ones(300)).data_ptr() not in (at, second.data_ptr())
    del view
    gc.collect()
    assert pool.adopt(torch.ones(200)).data_ptr() == at


def test_graphs_of_one_pool_write_over_each_other(x: Tensor) -> None:
    """What the first graph left is gone after the second, unless it is held while that is captured."""
    made = EmulatedMaker()
    one = made.capture("one", lambda: x + 1, {"x": x})
    address, one.outputs = one.outputs.data_ptr(), None
    gc.collect()
    two = made.capture("two", lambda: x + 2, {"x": x})
    assert two.outputs.data_ptr() == address


CALLS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "tolist": (lambda y: y.tolist(), "Tensor.tolist"),
    "item": (lambda y: y.sum().item(), "Tensor.item"),
    "cpu": (lambda y: y.cpu(), "Tensor.cpu"),
    "numpy": (lambda y: y.numpy(), "Tensor.numpy"),
    "bool": (lambda y: bool(y.sum() > 0), "Tensor.__bool__"),
    "int": (lambda y: int(y[0, 0]), "Tensor.__int__"),
    "slice": (lambda y: y[: y[0, 0].long()], "aten._local_scalar_dense"),
    "equal": (lambda y: torch.equal(y, y * 2), "aten.equal"),
    "nonzero": (lambda y: y.nonzero(), "aten.nonzero"),
    "mask": (lambda y: y[y > 0], "aten.index"),
    "masked_select": (lambda y: y.masked_select(y > 0), "aten.masked_select"),
    "unique": (lambda y: y.unique(), "aten._unique2"),
    "repeat": (lambda y: y.repeat_interleave(y[:, 0].long(), 0), "aten.repeat_interleave"),
    "tensor": (lambda y: torch.tensor([1.0], device=y.device), "torch.tensor"),
    "moved": (lambda y: torch.arange(4).to(y.device), "Tensor.to"),
    "mixed": (lambda y: y + torch.ones(4), "aten.add"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_illegal_call_is_named(x: Tensor, name: str) -> None:
    call, expected = CALLS[name]
    with pytest.raises(CaptureFailed, match=r"test_emulated_graphs\.py") as failed:
        EmulatedMaker().capture("f", lambda: call(x.abs()), {"x": x})
    assert failed.value.call is not None and failed.value.call.call == expected


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda y: y.masked_fill_(y > 2, 0), id="masked-fill"),
        pytest.param(lambda y: y.__setitem__(y > 2, 0.0), id="one-value-by-a-mask"),
        pytest.param(lambda y: torch.arange(4).tolist(), id="host-tensor"),
        pytest.param(lambda y: y + torch.tensor(2.0), id="host-number"),
        pytest.param(lambda y: y.repeat_interleave(y[:, 0].long(), 0, output_size=3), id="known-size"),
        pytest.param(lambda y: (len(y), y.shape, y.numel()), id="shapes"),
    ],
)
def test_what_needs_no_device_value_is_legal(x: Tensor, call: Callable[[Tensor], Any]) -> None:
    EmulatedMaker().capture("f", lambda: call(torch.ones_like(x)), {"x": x})


def test_a_capture_that_fails_leaves_everything_usable(x: Tensor) -> None:
    made = EmulatedMaker()

    def bad() -> None:
        x.add_(1)
        x.tolist()

    before = x + 1  # the warm-up runs
    with pytest.raises(CaptureFailed):
        made.capture("f", bad, {"x": x})
    assert torch.equal(x, before) and x.tolist()
    graph = made.capture("g", lambda: x + 1, {"x": x})
    graph.replay()
    assert torch.equal(graph.outputs, x + 1)


def test_a_triton_launch_is_recorded_whole() -> None:
    reason = availability()
    if reason is not None:
        pytest.skip(reason)
    merge = find("merge_lse/triton").load()
    sides = [torch.randn(4, 2, 16), torch.randn(4, 2), torch.randn(4, 2, 16), torch.randn(4, 2)]
    names = dict(zip(("out_a", "lse_a", "out_b", "lse_b"), sides, strict=True))
    graph = EmulatedMaker().capture("merge", lambda: merge(**names), names)
    assert [op.name for op in graph.ops] == ["triton._merge_lse_kernel"]
    for side in sides:
        side.copy_(torch.randn(side.shape))
    graph.replay()
    assert all(torch.equal(got, wanted) for got, wanted in zip(graph.outputs, merge(**names), strict=True))


def test_a_maker_wants_a_device_it_knows() -> None:
    with pytest.raises(BadInput, match="expected cpu or cuda, got 'mps'"):
        maker("mps")
