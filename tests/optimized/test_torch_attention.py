"""torch's attention kernels against the formula in fp64, and the conventions their contracts declare."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from attnoracle.optimized.implementation import Implementation
from attnoracle.optimized.torch_kernels import IMPLEMENTATIONS
from attnoracle.oracle.guests.known import find

LENGTHS = {"ragged": ((5, 3, 1), (9, 3, 40)), "fewer keys": ((7, 4), (4, 4)), "no queries": ((0, 6), (8, 6))}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SCALE = 0.2


def facts(
    operator: str, dtype: str, q_lens: tuple[int, ...], k_lens: tuple[int, ...], d: int, v: int
) -> dict[str, object]:
    return {
        "operator": operator, "device": "cpu", "capability": None, "interpreted": True, "dtype": dtype, "heads": 2,
        "d": d, "v": v, "c": 32, "r": 16, "k": 12, "i": 4, "e": 32, "q_lens": q_lens, "k_lens": k_lens, "causal": True,
        "layout": "contiguous", "options": (),
    }  # fmt: skip


def prefix(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed(
    dtype: torch.dtype, q_lens: tuple[int, ...], k_lens: tuple[int, ...], d: int, v: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(21)
    sizes = {"q": (sum(q_lens), 2, d), "k": (sum(k_lens), 2, d), "v": (sum(k_lens), 2, v)}
    inputs = {name: torch.randn(size, generator=generator).to(dtype) for name, size in sizes.items()}
    return inputs | {"cu_q": prefix(q_lens), "cu_k": prefix(k_lens)}


def requests(inputs: dict[str, torch.Tensor]) -> Iterator[tuple[int, slice, slice]]:
    q, k = inputs["cu_q"].tolist(), inputs["cu_k"].tolist()
    for index in range(len(q) - 1):
        yield index, slice(q[index], q[index + 1]), slice(k[index], k[index + 1])


def exact(
    inputs: dict[str, torch.Tensor], seen: dict[int, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse in fp64; causal, bottom-right; ``seen`` masks further, a request."""
    q, k, v = (inputs[name].double() for name in "qkv")
    out, lse = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64), torch.zeros(q.shape[:2], dtype=torch.float64)
    for index, rows, keys in requests(inputs):
        scores = torch.einsum("shd,thd->sht", q[rows], k[keys]) * SCALE
        queries, count = scores.shape[0], scores.shape[2]
        allowed = torch.arange(count) <= torch.arange(queries)[:, None] + count - queries
        if seen is not None:
            allowed &= seen[index]
        scores = scores.masked_fill(~allowed[:, None], -math.inf)
        out[rows] = torch.einsum("sht,thd->shd", scores.softmax(-1).nan_to_num(), v[keys])
        lse[rows] = scores.logsumexp(-1)
    return out, lse


def bound(inputs: dict[str, torch.Tensor], dtype: str) -> float:
    """Roundings of P and of the output, relative to the largest value; fp32 sums leave a few of their own."""
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-18}[dtype]
    return 2 * unit * float(inputs["v"].abs().max())


def assert_declared(implementation: Implementation, inputs: dict[str, torch.Tensor], outputs: tuple[torch.Tensor, ...],
                    expected: tuple[torch.Tensor, torch.Tensor], dtype: str) -> None:  # fmt: skip
    """Outputs where a query has keys, and what the contract declares where it has none."""
    contract, (out, lse) = implementation.contract, expected
    empty = lse.isneginf()
    assert outputs[0].dtype == inputs["q"].dtype
    assert contract.empty_out == "zero"
    assert (outputs[0].double() - out).abs().max() <= bound(inputs, dtype)
    assert len(outputs) == (1 if contract.lse_base is None else 2)
    if contract.lse_base is not None:
        assert contract.lse_base == "e"
        assert outputs[1].dtype == torch.float32
        error = (outputs[1].double() - lse)[~empty].abs()
        assert (error <= contract.exp_error + 2.0**-20 * (1 + lse[~empty].abs())).all()
        if contract.empty_lse == "-inf":
            assert outputs[1][empty].isneginf().all()


DENSE = [
    one.name
    for one in IMPLEMENTATIONS
    if one.operator == "dense_mha" and one.name.split("-")[-1] not in ("cuda", "efficient", "cudnn")
]


def runnable(name: str) -> Iterator[tuple[str, str, int, int]]:
    for dtype in DTYPES:
        for d, v in ((64, 64), (48, 32)):
            for lengths, (q_lens, k_lens) in LENGTHS.items():
                if find(name).supports(facts(name.split("/")[0], dtype, q_lens, k_lens, d, v)) is None:
                    yield dtype, lengths, d, v


@pytest.mark.parametrize(
    ("name", "dtype", "lengths", "d", "v"), [(name, *case) for name in DENSE for case in runnable(name)]
)
def test_dense_attention_holds_its_contract(name: str, dtype: str, lengths: str, d: int, v: int) -> None:
    inputs = packed(DTYPES[dtype], *LENGTHS[lengths], d, v)
    outputs = find(name).prepare(**inputs, scale=SCALE)()
    assert_declared(find(name), inputs, outputs, exact(inputs), dtype)


