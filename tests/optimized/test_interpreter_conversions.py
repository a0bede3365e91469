"""Conversions in the mended interpreter, bit for bit against torch: every code, every midpoint, every carry."""

import itertools

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

SMALL = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
WIDE = {"fp32": torch.float32, "fp64": torch.float64}
FLOATS = SMALL | WIDE
INTS = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _convert(x_ptr, out_ptr, count, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    y = x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING)
    tl.store(out_ptr + at, y, mask=at < count)


def convert(x: torch.Tensor, dtype: torch.dtype, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    _convert[(triton.cdiv(x.numel(), 8192),)](x, out, x.numel(), rounding, 8192)
    return out


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(BITS[x.element_size()])


def torch_convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """torch's own conversion; before 2.13 it gave NaN instead of 448 where e4m3 overflows, hence the clamp."""
    if dtype == torch.float8_e4m3fn:
        x = torch.where(x.isnan(), x, x.clamp(-448, 448))
    return x.to(dtype)


def every_code(name: str) -> torch.Tensor:
    dtype = SMALL[name]
    count = 1 << (8 * dtype.itemsize)
    return torch.arange(count, dtype=torch.int32).to(BITS[dtype.itemsize]).view(dtype)


def around_every_code(name: str) -> torch.Tensor:
    """fp32 values where rounding to ``name`` is decided: codes, midpoints, what overflows, and one ulp to each side."""
    values = every_code(name).double()
    values = values[values.isfinite() & (values >= 0)].unique()
    beyond = 2 * values[-1] - values[-2]
    values = torch.cat([values, torch.stack([beyond, 2 * beyond])])
    centres = torch.cat([values, (values[1:] + values[:-1]) / 2]).float()
    ends = torch.tensor([float("inf"), torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny, 2.0**-149, 0.0])
    up, down = torch.tensor(float("inf")), torch.tensor(0.0)
    all_values = torch.cat([centres, torch.nextafter(centres, up), torch.nextafter(centres, down), ends])
    nans = torch.tensor([0x7FC00000, 0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    positive = torch.cat([all_values, nans])
    return torch.cat([positive, -positive])


def assert_same(got: torch.Tensor, expected: torch.Tensor, source: torch.Tensor) -> None:
    """Equal bits, or NaN where NaN is expected; no other bit pattern is excused."""
    got_nan, nan = got.double().isnan(), expected.double().isnan()
    wrong = torch.where(nan, ~got_nan, bits(got) != bits(expected))
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} differ; first: {source[wrong][0].item()!r} gave "
        f"{got[wrong][0].item()!r}, expected {expected[wrong][0].item()!r}"
    )


@pytest.mark.parametrize(("source", "target"), [pair for pair in itertools.product(SMALL, FLOATS) if len({*pair}) == 2])
def test_every_code_converts_as_in_torch(source: str, target: str) -> None:
    x = every_code(source)
    assert_same(convert(x, FLOATS[target]), torch_convert(x.float(), FLOATS[target]), x)


@pytest.mark.parametrize("target", SMALL)
def test_fp32_rounds_as_in_torch_around_every_code(target: str) -> None:
    x = around_every_code(target)
    assert_same(convert(x, SMALL[target]), torch_convert(x, SMALL[target]), x)


@pytest.mark.parametrize("target", SMALL)
def test_random_fp32_bits_round_as_in_torch(target: str) -> None:
    x = torch.randint(-(2**31), 2**31, (1 << 18,), generator=torch.Generator().manual_seed(7)).int().view(torch.float32)
    assert_same(convert(x, SMALL[target]), torch_convert(x, SMALL[target]), x)


@pytest.mark.parametrize("target", ["bf16", "e4m3", "e5m2", "fp32"])
def test_fp64_rounds_as_in_torch(target: str) -> None:
    generator = torch.Generator().manual_seed(8)
    scale = torch.exp2(torch.randint(-160, 140, (1 << 16,), generator=generator).double())
    x = torch.randn(1 << 16, generator=generator, dtype=torch.float64) * scale
    x = torch.cat([x, around_every_code("bf16").double()])
    assert_same(convert(x, FLOATS[target]), torch_convert(x, FLOATS[target]), x)


@pytest.mark.parametrize("target", ["bf16", "fp16"])
def test_rounding_toward_zero_keeps_the_nearest_code_below(target: str) -> None:
    x = around_every_code(target)
    x = x[x.isfinite()]
    near = x.to(SMALL[target])
    step_back = near.double().abs() > x.double().abs()
    assert_same(convert(x, SMALL[target], "rtz"), (bits(near) - step_back.to(torch.int16)).view(SMALL[target]), x)


@pytest.mark.parametrize("source", INTS)
def test_integers_round_to_bf16_as_in_torch(source: str) -> None:
    info = torch.iinfo(INTS[source])
    generator = torch.Generator().manual_seed(9)
    x = torch.randint(info.min, info.max, (4096,), generator=generator, dtype=INTS[source])
    near = torch.tensor([n for k in range(8, 62) for n in (2**k - 1, 2**k, 2**k + 1, 2**k + 2 ** (k - 8))])
    near = torch.cat([near, -near])
    x = torch.cat([x, near[(near >= info.min) & (near <= info.max)].to(INTS[source])])
    assert_same(convert(x, torch.bfloat16), x.to(torch.bfloat16), x)


@pytest.mark.parametrize("target", ["int16", "int32", "int64"])
def test_bf16_truncates_to_integers_as_in_torch(target: str) -> None:
    x = every_code("bf16")
    x = x[x.float().abs() < torch.iinfo(INTS[target]).max / 2]
    assert torch.equal(convert(x, INTS[target]), x.to(INTS[target]))


def test_what_fp8_has_no_code_for_is_as_in_pytorch() -> None:
    x = torch.tensor([448.0, 464.0, 464.1, 1e9, float("inf"), -465.0])
    e4m3 = bits(convert(x, torch.float8_e4m3fn)).tolist()
    assert e4m3 == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE]
    y = torch.tensor([57344.0, 61439.0, 61440.0, 1e9, float("-inf")])
    assert bits(convert(y, torch.float8_e5m2)).tolist() == [0x7B, 0x7B, 0x7C, 0x7C, 0xFC]


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(SMALL, 2)))
def test_a_round_trip_through_a_wider_format_keeps_every_code(source: str, target: str) -> None:
    x = every_code(source)
    lossless = torch.equal(x.float().nan_to_num(), torch_convert(x.float(), SMALL[target]).float().nan_to_num())
    back = convert(convert(x, SMALL[target]), SMALL[source])
    if lossless:
        assert_same(back, x, x)
    else:
        there = torch_convert(x.float(), SMALL[target])
        assert_same(back, torch_convert(there.float(), SMALL[source]), x)
