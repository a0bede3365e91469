"""Mends the CPU interpreter of Triton, for the kernels here and for anybody's.

With ``TRITON_INTERPRET=1`` Triton runs kernels in numpy, without a GPU. Seen in Triton 3.6 and 3.9, it computes
``+``, ``*``, ``tl.sum`` and ``tl.dot`` of bf16 on the raw bits, truncates fp32 to bf16, loses carries in fp8, and
reads the NaN codes of e4m3 as +-480. After ``mend()``

* conversions between bf16, fp16, fp32, fp64, integers, e4m3 (fn) and e5m2 agree with ``torch.Tensor.to`` bit for bit
  (e4m3 stops at 448 as compiled and as torch does since 2.13; what overflows e5m2 is infinite as in torch, where the
  compiled ``cvt.rn.satfinite`` stops at 57344);
* bf16 operations round once each, as the compiled ones do; ``tl.dot`` adds exact products in fp32;
* fp8 arithmetic, which does not compile, raises;
* NaN padding of descriptors and block pointers is NaN; atomic adds on bf16 add;
* ``tl.maximum``, ``tl.minimum`` and ``tl.clamp`` ignore NaN unless told to propagate it, as compiled;
* numpy's floating-point warnings stay off inside a launch, device functions cost less to call, and types and their
  checks cost less to build (``interpreter_speed``).

fp32 and fp16 arithmetic is left as it is: right, and more exact than a GPU where ``tl.dot`` would round fp32 operands
to TF32. A number format that has no codec here (the AMD and e4b15 forms of fp8) is left alone too.

    import os
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from attnoracle.optimized.interpreter import mend
    mend()
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .interpreter_ops import BuilderOps, LaunchOps, ReductionOps
from .interpreter_probe import failed_probe
from .interpreter_speed import SpeedOps

_MARK = "_attnoracle_mended"
_MODULE = "triton.runtime.interpreter"


class MendError(RuntimeError):
    """The interpreter cannot be mended; nothing was changed."""


@dataclass(frozen=True)
class Seam:
    """One function that is replaced: where it lives and the parameters it must have, or ``*`` for any after them."""

    owner: str
    name: str
    parameters: str
    present: str = "always"
    """``always``; ``maybe``: replaced if it is there; ``new``: added if it is not; ``spare``: only makes things faster,
    so it is left as it is where it is built otherwise."""

    @property
    def label(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def key(self) -> str:
        """What replacements call the original by."""
        return self.owner.rpartition(".")[2] if self.name == "__init__" else self.name

    def owner_in(self, interpreter: ModuleType) -> Any:
        found: Any = interpreter
        for name in filter(None, self.owner.split(".")):
            found = getattr(found, name, None)
        return found

    def mismatch(self, found: Any) -> str | None:
        """How the parameters of ``found`` differ from those expected; None if they do not."""
        got, wanted = list(inspect.signature(found).parameters), self.parameters.split()
        if got == wanted or (wanted[-1] == "*" and got[: len(wanted) - 1] == wanted[:-1]):
            return None
        return f"{self.label} takes ({', '.join(got)}), expected ({', '.join(wanted)})"


SEAMS = (
    Seam("InterpreterBuilder", "cast_impl", "self src dst_type"),
    Seam("InterpreterBuilder", "create_fp_to_fp", "self src dst_type rounding_mode"),
    Seam("InterpreterBuilder", "get_bf16", "self value", "new"),
    Seam("InterpreterBuilder", "binary_op", "self lhs rhs op"),
    Seam("InterpreterBuilder", "unary_op", "self arg op"),
    Seam("InterpreterBuilder", "ternary_op", "self lhs rhs other op"),
    Seam("InterpreterBuilder", "create_clampf", "self arg lo hi propagate_nans"),
    Seam("InterpreterBuilder", "create_maxnumf", "self lhs rhs"),
    Seam("InterpreterBuilder", "create_minnumf", "self lhs rhs"),
    Seam("InterpreterBuilder", "create_fma", "self x y z"),
    Seam("InterpreterBuilder", "create_dot", "self a b d input_precision max_num_imprecise_acc"),
    Seam("InterpreterBuilder", "create_atomic_rmw", "self rmwOp ptr val mask sem scope"),
    Seam("InterpreterBuilder", "create_descriptor_load", "self desc indices *"),
    Seam("InterpreterBuilder", "create_tensor_pointer_load", "self ptr boundary_check padding_option *", "maybe"),
    Seam("ReduceOps", "sum", "self input"),
    Seam("ReduceOps", "min_max", "self input val_reduce_op idx_reduce_op"),
    Seam("ReduceOps", "generic_reduce", "self input", "spare"),
    Seam("ScanOps", "cumsum", "self input"),
    Seam("ScanOps", "cumprod", "self input"),
    Seam("GridExecutor", "__call__", "self args_dev kwargs"),
    Seam("", "_patch_lang", "fn"),
    Seam("", "_patch_lang_tensor", "tensor scope"),
    Seam("", "_get_np_dtype", "tt_dtype", "spare"),
    Seam("tl.core.block_type", "__init__", "self element_ty shape", "spare"),
    Seam("tl.core.tensor", "__init__", "self handle type", "spare"),
    Seam("TritonSemantic", "binary_op_type_checking_impl",
         "self lhs rhs allow_lhs_ptr allow_rhs_ptr arithmetic_check div_or_mod", "spare"),
    Seam("TritonSemantic", "binary_op_sanitize_overflow_impl", "self lhs rhs binary_op", "spare"),
)  # fmt: skip

#: Builder methods that reach the seams above by name; were they to stop, the mend would miss them.
_ROUTES = {
    "binary_op": ("create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_fcmpOLT", "create_fcmpOGT",
                  "create_fcmpOEQ", "create_fcmpUNE", "create_maximumf", "create_minimumf"),
    "ternary_op": ("create_select",),
    "cast_impl": ("create_si_to_fp", "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui", "create_fp_ext",
                  "create_fp_trunc", "create_int_cast"),
}  # fmt: skip

#: Names of the interpreter that the replacements use.
_NAMES = ("TensorHandle", "_get_np_dtype", "_interpreter", "_ir", "tl", "_LangPatchScope", "interpreter_builder")


def mended() -> bool:
    """Whether ``mend()`` has done its work in this process."""
    module = sys.modules.get(_MODULE)
    return bool(getattr(module, _MARK, False))


def mend() -> None:
    """Mend Triton's interpreter in this process; a second call does nothing.

    Raises MendError, and leaves everything as it was, if Triton is not installed or does not interpret here, if it is
    not built as expected, or if a probe of the mended operations gives a wrong answer.
    """
    if mended():
        return
    interpreter = _import_interpreter()
    version = sys.modules["triton"].__version__
    for complaint in _mismatches(interpreter):
        raise MendError(
            f"Triton {version} is not built as the mend expects: {complaint}. Nothing was changed; use a Triton from "
            "3.6 to 3.9, or a newer version of this package"
        )
    undo = _replace(interpreter)
    try:
        wrong = failed_probe(interpreter)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong is not None:
        undo()
        raise MendError(f"Triton {version}, mended, gives a wrong answer: {wrong}. Nothing was changed")
    setattr(interpreter, _MARK, True)


def requested() -> bool:
    """Whether the environment asks Triton to interpret, in the spellings that Triton takes for yes."""
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in ("1", "true", "on", "yes", "y")


def interprets() -> bool:
    """Whether an imported Triton was imported interpreted, so that ``tl.sum`` and its like run in the interpreter."""
    module, standard = sys.modules.get(_MODULE), sys.modules.get("triton.language.standard")
    return module is not None and isinstance(getattr(standard, "sum", None), module.InterpretedFunction)


def _import_interpreter() -> ModuleType:
    if "triton" not in sys.modules:
        if not requested():
            raise MendError("expected TRITON_INTERPRET=1 in the environment before Triton is imported; set it first")
        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise MendError(f"Triton cannot be imported ({error}); install triton") from error
    if not interprets():
        raise MendError(
            "Triton was imported without TRITON_INTERPRET=1, and a process either compiles or interprets; start again "
            "with TRITON_INTERPRET=1 in the environment, or set it before anything imports triton"
        )
    return importlib.import_module(_MODULE)


def _mismatches(interpreter: ModuleType) -> Iterator[str]:
    """How this Triton differs from what the seams expect; empty if it does not."""
    for name in _NAMES:
        if not hasattr(interpreter, name):
            yield f"{_MODULE}.{name} is missing"
            return
    for seam in SEAMS:
        if seam.present == "spare":
            continue
        found = getattr(seam.owner_in(interpreter), seam.name, None)
        complaint = seam.mismatch(found) if found is not None else None
        if found is None and seam.present == "always":
            yield f"{seam.label} is missing"
        elif complaint is not None:
            yield complaint
    for target, callers in _ROUTES.items():
        for caller in callers:
            code = getattr(getattr(interpreter.InterpreterBuilder, caller, None), "__code__", None)
            if code is None or target not in code.co_names:
                yield f"InterpreterBuilder.{caller} does not go through {target}"
    numpy_names = {name: interpreter._get_np_dtype(getattr(interpreter.tl, name)).name
                   for name in ("bfloat16", "float8e4nv", "float8e5")}  # fmt: skip
    if numpy_names != {"bfloat16": "uint16", "float8e4nv": "uint8", "float8e5": "uint8"}:
        yield f"bf16 and fp8 are kept as {numpy_names}, expected integer codes"


def _replace(interpreter: ModuleType) -> Callable[[], None]:
    """Put the replacements in; returns what takes them out again."""
    original: dict[str, Any] = {}
    replaced: list[tuple[Any, str, Any]] = []
    builder, reductions = BuilderOps(interpreter, original), ReductionOps(interpreter, original)
    launch, speed = LaunchOps(interpreter, original), SpeedOps(interpreter, original)
    new: dict[str, Any] = {
        "__call__": _method(launch.call),
        "_patch_lang": launch.patch_lang,
        "_patch_lang_tensor": launch.patch_lang_tensor,
        "_get_np_dtype": speed.np_dtype,
        "generic_reduce": _method(speed.generic_reduce),
        "block_type": _method(speed.block_type),
        "tensor": _method(speed.tensor_of),
        "binary_op_type_checking_impl": _method(speed.operands),
        "binary_op_sanitize_overflow_impl": _method(speed.overflow),
    }
    for seam in SEAMS:
        owner = seam.owner_in(interpreter)
        before = getattr(owner, seam.name, None)
        if before is None and seam.present in ("maybe", "spare"):
            continue
        if seam.present == "spare" and seam.mismatch(before) is not None:
            continue
        source = builder if seam.owner == "InterpreterBuilder" else reductions
        original[seam.key] = before
        replaced.append((owner, seam.name, before))
        setattr(owner, seam.name, new.get(seam.key) or _method(getattr(source, seam.name)))

    def undo() -> None:
        for owner, name, before in replaced:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A bound replacement as a method of the class it is put into."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    return method
