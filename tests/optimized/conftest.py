"""What the tests of the Triton kernels share: loading them, poisoned outputs, huge strides, and error bounds.

The bounds are first-order worst cases of the declared formats, not tolerances. With u the unit roundoff of a format,
B = sum p |v|, and eta the error of a score (fp32 products of d terms, a scale, a maximum subtracted, an exp2 of
relative error 2**-22) plus that of a sum of T terms::

    |out - expected| <= u_out |expected| + B (u_P + 2 eta) + subnormals of P and out
    |lse - expected| <= eta + 4 u_32 (1 + |expected|)
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnoracle.optimized.triton_kernels import IMPLEMENTATIONS

U32 = 2.0**-24
#: Half the spacing just above 1, and half the smallest subnormal.
ROUNDOFF = {torch.bfloat16: (2.0**-8, 2.0**-134), torch.float16: (2.0**-11, 2.0**-25), torch.float32: (U32, 2.0**-150)}


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    """What code prints in a fresh Python without a GPU, given more of an environment; fails if it fails."""

    def run(code: str, **environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = inherited | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths} | environment
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def triton_operator(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[..., tuple[torch.Tensor, ...]]]:
    """An operator's Triton implementation by name; every output it allocates starts as NaN or as 0x7f bytes."""
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 0x7F7F7F7F)

    def load(operator: str) -> Callable[..., tuple[torch.Tensor, ...]]:
        function = next(x for x in IMPLEMENTATIONS if x.operator == operator).load()
        monkeypatch.setattr(torch, "empty", poisoned)
        return function

    return load


@pytest.fixture
def far_rows(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """A tensor with rows so far apart that the third lies beyond 2**31 elements; untouched pages cost nothing."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        stride = 2**30 + 8
        strides = (stride, *tensor.stride()[1:])
        count = (tensor.size(0) - 1) * stride + tensor[0].numel()
        if device.type == "cuda":
            flat = torch.zeros(count, dtype=tensor.dtype, device=device)
        else:
            pages = mmap.mmap(-1, count * tensor.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            flat = torch.frombuffer(pages, dtype=tensor.dtype)
        return flat.as_strided(tensor.shape, strides).copy_(tensor)

    return spread


def _scores_error(q: torch.Tensor, k: torch.Tensor, scale: float, terms: int) -> torch.Tensor:
    """eta [s, h], from the largest key norm: every score is at most scale |q| |k|."""
    largest = k.double().nan_to_num().norm(dim=-1).max() if k.numel() else torch.zeros((), dtype=torch.float64)
    bound = abs(scale) * q.double().norm(dim=-1) * largest
    return bound * (q.size(-1) + 8) * U32 + (terms + 8) * U32 + 2.0**-22


def _assert_attention(
    got: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
    absolute: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    scale: float,
    terms: int,
) -> None:
    """``absolute`` is the operator's output on |v|; ``terms`` the most keys a query sees."""
    out, lse = got
    assert out.shape == expected[0].shape and out.dtype == q.dtype and lse.dtype == torch.float32
    unit, tiny = ROUNDOFF[q.dtype]
    eta = _scores_error(q, k, scale, terms)
    largest = absolute.amax().item() if absolute.numel() else 0.0
    bound = unit * expected[0].abs() + absolute * (unit + 2 * eta[..., None]) + tiny * (1 + terms * largest)
    _assert_within(out, expected[0], bound)
    _assert_within(lse, expected[1], eta + 4 * U32 * (1 + expected[1].abs().nan_to_num(posinf=0.0)))


def _assert_within(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    """NaN and infinities in the same places, everything else within ``bound``."""
    got = got.double()
    finite = expected.isfinite()
    assert torch.equal(got[~finite].nan_to_num(nan=1.5), expected[~finite].nan_to_num(nan=1.5))
    error, bound = (got - expected).abs()[finite], bound[finite]
    outside = ~(error <= bound)
    assert not outside.any(), (
        f"{outside.sum()} elements outside; errors {error[outside][:4]}, bounds {bound[outside][:4]}"
    )


@pytest.fixture(scope="session")
def assert_attention() -> Callable[..., None]:
    return _assert_attention


@pytest.fixture(scope="session")
def assert_within() -> Callable[..., None]:
    return _assert_within


@pytest.fixture(scope="session")
def draw(device: torch.device) -> Callable[..., torch.Tensor]:
    """Normal values of a shape and dtype from a seed."""

    def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(dtype).to(device)

    return normal


@pytest.fixture(scope="session")
def sums(device: torch.device) -> Callable[..., torch.Tensor]:
    """int32 prefix sums of lengths."""

    def prefix(*lengths: int) -> torch.Tensor:
        return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)

    return prefix
