"""Whether a fault shows: its kernel and the right one on the same inputs, compared bit for bit, memory included."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from attnoracle.oracle.audit.trial import candidates_first
from attnoracle.oracle.calling.memory import guarded_allocations
from attnoracle.oracle.calling.once import answer_of
from attnoracle.oracle.config import load
from attnoracle.oracle.faults.escapes import cases_for
from attnoracle.oracle.faults.simulated import LAYOUTS
from attnoracle.oracle.inputs import make
from attnoracle.oracle.operators import operator
from attnoracle.oracle.suites import suite

GEOMETRY = "deepseek-v3.2"


def same(first, second) -> bool:
    """Equal outputs: number, shapes, dtypes and bits, any NaN equal to any other."""
    return len(first) == len(second) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_plain(a), _plain(b))
        for a, b in zip(first, second, strict=True)
    )


def _plain(tensor):
    """Without NaN; codes as bytes, since torch compares no float8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.nan_to_num(1e30)


def ran(kernel, inputs):
    """Copies of what a kernel returned, or of what it wrote to, as far as that is memory."""
    op = operator(inputs.case.operator)
    outputs = kernel(**inputs.kwargs())
    return tuple(x.clone() for x in answer_of(op, inputs, outputs))


def cases(fault) -> Iterator:
    """Cases for the fault, likeliest first: random normal, its own kind, the operator's quick suite, the first of an
    audit, other seeds."""
    likeliest = cases_for(fault)[0]
    if fault.operator in BY_QUERY:
        yield replace(likeliest, q_lens=tuple(min(q, 3) for q in likeliest.q_lens))
    yield likeliest
    fields = dict(option.split("=") for option in fault.options if "=" in option)
    changes = {name: int(value) if name == "heads" else value for name, value in fields.items() if name in CHANGED}
    options = {option for option in fault.options if option == "noncausal"}
    if fault.operator in LAYOUTS:
        yield from (case for case in suite("quick") if case.operator == fault.operator)
    found = [case for case in suite("quick") if (case.operator, case.geometry) == (fault.operator, GEOMETRY)]
    for case in sorted(found, key=lambda case: case.kind != fields.get("kind")):
        yield replace(case, options=tuple(sorted(options | set(case.options))), **changes)
    yield candidates_first(fault, 0)
    yield from (likeliest.with_seed(seed) for seed in range(10, 20))


#: Kernels that take each query by itself: most faults show on a few.
BY_QUERY = ("sparse_mqa", "topk_select")
CHANGED = ("dtype", "heads", "layout")


def shows(faulty, right, case) -> bool:
    """Whether the faulty kernel differs from the right one, from itself, or in what it does to memory."""
    expected, writes = right_answer(right, case), operator(case.operator).writes
    for fill in ("nan", "stale"):
        inputs = make(case, load(case.geometry))
        before = inputs.fingerprint()
        with guarded_allocations(fill) as memory:
            answer = ran(faulty, inputs)
        after = inputs.fingerprint()
        changed = any(before[name] != after[name] for name in before if name not in writes)
        if not same(answer, expected) or memory.damage() or inputs.damage() or changed:
            return True
    return False


@cache
def right_answer(right, case):
    """Outputs of the right kernel on a case."""
    with guarded_allocations("stale"):
        return ran(right, make(case, load(case.geometry)))


def shows_in_sequence(faulty, right, case) -> bool:
    """Whether a second call on the same memory, every value changed, is wrong or spoils the first answer."""
    inputs, other = (make(seeded, load(case.geometry)).kwargs() for seeded in (case, case.with_seed(case.seed + 1)))
    first = faulty(**inputs)
    kept = tuple(x.clone() for x in first)
    for name, value in other.items():
        if isinstance(value, torch.Tensor):
            inputs[name].copy_(value)
    if "cu_k" in inputs:
        inputs["cu_k"][1:] -= 1
    if "scale" in inputs:
        inputs["scale"] *= 1.25
    return not (same(faulty(**inputs), right(**inputs)) and same(first, kept))


def shows_in_large_cache(faulty, right, folder) -> bool:
    """Whether rows past element 2**31 of a cache are read right; the cache is a sparse file, nearly all of it holes."""
    width, n = 576, 2**31 // 576 + 64
    bytes_ = torch.from_file(str(folder / "cache"), shared=True, size=2 * n * width, dtype=torch.uint8)
    kv = bytes_.view(torch.bfloat16).view(n, width)
    random = torch.Generator().manual_seed(0)
    kv[-16:] = torch.randn(16, width, generator=random).bfloat16()
    q = torch.randn(2, 16, width, generator=random).bfloat16()
    indices = torch.arange(n - 16, n, dtype=torch.int32).repeat(2, 1)
    arguments = {"q": q, "kv": kv, "indices": indices, "scale": 0.07, "value_dim": 512}
    return not same(faulty(**arguments), right(**arguments))


@pytest.fixture
def acts(tmp_path):
    """A function from a fault and the right kernel of its operator to whether the fault shows on some input."""

    def found(fault, right) -> bool:
        faulty = fault.implementation().load()
        quantised = {"ds-mla", "dtype=e4m3"} & set(fault.options)
        if "hugerows" in fault.options and (quantised or fault.operator != "sparse_mqa"):
            case = cases_for(fault)[0]
            return shows(faulty, right, replace(case, options=tuple(sorted({*case.options, "hugerows"}))))
        if "hugerows" in fault.options:
            return shows_in_large_cache(faulty, right, tmp_path)
        if "sequence" in fault.options:
            return shows_in_sequence(faulty, right, next(cases(fault)))
        return any(shows(faulty, right, case) for case in cases(fault))

    return found


@pytest.fixture
def quick_cases():
    """The quick suite of one geometry, by operator."""

    def of(operator):
        return [case for case in suite("quick") if (case.operator, case.geometry) == (operator, GEOMETRY)]

    return of
