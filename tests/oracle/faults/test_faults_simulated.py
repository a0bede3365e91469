"""The simulated kernels are right before anything is planted in them."""

import pytest

from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.check import check
from attnoracle.oracle.faults.simulated import KERNELS, SIMULATED, simulated
from attnoracle.oracle.fleet.pool import cost

ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")
VARIANTS = [(operator, {}) for operator in KERNELS] + [
    (operator, sites) for operator in ATTENTION for sites in ({"splits": 3}, {"block_k": 32, "block_q": 16})
]


@pytest.mark.parametrize(
    ("operator", "sites"), VARIANTS, ids=[f"{name}-{'-'.join(sites) or 'default'}" for name, sites in VARIANTS]
)
def test_a_simulated_kernel_passes_the_verdict_on_quick_cases(operator, sites, quick_cases):
    """As it is, on all; cut into other tiles and splits, on the smallest."""
    kernel = simulated(operator, **sites)
    implementation = Implementation(f"{operator}/simulated", SIMULATED, lambda facts: None, lambda: kernel)

    cases = sorted(quick_cases(operator), key=cost)[: 3 if sites else None]
    verdicts = [check(case, implementation) for case in cases]

    assert len(verdicts) >= 3
    assert [(v.case.id, v.status, v.reason) for v in verdicts if v.status != "PASS"] == []