@pytest.mark.parametrize("name", DENSE)
def test_every_dense_kernel_of_the_cpu_runs_somewhere(name: str) -> None:
    assert list(runnable(name))


def words_of(seen: dict[int, torch.Tensor], seed: int) -> torch.Tensor:
    """The masks as int32 words, garbage in every bit and row that no request reads."""
    rows, words = max(m.shape[0] for m in seen.values()) + 3, max(m.shape[1] for m in seen.values()) // 32 + 2
    bits = torch.rand(len(seen), rows, words * 32, generator=torch.Generator().manual_seed(seed)) < 0.5
    for index, mask in seen.items():
        bits[index, : mask.shape[0], : mask.shape[1]] = mask
    place = torch.arange(32, dtype=torch.int64)
    packed_words = (bits.view(len(seen), rows, words, 32).long() << place).sum(-1)
    return packed_words.to(torch.int32)


def masked_inputs(dtype: str, d: int, v: int) -> tuple[dict[str, torch.Tensor], dict[int, torch.Tensor]]:
    inputs = packed(DTYPES[dtype], *LENGTHS["ragged"], d, v)
    generator = torch.Generator().manual_seed(22)
    shapes = {i: (rows.stop - rows.start, keys.stop - keys.start) for i, rows, keys in requests(inputs)}
    seen = {i: torch.rand(shape, generator=generator) < 0.6 for i, shape in shapes.items()}
    seen[0][2] = False  # a row that sees nothing
    return inputs, seen


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_attention_reads_the_packed_mask(dtype: str) -> None:
    inputs, seen = masked_inputs(dtype, 48, 32)
    implementation = find("masked_mha/sdpa-math")
    outputs = implementation.prepare(**inputs, mask=words_of(seen, 23), scale=SCALE)()
    assert_declared(implementation, inputs, outputs, exact(inputs, seen), dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_flex_attention_reads_the_packed_mask() -> None:
    implementation = find("masked_mha/flex")
    reason = implementation.supports(facts("masked_mha", "bf16", *LENGTHS["ragged"], 48, 32))
    if reason is not None:
        pytest.skip(reason)
    inputs, seen = masked_inputs("bf16", 48, 32)
    words = words_of(seen, 23)
    run = implementation.prepare(**inputs, mask=words, scale=SCALE)
    assert_declared(implementation, inputs, run(), exact(inputs, seen), "bf16")

    kernels = counters["stats"]["unique_graphs"]
    inputs["q"].copy_(-inputs["q"])  # values are read by every run
    assert_declared(implementation, inputs, run(), exact(inputs, seen), "bf16")
    other = {index: ~rows for index, rows in seen.items()}
    words.copy_(words_of(other, 23))  # the mask is planned: only a new plan sees the change
    assert_declared(implementation, inputs, run(), exact(inputs, seen), "bf16")
    run = implementation.prepare(**inputs, mask=words, scale=SCALE)
    assert_declared(implementation, inputs, run(), exact(inputs, other), "bf16")
    assert counters["stats"]["unique_graphs"] == kernels, "another mask of the same shape compiled another kernel"


def test_flash_on_the_cpu_has_the_fast_exp_that_it_declares() -> None:
    """One query weighs 2047 equal keys against its own maximum: the LSE shows the relative error of exp(-x)."""
    x = torch.arange(2048) / 512.0
    keys = torch.zeros(2048, 1, 64)
    keys[1:, 0, :2] = -1
    coarse = torch.floor(x * 8) / 8
    q = torch.zeros(2048, 1, 64)
    q[:, 0, 0], q[:, 0, 1] = coarse, x - coarse
    implementation = find("dense_mha/sdpa-flash")
    inputs = {"q": q.half(), "k": keys.half(), "v": torch.zeros(2048, 1, 64).half()}
    run = implementation.prepare(**inputs, cu_q=prefix((2048,)), cu_k=prefix((2048,)), scale=1.0, causal=False)
    error = (run()[1][:, 0].double() - torch.log1p(2047 * torch.exp(-x.double()))).abs().max()
    assert error <= implementation.contract.exp_error


def test_kernels_that_cannot_run_say_why() -> None:
    square = ((4,), (4,))
    assert "wide as queries" in str(
        find("dense_mha/sdpa-flash").supports(facts("dense_mha", "bf16", *square, 192, 128))
    )
    no_keys = facts("dense_mha", "bf16", (4,), (0,), 64, 64)
    assert "ends the process" in str(find("dense_mha/sdpa-flash").supports(no_keys))
    for name in ("sdpa-efficient", "sdpa-cudnn", "sdpa-flash-cuda"):
        assert "needs a CUDA device" in str(
            find(f"dense_mha/{name}").supports(facts("dense_mha", "bf16", *square, 64, 64))
        )


def test_tf32_and_bf16_shortcuts_are_pinned_off_and_put_back() -> None:
    from attnoracle.optimized.torch_kernels.precision import exact_fp32

    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        inside = exact_fp32(lambda: [backend.fp32_precision for backend in backends])()
        after = [backend.fp32_precision for backend in backends]
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value
    assert inside == ["ieee", "ieee"]
    assert after == ["tf32", "tf32"]
