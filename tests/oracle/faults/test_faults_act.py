"""Every fault of the catalogue changes something: a fault that changes nothing is none."""

import pytest

from attnoracle.oracle.audit.trial import try_fault
from attnoracle.oracle.faults import FAULTS
from attnoracle.oracle.faults.simulated import KERNELS, SIMULATED

#: What is declared of the LSE, where the fault may lie in the declaration alone.
DECLARED = ("lse_base", "empty_lse")
IN_TORCH = [fault for fault in FAULTS if fault.planted_in != "triton"]


@pytest.mark.parametrize("fault", IN_TORCH, ids=[fault.name for fault in IN_TORCH])
def test_a_fault_shows_beside_the_right_kernel(fault, acts):
    lies = any(getattr(fault.contract, name) != getattr(SIMULATED, name) for name in DECLARED)
    assert (lies and try_fault(fault, 0, "cpu").bad) or acts(fault, KERNELS[fault.operator])
