"""Every fault of the catalogue changes something: a fault that changes nothing is none."""

import pytest

from attnoracle.oracle.faults import FAULTS
from attnoracle.oracle.faults.simulated import KERNELS

IN_TORCH = [fault for fault in FAULTS if fault.planted_in != "triton"]


@pytest.mark.parametrize("fault", IN_TORCH, ids=[fault.name for fault in IN_TORCH])
def test_a_fault_shows_beside_the_right_kernel(fault, acts):
    assert acts(fault, KERNELS[fault.operator])
