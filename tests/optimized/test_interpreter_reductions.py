"""Reductions and scans of bf16 in the mended interpreter: order, rounding, NaN, and functions of the user."""

import pytest
import torch

from attnoracle.optimized import triton_runtime

if triton_runtime.availability() is not None:
    pytest.skip(f"no Triton here: {triton_runtime.availability()}", allow_module_level=True)
if not triton_runtime.interpreted():
    pytest.skip("Triton compiles in this process: the interpreter cannot be tested", allow_module_level=True)
triton_runtime.prepare()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

BF16 = torch.bfloat16


@triton.jit
def _reduce(x_ptr, out_ptr, index_ptr, OP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :])
    if OP == "sum":
        tl.store(out_ptr + row, tl.sum(x, 1))
    elif OP == "sum fp32":
        tl.store(out_ptr + row, tl.sum(x, 1, dtype=tl.float32))
    elif OP == "max":
        tl.store(out_ptr + row, tl.max(x, 1))
    elif OP == "min":
        tl.store(out_ptr + row, tl.min(x, 1, keep_dims=True).reshape(ROWS))
    elif OP == "argmax":
        tl.store(index_ptr + row, tl.argmax(x, 1))
    elif OP == "argmin":
        tl.store(index_ptr + row, tl.argmin(x, 1))
    elif OP == "total":
        tl.store(out_ptr + row, tl.sum(tl.sum(x, 1), 0))
    elif OP == "cumsum":
        tl.store(out_ptr + row[:, None] * COLUMNS + column[None, :], tl.cumsum(x, 1))
    elif OP == "sort":
        tl.store(out_ptr + row[:, None] * COLUMNS + column[None, :], tl.sort(x, 1))


def reduce(x: torch.Tensor, operation: str, dtype: torch.dtype = BF16) -> torch.Tensor:
    rows, columns = x.shape
    wide = operation in ("cumsum", "sort")
    out = torch.empty((rows, columns) if wide else rows, dtype=dtype)
    index = torch.empty(rows, dtype=torch.int32)
    _reduce[(1,)](x, out, index, operation, rows, columns)
    return index if operation.startswith("arg") else out


def matrix(seed: int, rows: int = 16, columns: int = 64) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_sum_of_bf16_is_a_tree_of_rounded_additions() -> None:
    x = matrix(11)
    level = x
    while level.shape[1] > 1:
        half = level.shape[1] // 2
        level = (level[:, :half].float() + level[:, half:].float()).bfloat16()
    assert torch.equal(reduce(x, "sum"), level[:, 0])
    # each of the log2(64) = 6 roundings adds at most half an ulp, 2**-9 relative, to partial sums of |x|
    assert (reduce(x, "sum").double() - x.double().sum(1)).abs().le(6 * 2.0**-8 * x.double().abs().sum(1)).all()


def test_sum_of_bf16_is_exact_where_every_partial_sum_is() -> None:
    x = torch.randint(-2, 3, (16, 64), generator=torch.Generator().manual_seed(12)).bfloat16()
    assert torch.equal(reduce(x, "sum"), x.sum(1))
    assert torch.equal(reduce(x, "total"), x.sum().expand(16))


def test_sum_with_dtype_fp32_does_not_round_to_bf16() -> None:
    x = torch.full((16, 64), 1.0 + 2.0**-7).bfloat16()
    assert torch.equal(reduce(x, "sum fp32", torch.float32), x.float().sum(1))


def test_extremes_of_bf16() -> None:
    x = matrix(13)
    assert torch.equal(reduce(x, "max"), x.max(1).values)
    assert torch.equal(reduce(x, "min"), x.min(1).values)
    assert torch.equal(reduce(x, "argmax").long(), x.float().argmax(1))
    assert torch.equal(reduce(x, "argmin").long(), x.float().argmin(1))


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=["bf16", "fp32"])
def test_extremes_of_a_row_of_nan_are_nan_without_a_warning(dtype: torch.dtype) -> None:
    x = torch.full((16, 64), float("nan"), dtype=dtype)
    assert reduce(x, "max").isnan().all()
    assert reduce(x, "min").isnan().all()


def test_cumsum_and_sort_of_bf16() -> None:
    x = torch.randint(-2, 3, (16, 64), generator=torch.Generator().manual_seed(14)).bfloat16()
    assert torch.equal(reduce(x, "cumsum"), x.float().cumsum(1).bfloat16())
    y = matrix(15)
    assert torch.equal(reduce(y, "sort"), y.sort(1).values)


@triton.jit
def _larger_magnitude(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), a, b)


@triton.jit
def _custom_reduce(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr, tl.reduce(x, 0, _larger_magnitude))


def test_a_reduction_with_the_users_function() -> None:
    x = matrix(16, 1)
    out = torch.empty(1, dtype=BF16)
    _custom_reduce[(1,)](x, out, 64)
    assert out.item() == x[0, x.float().abs().argmax()].item()
