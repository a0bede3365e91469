"""Arithmetic in the mended interpreter: bf16 rounded once an operation, fp8 decoded, dots and atomics."""

from fractions import Fraction

import numpy as np
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
SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.3895e38, -3.3895e38, 1e-40, -1e-40, 2.0**-133, 256.0, 1.0078125]
SPECIAL += [float("inf"), -float("inf"), float("nan")]


@triton.jit
def _binary(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "propagating":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "less":
        z = tl.where(x < y, 1.0, 0.0)
    elif OP == "equal":
        z = (x == y).to(tl.bfloat16)
    elif OP == "unequal":
        z = (x != y).to(tl.float32)
    elif OP == "select":
        z = tl.where(x > y, x, y)
    elif OP == "clamp":
        z = tl.clamp(x, -tl.abs(y), tl.abs(y))
    elif OP == "constant":
        z = x * 2.0 - 0.5
    tl.store(out_ptr + at, z)


EXPECTED = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "propagating": torch.maximum,
    "less": lambda x, y: (x < y).float(),
    "equal": lambda x, y: (x == y).float(),
    "unequal": lambda x, y: (x != y).float(),
    "select": lambda x, y: torch.where(x > y, x, y),
    "constant": lambda x, y: (x * 2).bfloat16().float() - 0.5,
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of 128 bf16 values, the special ones among them."""
    codes = torch.randint(-(2**15), 2**15, (128 - len(SPECIAL),), generator=torch.Generator().manual_seed(3))
    values = torch.cat([torch.tensor(SPECIAL).bfloat16(), codes.to(torch.int16).view(BF16)])
    return values.repeat_interleave(128), values.repeat(128)


def assert_equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal values, NaN where NaN is expected; zeros may differ in sign."""
    same = (got == expected) | (got.isnan() & expected.isnan())
    assert same.all(), f"{int((~same).sum())} differ; first: got {got[~same][0]}, expected {expected[~same][0]}"


@pytest.mark.parametrize("operation", EXPECTED)
def test_bf16_operations_round_once(operation: str) -> None:
    x, y = operands()
    out = torch.empty(x.shape, dtype=BF16)
    _binary[(4,)](x, y, out, operation, 4096)
    assert_equal(out, EXPECTED[operation](x.float(), y.float()).bfloat16())


def test_division_of_bf16_is_fp32() -> None:
    x, y = operands()
    out = torch.empty(x.shape, dtype=torch.float32)
    _binary[(4,)](x, y, out, "div", 4096)
    assert_equal(out, x.float() / y.float())


def test_clamp_ignores_nan_as_the_compiled_one_does() -> None:
    x, y = operands()
    usable = ~y.isnan()
    out = torch.empty(x.shape, dtype=BF16)
    _binary[(4,)](x, y, out, "clamp", 4096)
    bound = y.float().abs()
    assert_equal(out[usable], torch.fmin(torch.fmax(x.float(), -bound), bound).bfloat16()[usable])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_fp8_arithmetic_is_refused(dtype: torch.dtype) -> None:
    x = torch.ones(16).to(dtype)
    with pytest.raises(triton.runtime.errors.InterpreterError, match="Triton does not compile it"):
        _binary[(1,)](x, x, torch.empty(16), "add", 16)


@triton.jit
def _fma(x_ptr, y_ptr, z_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.fma(tl.load(x_ptr + at), tl.load(y_ptr + at), tl.load(z_ptr + at)))


def nearest_bf16(exact: Fraction) -> float:
    """The bf16 value nearest to a rational, ties to even, by search: no rounding but this one."""
    below = torch.tensor(float(exact)).bfloat16()
    code = int(below.view(torch.int16)) & 0x7FFF
    codes = torch.tensor([max(code - 1, 0), code, code + 1], dtype=torch.int16).view(BF16).double().tolist()
    sign = -1 if exact < 0 else 1
    order = sorted(range(3), key=lambda i: (abs(Fraction(codes[i]) - abs(exact)), (code - 1 + i) & 1))
    return sign * codes[order[0]]


def test_bf16_fma_rounds_once() -> None:
    generator = torch.Generator().manual_seed(5)
    x, y, z = (torch.randn(512, generator=generator).bfloat16() for _ in range(3))
    tie = 1.0 + 2.0**-7  # tie * tie has a bit just below bf16; a tiny addend decides which way it goes
    x[:4], y[:4] = tie, torch.tensor([1.5, 1.5, tie, tie])
    z[:4] = torch.tensor([2.0**-100, -(2.0**-100), 2.0**-60, -(2.0**-60)])
    out = torch.empty(512, dtype=BF16)
    _fma[(1,)](x, y, z, out, 512)
    exact = [
        Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
    ]
    assert out.tolist() == [nearest_bf16(value) for value in exact]


def test_infinities_subtract_to_nan_without_a_warning() -> None:
    x = torch.full((16,), float("inf"))
    out = torch.empty(16)
    _binary[(1,)](x, x, out, "sub", 16)
    assert out.isnan().all()


@triton.jit
def _dot(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + n[:, None] * K + k[None, :])
    acc = tl.full((M, N), 1.0, tl.float32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(a, tl.trans(b), acc))


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(a.shape[0], b.shape[0])
    _dot[(1,)](a, b, out, a.shape[0], b.shape[0], a.shape[1])
    return out


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_dot_adds_exact_products_in_fp32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(17)
    a, b = (torch.randn(n, 128, generator=generator).to(dtype) for n in (16, 32))
    exact = 1.0 + a.double() @ b.double().T
    scale = 1.0 + a.double().abs() @ b.double().abs().T
    assert (dot(a, b).double() - exact).abs().le(128 * 2.0**-24 * scale).all()


def test_dot_of_small_integers_is_exact() -> None:
    generator = torch.Generator().manual_seed(18)
    a, b = (torch.randint(-8, 9, (n, 512), generator=generator).bfloat16() for n in (16, 64))
    assert torch.equal(dot(a, b), 1.0 + a.float() @ b.float().T)


@pytest.mark.parametrize("dtype", [BF16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_one_nan_reaches_exactly_its_row(dtype: torch.dtype) -> None:
    a, b = torch.ones(16, 32), torch.ones(16, 32)
    a[3, 7] = float("nan")
    assert torch.equal(dot(a.to(dtype), b.to(dtype)).isnan(), (torch.arange(16) == 3)[:, None].expand(16, 16))


@triton.jit
def _scatter_add(x_ptr, at_ptr, out_ptr, before_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.load(at_ptr + lane)
    before = tl.atomic_add(out_ptr + at, tl.load(x_ptr + lane), mask=at >= 0)
    tl.store(before_ptr + lane, before, mask=at >= 0)


def test_atomic_adds_of_bf16_to_one_place_all_count() -> None:
    x = torch.arange(1, 17).bfloat16()
    at = torch.tensor([0, 1] * 7 + [-1, -1], dtype=torch.int32)
    out, before = torch.ones(2, dtype=BF16), torch.full((16,), -1.0, dtype=BF16)
    _scatter_add[(1,)](x, at, out, before, 16)
    assert out.tolist() == [1.0 + 49, 1.0 + 56]
    assert before[0] == 1.0
    assert before[2] == 1.0 + 1
    assert before[14] == -1.0


@triton.jit
def _padded_load(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    desc = tl.make_tensor_descriptor(x_ptr, [count], [1], [BLOCK], padding_option="nan")
    tl.store(out_ptr + tl.arange(0, BLOCK), desc.load([0]).to(tl.float32))


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_nan_padding_of_a_descriptor_is_nan(dtype: torch.dtype) -> None:
    x, out = torch.zeros(64, dtype=dtype)[:48], torch.zeros(64)
    _padded_load[(1,)](x, out, 40, 64)
    assert np.array_equal(out.isnan().numpy(), np.arange(64) >= 40)


@triton.jit
def _scalar_condition(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr)
    tl.store(out_ptr + at, tl.where((at < 3) & (x > 0), 1, 0))


@pytest.mark.parametrize("x", [0.5, -0.5])
def test_a_scalar_comparison_spreads_over_a_block_as_a_condition(x):
    """Triton's own interpreter spreads it as a number of the type it compared, and refuses the conjunction."""
    out = torch.empty(4, dtype=torch.int32)
    _scalar_condition[(1,)](torch.tensor([x]), out, 4)
    assert out.tolist() == ([1, 1, 1, 0] if x > 0 else [0, 0, 0, 0])
