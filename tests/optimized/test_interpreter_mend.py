"""When the interpreter may be mended, and that a refusal changes nothing. Each case needs a process of its own."""

import sys
from collections.abc import Callable

import pytest

from attnoracle.optimized import triton_runtime

if sys.platform != "linux" or triton_runtime.availability() == "triton is not installed; pip install triton":
    pytest.skip("no Triton to import in a fresh process", allow_module_level=True)

Run = Callable[..., str]


def test_prepare_works_after_torch_and_before_its_compiler(run: Run) -> None:
    printed = run("""
        import os, sys, torch
        from attnoracle.optimized import interpreter, triton_runtime
        assert "triton" not in sys.modules, "importing torch or this package must not import triton"
        assert triton_runtime.availability() is None and triton_runtime.interpreted() and not interpreter.mended()
        triton_runtime.prepare()
        assert interpreter.mended() and triton_runtime.interpreted() and os.environ["TRITON_INTERPRET"] == "1"
        builder = sys.modules["triton.runtime.interpreter"].InterpreterBuilder
        before = dict(vars(builder))
        interpreter.mend()
        triton_runtime.prepare()
        assert dict(vars(builder)) == before, "a second mend must change nothing"
        import torch._inductor
        print(triton_runtime.availability())
    """)
    assert printed.strip() == "None"


def test_a_compiled_triton_is_refused(run: Run) -> None:
    printed = run("""
        import triton
        from attnoracle.optimized import interpreter, triton_runtime
        assert not triton_runtime.interpreted() and not interpreter.mended()
        for refused in (triton_runtime.prepare, interpreter.mend):
            try:
                refused()
            except RuntimeError as error:
                print(type(error).__name__, error)
    """)
    unavailable, error = printed.splitlines()
    assert unavailable.startswith("TritonUnavailable triton was imported without TRITON_INTERPRET=1")
    assert error.startswith("MendError Triton was imported without TRITON_INTERPRET=1")


def test_setting_the_variable_too_late_is_refused(run: Run) -> None:
    printed = run("""
        import triton, os
        os.environ["TRITON_INTERPRET"] = "1"
        from attnoracle.optimized import interpreter
        try:
            interpreter.mend()
        except interpreter.MendError as error:
            print(error)
    """)
    assert "before anything imports triton" in printed


def test_mend_does_not_import_a_triton_that_would_compile(run: Run) -> None:
    printed = run("""
        import sys
        from attnoracle.optimized import interpreter
        try:
            interpreter.mend()
        except interpreter.MendError as error:
            print(error, "triton" in sys.modules)
    """)
    assert printed.strip() == (
        "expected TRITON_INTERPRET=1 in the environment before Triton is imported; set it first False"
    )


REFUSALS = {
    "a parameter gone": (
        "builder.create_dot = lambda self, a, b, d, input_precision: None",
        "InterpreterBuilder.create_dot takes (self, a, b, d, input_precision), expected (self, a, b, d, "
        "input_precision, max_num_imprecise_acc)",
    ),
    "a method gone": ("del builder.cast_impl", "InterpreterBuilder.cast_impl is missing"),
    "a class gone": ("del module.ReduceOps", "ReduceOps.sum is missing"),
    "a way around": (
        "builder.create_fadd = lambda self, lhs, rhs: module.TensorHandle(lhs.data + rhs.data, lhs.dtype)",
        "InterpreterBuilder.create_fadd does not go through binary_op",
    ),
    "other storage": (
        "kept = module._get_np_dtype; module._get_np_dtype = "
        "lambda t: numpy.dtype('float32') if t == module.tl.bfloat16 else kept(t)",
        "bf16 and fp8 are kept as",
    ),
    "a wrong answer": (
        "builder.create_fmul = lambda self, lhs, rhs: self.binary_op(lhs, lhs, numpy.add)",
        "gives a wrong answer: bf16 *: expected 16656, got 16576",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_triton_built_otherwise_is_refused_by_name_and_left_alone(case: str, run: Run) -> None:
    change, message = REFUSALS[case]
    printed = run(
        f"""
        import numpy, triton
        import triton.runtime.interpreter as module
        from attnoracle.optimized import interpreter
        builder = module.InterpreterBuilder
        {change}
        def state():
            owners = [builder, module.ScanOps, module.GridExecutor, getattr(module, "ReduceOps", module.ScanOps)]
            return [dict(vars(owner)) for owner in owners], module._patch_lang
        before = state()
        try:
            interpreter.mend()
        except interpreter.MendError as error:
            print(error)
        assert state() == before and not interpreter.mended()
        """,
        TRITON_INTERPRET="1",
    )
    assert message in printed
    assert printed.startswith("Triton 3.")
