"""What the mended interpreter does for less: the same answers with less Python on the way to numpy.

Over the kernels of this package most of an interpreted launch went into building types and checking them anew at every
operation, a quarter of it for a check of integer overflow whose outcome Triton drops unless its interpreter is in debug
mode. Nothing here changes a number, a type or an error; what is not plain goes to the method that was replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Method = Callable[..., Any]

#: Types for which an operation on two of a kind is computed in that kind, whatever the operation.
_CLOSED = frozenset({"int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp32", "fp64"})
#: The same, but for division and remainder, which go by way of fp32.
_HALF = frozenset({"fp16", "bf16"})


class SpeedOps:
    """Replacements of types, type checks and their like; ``original`` maps a name to what was there."""

    def __init__(self, interpreter: ModuleType, original: dict[str, Method]) -> None:
        core = interpreter.tl.core
        self.original = original
        self.tensor, self.constexpr, self.tuple = core.tensor, core.constexpr, core.tuple
        standard = interpreter.tl.standard
        self.bitwise = {standard._or_combine: np.bitwise_or, standard._xor_combine: np.bitwise_xor}
        self.np_dtypes: dict[str, Any] = {}
        self.blocks: dict[tuple[Any, ...], tuple[Any, int, str]] = {}
        self.shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def np_dtype(self, tt_dtype: Any) -> Any:
        """The numpy dtype of a type; Triton builds the whole table to look up one entry."""
        found = self.np_dtypes.get(tt_dtype.name)
        if found is None:
            found = self.np_dtypes[tt_dtype.name] = self.original["_get_np_dtype"](tt_dtype)
        return found

    def generic_reduce(self, reduction: Any, given: tuple[Any, ...]) -> Any:
        """``ReduceOps.generic_reduce``: bitwise reductions by numpy; Triton calls their function element by element."""
        op = self.bitwise.get(reduction.combine_fn)
        if op is None or len(given) != 1:
            return self.original["generic_reduce"](reduction, given)
        data = op.reduce(given[0].handle.data, axis=reduction.axis, keepdims=reduction.keep_dims)
        return [reduction.to_tensor(data, given[0].dtype)]

    def block_type(self, block: Any, element_ty: Any, shape: Any) -> None:
        """``block_type.__init__``: what follows from the shape is computed once a shape."""
        dims = shape.values if type(shape) is self.tuple else shape
        if not all(type(dim) is int for dim in dims):
            self.original["block_type"](block, element_ty, shape)
            return
        key = (element_ty.name, *dims)
        known = self.blocks.get(key)
        if known is None:
            self.original["block_type"](block, element_ty, shape)
            self.blocks[key] = block.shape, block.numel, block.name
            return
        block.element_ty = element_ty
        block.shape, block.numel, block.name = known

    def tensor_of(self, tensor: Any, handle: Any, type_: Any) -> None:
        """``tensor.__init__``: the shape as constants, made once a shape."""
        dims = tuple(type_.shape) if type_.is_block() else ()
        known = self.shapes.get(dims)
        if known is None:
            known = self.shapes[dims] = (
                self.tuple([self.constexpr(dim) for dim in dims]),
                self.constexpr(math.prod(dims)),
            )
        tensor.handle = handle
        tensor.type, tensor.dtype = type_, type_.scalar
        tensor.shape, tensor.numel = known

    def operands(
        self,
        semantic: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        """``binary_op_type_checking_impl``: two tensors of one type need neither a cast nor a broadcast."""
        if type(lhs) is self.tensor and type(rhs) is self.tensor and lhs.type.name == rhs.type.name:
            name = lhs.dtype.name
            if name in _CLOSED or (name in _HALF and not div_or_mod):
                return lhs, rhs
        checked: tuple[Any, Any] = self.original["binary_op_type_checking_impl"](
            semantic, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )
        return checked

    def overflow(self, semantic: Any, lhs: Any, rhs: Any, binary_op: Method) -> None:
        """``binary_op_sanitize_overflow_impl``: it asserts in debug mode only, so it is computed only there."""
        if semantic.builder.options.debug:
            self.original["binary_op_sanitize_overflow_impl"](semantic, lhs, rhs, binary_op)
