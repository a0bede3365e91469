"""Each field of a contract loosens what it must, and nothing else."""

from dataclasses import fields

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.oracle.judge.budget import Budget, accumulated, budget
from attnoracle.oracle.judge.formats import half_ulp
from attnoracle.oracle.judge.moments import moments

TIGHT = Contract(probabilities="fp32", output="fp32")


def _budget(problem, contract: Contract, output: str = "fp32", multiplicity: float = 1.0) -> Budget:
    made = problem()
    m = moments(made.chunk, made.scale, 2.0**-8, None)  # one cell, so that moments are the same
    return budget(m, contract, output, 16, 6.0, multiplicity)


def _looser(tight: Budget, loose: Budget) -> set[str]:
    """Names of what grew; nothing may shrink."""
    grown = set()
    for field in fields(Budget):
        a, b = getattr(tight, field.name), getattr(loose, field.name)
        assert bool((b >= a * (1 - 1e-12)).all()), f"{field.name} shrank"
        if bool((b > a * (1 + 1e-9)).any()):
            grown.add(field.name)
    return grown


@pytest.mark.parametrize(
    ("changes", "grown"),
    [
        ({"probabilities": "bf16"}, {"variance", "coherent", "certain", "half", "usual"}),
        ({"scores": "bf16"}, {"variance", "certain", "half", "usual", "lse"}),
        ({"scores": "tf32"}, {"working", "certain", "half", "lse"}),
        ({"partials": "bf16"}, {"variance", "coherent", "certain", "half", "usual"}),
        ({"accumulator": "fp16"}, {"working", "certain", "half", "lse"}),
        ({"exp_error": 1e-3}, {"working", "certain", "half", "lse"}),
        ({"lse_error": 1e-3}, {"lse"}),
        ({"lse_base": "2"}, set()),
        ({"topk_order": "ascending", "deterministic": False, "index_space": "request-local"}, set()),
    ],
    ids=lambda value: "+".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_what_a_field_loosens(problem, changes, grown):
    declared = {name: getattr(TIGHT, name) for name in ("probabilities", "output")} | changes
    assert _looser(_budget(problem, TIGHT), _budget(problem, Contract(**declared))) - {"usual"} == grown - {"usual"}


def test_a_rounded_row_sum_loosens_the_lse_and_the_noise(problem):
    tight = Contract(probabilities="bf16", output="fp32")
    loose = Contract(probabilities="bf16", output="fp32", row_sum="rounded")
    assert {"variance", "lse"} <= _looser(_budget(problem, tight), _budget(problem, loose))


def test_the_output_format_alone_decides_its_rounding(problem):
    made = problem()
    wide, narrow = _budget(problem, TIGHT, "fp32"), _budget(problem, TIGHT, "bf16")
    assert _looser(wide, narrow) == {"half", "usual", "certain"}
    exact = made.out.transpose(0, 1).abs()
    assert bool((narrow.half >= half_ulp(exact, "bf16")).all())
    # The output may round to the next binade, where the spacing is twice as large, and no further.
    assert bool((narrow.half <= 2 * half_ulp(exact, "bf16")).all())


def test_copies_of_a_key_share_their_rounding(problem):
    contract = Contract(probabilities="bf16", output="fp32")
    once, often = (_budget(problem, contract, multiplicity=count) for count in (1.0, 4.0))
    own = once.variance - once.coherent
    torch.testing.assert_close(often.variance - often.coherent, 4 * own)
    assert torch.equal(once.working, often.working) and torch.equal(once.lse, often.lse)


def test_what_underflows_is_allowed_and_no_more(problem):
    """A sink far above the scores leaves weights that fp32 flushes to zero."""
    made = problem()
    m = moments(made.chunk, made.scale, 2.0**-24, torch.full((12,), 95.0))
    b = budget(m, TIGHT, "fp32", 16, 6.0, 1.0)
    assert bool((m.out.abs() < 2.0**-126).any())
    assert bool((b.working > m.out.abs()).any())
    assert float(b.working.max()) < 1e-34


@pytest.mark.parametrize("fmt", ["fp32", "fp16"])
def test_accumulated_errors_of_real_sums_stay_inside(fmt):
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[fmt]
    terms = torch.randn(300, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    total = torch.zeros(300, dtype=dtype)
    for i in range(256):
        total += terms[:, i]
    error = (total.double() - terms.double().sum(1)).abs()
    assert bool((error <= accumulated(256, fmt) * terms.double().abs().sum(1)).all())
