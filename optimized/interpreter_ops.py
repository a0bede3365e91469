"""What the mended interpreter does instead: replacements for methods of ``triton.runtime.interpreter``.

The interpreter keeps bf16 and fp8 as integer codes (uint16, uint8). Every replacement decodes such codes to fp32, lets
the operation run there and rounds its result once; everything else goes to the method that was replaced.

What compiled Triton (3.6 and 3.9, sm_90) does was read from the PTX that it emits: ``+ - *`` and max on bf16 are
``add/sub/mul/max.bf16`` (one rounding each); ``/`` promotes to fp32; ``tl.sum`` on bf16 is a tree of ``add.bf16``, each
rounded; ``tl.max`` promotes to fp32; ``tl.fma`` is ``fma.rn.bf16``; ``tl.dot`` adds exact products in fp32; ``tl.exp``
and its like refuse bf16; arithmetic on fp8 does not compile. The interpreter now agrees, with two liberties that the
compiler keeps for itself: the order of a reduction, and contracting ``x * y + z`` into one fma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from .number_codec import BF16, E4M3, E5M2, FP16, Array, Codec, fused_multiply_add

CODECS: dict[str, Codec] = {"bf16": BF16, "fp8e4nv": E4M3, "fp8e5": E5M2}
#: Formats that conversions here know; the AMD and e4b15 variants of fp8 stay with Triton.
_CONVERTIBLE = frozenset(CODECS) | {"fp16", "fp32", "fp64"}

Method = Callable[..., Any]


def codec_of(handle: Any) -> Codec | None:
    """The codec of a handle that holds codes; None if it holds plain numbers."""
    codec = CODECS.get(handle.dtype.scalar.name)
    return codec if codec is not None and handle.data.dtype == codec.dtype else None


def _numbers(handle: Any) -> Array:
    codec = codec_of(handle)
    return handle.data if codec is None else codec.decode(handle.data)


def _arithmetic(codec: Codec) -> Codec:
    if codec is not BF16:
        raise TypeError(f"arithmetic on {codec.name}: Triton does not compile it; convert to fp32, fp16 or bf16 first")
    return codec


class BuilderOps:
    """Replacements in InterpreterBuilder; ``original`` maps a name to the method that was there."""

    def __init__(self, interpreter: ModuleType, original: dict[str, Method]) -> None:
        self.handle = interpreter.TensorHandle
        self.np_dtype = interpreter._get_np_dtype
        self.memory = interpreter._interpreter
        self.ir = interpreter._ir
        self.tl = interpreter.tl
        self.original = original

    def cast_impl(self, builder: Any, src: Any, dst_type: Any) -> Any:
        codec, scalar = CODECS.get(dst_type.scalar.name), dst_type.scalar
        if codec is None and codec_of(src) is None:
            return self.original["cast_impl"](builder, src, dst_type)
        values = _numbers(src)
        return self.handle(values.astype(self.np_dtype(scalar)) if codec is None else codec.encode(values), scalar)

    def create_fp_to_fp(self, builder: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, scalar = src.dtype.scalar.name, dst_type.scalar
        toward_zero = rounding_mode == self.ir.ROUNDING_MODE.RTZ
        codec = FP16 if scalar.name == "fp16" and toward_zero else CODECS.get(scalar.name)
        known = source in _CONVERTIBLE and scalar.name in _CONVERTIBLE
        if not known or (codec is None and codec_of(src) is None):
            return self.original["create_fp_to_fp"](builder, src, dst_type, rounding_mode)
        if codec is None:
            return self.handle(_numbers(src).astype(self.np_dtype(scalar)), scalar)
        codes = codec.encode(_numbers(src), toward_zero=toward_zero)
        return self.handle(codes.view(self.np_dtype(scalar)), scalar)

    def get_bf16(self, builder: Any, value: float) -> Any:
        return self.handle(BF16.encode(np.array([value])), self.tl.bfloat16)

    def binary_op(self, builder: Any, lhs: Any, rhs: Any, op: Method) -> Any:
        codec = codec_of(lhs)
        if codec is None:
            made = self.original["binary_op"](builder, lhs, rhs, op)
            # Triton labels a comparison with the type of what it compares; where it is spread out, it becomes that.
            return self.handle(made.data, self.tl.int1) if made.data.dtype == np.bool_ else made
        with np.errstate(all="ignore"):
            result = op(_arithmetic(codec).decode(lhs.data), _numbers(rhs))
        if result.dtype == np.bool_:
            return self.handle(result, self.tl.int1)
        return self.handle(codec.encode(result), lhs.dtype.scalar)

    def unary_op(self, builder: Any, arg: Any, op: Method) -> Any:
        codec = codec_of(arg)
        if codec is None:
            return self.original["unary_op"](builder, arg, op)
        with np.errstate(all="ignore"):
            return self.handle(codec.encode(op(_arithmetic(codec).decode(arg.data))), arg.dtype.scalar)

    def ternary_op(self, builder: Any, lhs: Any, rhs: Any, other: Any, op: Method) -> Any:
        codec = codec_of(other)
        if codec is None or op is np.where:  # a selection moves codes
            return self.original["ternary_op"](builder, lhs, rhs, other, op)
        result = op(_numbers(lhs), _numbers(rhs), _arithmetic(codec).decode(other.data))
        return self.handle(codec.encode(result), other.dtype.scalar)

    def create_clampf(self, builder: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == self.ir.PROPAGATE_NAN.NONE:
            return builder.binary_op(builder.binary_op(arg, lo, np.fmax), hi, np.fmin)
        return builder.ternary_op(arg, lo, hi, np.clip)

    def create_maxnumf(self, builder: Any, lhs: Any, rhs: Any) -> Any:
        return builder.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, builder: Any, lhs: Any, rhs: Any) -> Any:
        return builder.binary_op(lhs, rhs, np.fmin)

    def create_fma(self, builder: Any, x: Any, y: Any, z: Any) -> Any:
        codec = codec_of(z)
        if codec is None:
            return self.original["create_fma"](builder, x, y, z)
        with np.errstate(all="ignore"):
            result = fused_multiply_add(_numbers(x), _numbers(y), _arithmetic(codec).decode(z.data))
        return self.handle(codec.encode(result), z.dtype.scalar)

    def create_dot(self, builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_imprecise: Any) -> Any:
        if codec_of(a) is None and codec_of(b) is None:
            return self.original["create_dot"](builder, a, b, d, input_precision, max_imprecise)
        lhs, rhs = (_numbers(x).astype(np.float32, copy=False) for x in (a, b))
        total = np.matmul(lhs, rhs) + d.data
        return self.handle(total.astype(d.data.dtype, copy=False), d.dtype.scalar)

    def create_atomic_rmw(self, builder: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        codec = codec_of(val)
        if codec is None or op != self.ir.ATOMIC_OP.FADD:
            return self.original["create_atomic_rmw"](builder, op, ptr, val, mask, sem, scope)
        pointers, active = np.ravel(ptr.data), np.ravel(mask.data)
        addends = _arithmetic(codec).decode(np.ravel(val.data))
        before, one = np.zeros(pointers.shape, codec.dtype), np.ones(1, dtype=bool)
        for i in np.flatnonzero(active):  # one at a time: two lanes may add to the same place
            at = pointers[i : i + 1]
            before[i : i + 1] = self.memory.load(at, one, np.zeros(1, codec.dtype), np.dtype(codec.dtype))
            self.memory.store(at, codec.encode(codec.decode(before[i : i + 1]) + addends[i : i + 1]), one)
        return self.handle(before.reshape(np.shape(ptr.data)), val.dtype.scalar)

    def create_descriptor_load(self, builder: Any, desc: Any, indices: Any, *cache: Any) -> Any:
        if desc.padding != self.ir.PADDING_OPTION.PAD_NAN or desc.base.get_element_ty().name not in CODECS:
            return self.original["create_descriptor_load"](builder, desc, indices, *cache)
        ptrs, mask = desc.materialize_pointers(indices)
        return builder.create_masked_load(ptrs, mask, self._nan_like(ptrs), *cache, is_volatile=False)

    def create_tensor_pointer_load(self, builder: Any, ptr: Any, boundary: Any, padding: Any, *cache: Any) -> Any:
        if padding != self.ir.PADDING_OPTION.PAD_NAN or ptr.base.get_element_ty().name not in CODECS:
            return self.original["create_tensor_pointer_load"](builder, ptr, boundary, padding, *cache)
        ptrs, mask = ptr.materialize_pointers(boundary)
        return builder.create_masked_load(ptrs, mask, self._nan_like(ptrs), *cache)

    def _nan_like(self, ptrs: Any) -> Any:
        element = ptrs.get_element_ty()
        codec = CODECS[element.name]
        return self.handle(np.full(ptrs.data.shape, codec.nan, codec.dtype), element)


class ReductionOps:
    """Replacements in ReduceOps and ScanOps."""

    def __init__(self, interpreter: ModuleType, original: dict[str, Method]) -> None:
        self.index_type = interpreter.tl.int32
        self.original = original

    def sum(self, reduction: Any, tensor: Any) -> Any:
        codec = codec_of(tensor.handle)
        if codec is None:
            return self.original["sum"](reduction, tensor)
        total = _tree_sum(codec, tensor.handle.data, reduction.axis, reduction.keep_dims)
        return reduction.to_tensor(total, tensor.dtype)

    def min_max(self, reduction: Any, tensor: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        codec = codec_of(tensor.handle)
        if codec is None and tensor.handle.data.dtype.kind != "f":
            return self.original["min_max"](reduction, tensor, val_reduce_op, idx_reduce_op)
        data = tensor.handle.data if codec is None else _arithmetic(codec).decode(tensor.handle.data)
        kept = {"axis": reduction.axis, "keepdims": reduction.keep_dims}
        value = _QUIET.get(val_reduce_op, val_reduce_op)(data, **kept)
        value = reduction.to_tensor(value if codec is None else codec.encode(value)[()], tensor.dtype)
        if idx_reduce_op is None:
            return value
        where = _QUIET.get(idx_reduce_op, idx_reduce_op)(data, **kept)
        return value, reduction.to_tensor(where, self.index_type)

    def cumsum(self, scan: Any, tensor: Any) -> Any:
        return self._scan("cumsum", np.add, scan, tensor)

    def cumprod(self, scan: Any, tensor: Any) -> Any:
        return self._scan("cumprod", np.multiply, scan, tensor)

    def _scan(self, name: str, op: Method, scan: Any, tensor: Any) -> Any:
        codec = codec_of(tensor.handle)
        if codec is None:
            return self.original[name](scan, tensor)
        values = np.moveaxis(_arithmetic(codec).decode(tensor.handle.data), scan.axis, 0).copy()
        with np.errstate(all="ignore"):
            for i in range(1, len(values)):
                values[i] = codec.decode(codec.encode(op(values[i - 1], values[i])))
        return [scan.to_tensor(np.moveaxis(codec.encode(values), 0, scan.axis), tensor.dtype)]


def _tree_sum(codec: Codec, codes: Array, axis: int | None, keep_dims: bool) -> Any:
    """Codes of the sum along ``axis``, rounded after every addition of a halving tree."""
    values = np.moveaxis(_arithmetic(codec).decode(codes.reshape(-1) if axis is None else codes), axis or 0, 0)
    with np.errstate(all="ignore"):
        while len(values) > 1:
            half = len(values) // 2
            pairs = codec.decode(codec.encode(values[:half] + values[half : 2 * half]))
            values = pairs if len(values) == 2 * half else np.concatenate([pairs, values[2 * half :]])
    result = codec.encode(values[0])
    if keep_dims:
        return result.reshape([1] * codes.ndim) if axis is None else np.expand_dims(result, axis)
    return result[()]


def _quiet_argmax(data: Array, **kept: Any) -> Any:
    return np.argmax(np.where(np.isnan(data), -np.inf, data), **kept)


def _quiet_argmin(data: Array, **kept: Any) -> Any:
    return np.argmin(np.where(np.isnan(data), np.inf, data), **kept)


#: The same reductions without numpy's warning, or error, for rows that are all NaN: to a kernel they are data.
_QUIET: dict[Any, Method] = {
    np.nanmax: np.fmax.reduce,
    np.nanmin: np.fmin.reduce,
    np.nanargmax: _quiet_argmax,
    np.nanargmin: _quiet_argmin,
}


class LaunchOps:
    """Replacements around a launch: numpy's warnings off, and the language patched once instead of at every call.

    Triton patches ``triton.language`` anew for each call of a device function, ``tl.sum`` and ``tl.max`` among them,
    which costs more than the reduction itself and, inside one launch, changes nothing.
    """

    def __init__(self, interpreter: ModuleType, original: dict[str, Method]) -> None:
        self.original = original
        self.language = (interpreter.tl, interpreter.tl.core)
        self.scope = interpreter._LangPatchScope
        self.patched: set[int] | None = None
        self.uses: dict[int, set[int]] = {}

    @contextmanager
    def _launch(self) -> Iterator[None]:
        outer, self.patched, self.uses = self.patched, set(), {}
        try:
            with np.errstate(all="ignore"):
                yield
        finally:
            self.patched = outer

    def call(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        with self._launch():
            return self.original["__call__"](executor, *args, **kwargs)

    def patch_lang(self, fn: Any) -> Any:
        if self.patched is None:
            return self.original["_patch_lang"](fn)
        wanted = self.uses.get(id(fn.__globals__))
        if wanted is None:
            present = fn.__globals__.values()
            wanted = {id(module) for module in self.language if any(value is module for value in present)}
            self.uses[id(fn.__globals__)] = wanted
        if wanted and wanted <= self.patched:
            return self.scope()
        self.patched |= wanted
        return self.original["_patch_lang"](fn)

    def patch_lang_tensor(self, tensor: Any, scope: Any) -> None:
        """A loaded scalar as a loop bound: Triton 3.6 has it as an array of one element, which numpy 2.4 refuses."""
        self.original["_patch_lang_tensor"](tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(value.handle.data.item()))
