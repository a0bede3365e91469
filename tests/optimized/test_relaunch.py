"""The second launch of a kernel: by what was compiled for the first, where Triton would have taken the same one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from attnoracle.optimized import triton_runtime

triton_runtime.prepare()

from attnoracle.optimized.triton_kernels import relaunch  # noqa: E402
from attnoracle.optimized.triton_kernels.relaunch import Tiled, launch  # noqa: E402


class Compiled:
    """Stands for Triton's CompiledKernel: notes how it was launched."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given: self.launches.append((grid, given))


class Kernel:
    """Stands for a kernel: every search compiles anew."""

    def __init__(self):
        self.searches = []

    def __getitem__(self, grid):
        def search(*given, num_warps, **constants):
            self.searches.append((grid, given, constants, num_warps, Compiled()))
            return self.searches[-1][-1]

        return search


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(relaunch, "CompiledKernel", Compiled)
    monkeypatch.setattr(relaunch, "_COMPILED", {})
    return Kernel()


def aligned(*shape, offset=0):
    """bf16 zeros, ``offset`` elements behind a multiple of 16 bytes."""
    flat = torch.zeros(64 + offset + int(torch.tensor(shape).prod()), dtype=torch.bfloat16)
    start = (-flat.data_ptr() // 2) % 8 + offset
    return flat[start : start + int(torch.tensor(shape).prod())].view(shape)


def tiled(tokens=6, heads=2, width=64):
    return Tiled(aligned(tokens, heads, width), 128, 64)


def test_the_second_launch_asks_nobody_and_hands_over_its_own_tensors(kernel):
    first, second = aligned(4), aligned(4)
    launch(kernel, 5, (tiled(), first, None, 0.5, 7), {"WIDTH": 64, "CAUSAL": True}, num_warps=4)
    other = tiled(tokens=9, heads=3)
    launch(kernel, 6, (other, second, None, 0.25, 8), {"WIDTH": 64, "CAUSAL": True}, num_warps=4)
    (grid, given, constants, warps, compiled) = kernel.searches[0]
    assert (len(kernel.searches), grid, constants, warps) == (1, (5,), {"WIDTH": 64, "CAUSAL": True}, 4)
    assert given[0].shape == [6, 128]
    assert given[1] is first
    ((grid, (descriptor, *rest)),) = compiled.launches
    assert grid == (6, 1, 1)
    assert rest[0] is second
    assert rest[1:] == [None, 0.25, 8, 64, True]
    assert descriptor.base is other.tensor
    assert (descriptor.shape, descriptor.strides) == ([9, 192], [192, 1])
    assert (descriptor.block_shape, descriptor.layout) == (given[0].block_shape, given[0].layout)


def test_no_tensor_is_kept_alive(kernel):
    launch(kernel, 1, (tiled(),), {}, num_warps=4)
    ((_, (descriptor,)),) = relaunch._COMPILED.values()
    assert descriptor.base is None


@pytest.mark.parametrize(
    ("arguments", "constants", "num_warps"),
    [
        ((aligned(4, offset=1), 7), {"WIDTH": 64}, 4),
        ((aligned(4).half(), 7), {"WIDTH": 64}, 4),
        ((None, 7), {"WIDTH": 64}, 4),
        ((aligned(4), 2**31), {"WIDTH": 64}, 4),
        ((aligned(4), 7.0), {"WIDTH": 64}, 4),
        ((aligned(4), 7), {"WIDTH": 128}, 4),
        ((aligned(4), 7), {"WIDTH": 64}, 8),
        ((tiled(), 7), {"WIDTH": 64}, 4),
    ],
    ids=["alignment", "dtype", "none", "64 bits", "float", "constant", "warps", "tiled"],
)
def test_whatever_triton_compiles_anew_for_is_searched_for(kernel, arguments, constants, num_warps):
    launch(kernel, 1, (aligned(4), 7), {"WIDTH": 64}, num_warps=4)
    launch(kernel, 1, arguments, constants, num_warps=num_warps)
    assert len(kernel.searches) == 2


def test_tiles_of_another_size_are_searched_for(kernel):
    launch(kernel, 1, (Tiled(aligned(6, 2, 64), 128, 64),), {}, num_warps=4)
    launch(kernel, 1, (Tiled(aligned(6, 2, 64), 64, 64),), {}, num_warps=4)
    assert len(kernel.searches) == 2


def test_an_interpreted_launch_is_not_kept(kernel, monkeypatch):
    monkeypatch.setattr(relaunch, "CompiledKernel", int)
    for _ in range(2):
        launch(kernel, 1, (7,), {}, num_warps=4)
    assert len(kernel.searches) == 2
    assert relaunch._COMPILED == {}


def test_a_kernel_that_is_specialised_on_a_number_is_refused(kernel):
    kernel.params = [
        SimpleNamespace(name="x_ptr", do_not_specialize=False),
        SimpleNamespace(name="t", do_not_specialize=False),
    ]
    with pytest.raises(TypeError, match=r"^t: "):
        launch(kernel, 1, (aligned(4), 7), {}, num_warps=4)
    kernel.params[1].do_not_specialize = True
    launch(kernel, 1, (aligned(4), 7), {}, num_warps=4)
    assert len(kernel.searches) == 1
