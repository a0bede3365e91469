"""Faults in the shipped Triton kernels: every edit applies and shows; one that does not apply is an error."""

import pytest

from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import FAULTS
from attnoracle.oracle.faults.edits import Edit, edited, edited_source, source_of
from attnoracle.oracle.guests.known import find

IN_TRITON = [fault for fault in FAULTS if fault.planted_in == "triton"]


@pytest.mark.skipif(availability() is not None, reason=f"Triton kernels do not run here: {availability()}")
@pytest.mark.parametrize("fault", IN_TRITON, ids=[fault.name for fault in IN_TRITON])
def test_an_edit_applies_and_shows_beside_the_shipped_kernel(fault, acts):
    right = find(f"{fault.operator}/triton")

    implementation = fault.implementation()

    assert implementation.name == f"{fault.operator}/fault-{fault.name}"
    assert implementation.contract == right.contract
    assert acts(fault, right.load())


def test_an_edit_leaves_the_shipped_sources_alone():
    edit = Edit("tiles", "LN_2 = tl.constexpr(0.6931471805599453)", "LN_2 = tl.constexpr(1.0)")
    before = source_of("tiles").read_text()

    edited("leaves-sources-alone", "dense_mha/triton", edit)

    assert source_of("tiles").read_text() == before
    assert edited_source("leaves-sources-alone", edit) != before


def test_a_snippet_that_is_gone_is_an_error_that_names_fault_and_file():
    with pytest.raises(BadInput, match=r"fault 'moved'.*once in triton_kernels/tiles\.py, found it 0 times"):
        edited("moved", "dense_mha/triton", Edit("tiles", "a line that is not there", "anything"))


def test_a_snippet_that_stands_twice_is_an_error():
    with pytest.raises(BadInput, match=r"found it [2-9]"):
        edited_source("twice", Edit("tiles", "@triton.jit", "@triton.jit "))


def test_an_unknown_kernel_file_gets_the_nearest_names():
    with pytest.raises(BadInput, match="unknown kernel source file 'tile'; nearest: tiles"):
        edited_source("misspelt", Edit("tile", "a", "b"))


def test_an_unknown_implementation_gets_the_nearest_names():
    with pytest.raises(BadInput, match="nearest: dense_mha/triton"):
        edited("misnamed", "dens_mha/triton", Edit("tiles", "LN_2 = tl", "LN_2  = tl"))
