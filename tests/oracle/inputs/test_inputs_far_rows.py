"""Caches past element 2**31 on a CPU: rows that nobody names cost nothing, and the rest is guarded as ever."""

import resource

import pytest
import torch

from attnoracle.oracle.case import LAYOUTS, Case
from attnoracle.oracle.check import check
from attnoracle.oracle.config import load
from attnoracle.oracle.faults import fault
from attnoracle.oracle.inputs import make

ID = "sparse_mqa:deepseek-v3.2:h2:q3,1:k20,9:top8:bf16:randn:{}:hugerows:s1"


@pytest.fixture(params=LAYOUTS)
def case(request) -> Case:
    return Case.parse(ID.format(request.param))


@pytest.fixture
def inputs(case):
    return make(case, load(case.geometry))


def test_the_rows_in_use_lie_past_element_2_to_the_31_and_the_others_are_no_memory(case):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inputs = make(case, load(case.geometry))
    kv, indices = inputs.tensors["kv"], inputs.tensors["indices"]
    inputs.fingerprint()
    inputs.damage()

    named = indices[(indices >= 0) & (indices < len(kv))]
    assert int(named.min()) * kv.shape[1] > 2**31
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024, "in KiB"


def test_rows_in_use_are_fingerprinted_and_guards_on_both_sides_are_watched(inputs):
    kv, guarded, before = inputs.tensors["kv"], inputs.arena.tensors["kv"], inputs.fingerprint()
    assert inputs.damage() == []
    kv[-1, 0] = 3.0
    assert inputs.fingerprint() != before and inputs.damage() == []
    guarded.buffer[guarded.begin - 1] = 0
    guarded.buffer[guarded.begin + guarded.payload] = 0
    assert [line.split("(s) ")[1].split(" overwritten")[0] for line in inputs.damage()] == [
        "before the tensor",
        "after the tensor",
    ]


def test_a_gap_between_rows_in_use_is_watched():
    case = Case.parse(ID.format("strided"))
    inputs = make(case, load(case.geometry))
    kv = inputs.tensors["kv"]
    kv.as_strided((1,), (1,), kv.storage_offset() + (len(kv) - 1) * kv.stride(0) - 1).fill_(0)
    assert len(inputs.damage()) == 1 and "gaps" in inputs.damage()[0]


def test_values_are_those_of_a_cache_in_memory(inputs, case):
    near = make(Case.parse(case.id.replace("hugerows", "highrows")), load(case.geometry))
    kv, indices = inputs.tensors["kv"], inputs.tensors["indices"]
    named = indices[(indices >= 0) & (indices < len(kv))].unique()
    assert torch.equal(kv[named], near.tensors["kv"][named - (len(kv) - len(near.tensors["kv"]))])


def test_a_product_that_wraps_is_seen(case):
    assert check(case, fault("offset-product-wraps-at-32-bits").implementation()).status == "FAIL"
