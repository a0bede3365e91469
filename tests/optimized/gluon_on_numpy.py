"""As much of Gluon as the top-k kernel for Hopper uses, on numpy: its own source runs without a GPU.

Gluon has no interpreter. Here one program after the other runs, all its threads at once, with the types, the
wrap-around and the NaN of the machine; copies are done at once. A read outside of what was allocated raises. Layouts
and the order of threads do not exist here; that kernels compile is another test.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

WORD = np.uint64(0xFFFFFFFF)


class Tensor:
    """Numbers of one type; whole numbers of Python take it."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    shape = property(lambda self: self.values.shape)

    def to(self, dtype: type, bitcast: bool = False) -> Tensor:
        return Tensor(self.values.view(dtype) if bitcast else self.values.astype(dtype))

    def __bool__(self) -> bool:
        return bool(self.values)

    def __index__(self) -> int:
        return int(self.values)

    def __invert__(self) -> Tensor:
        return Tensor(~self.values)

    __hash__ = None  # type: ignore[assignment]


class Pointer:
    """Elements of a one-dimensional array."""

    def __init__(self, memory: np.ndarray, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.offset + np.asarray(_values(more), np.int64))

    def chosen(self, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """(offsets, which of them are used)."""
        used = np.asarray(True if mask is None else _values(mask))
        offset, used = np.broadcast_arrays(self.offset, used)
        if used.any() and (offset[used].min() < 0 or offset[used].max() >= len(self.memory)):
            raise IndexError(f"element {offset[used].max()} of {len(self.memory)}")
        return offset, used


class Shared:
    """Shared memory, with whatever was in it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def index(self, row: Any) -> Shared:
        return Shared(self.values[int(row)])

    def load(self, layout: Any) -> Tensor:
        return Tensor(self.values.copy())

    def store(self, values: Tensor) -> None:
        self.values[...] = values.values

    def reinterpret(self, *shape: Any) -> Shared:
        return self

    _reinterpret = reinterpret


def _values(x: Any) -> Any:
    return x.values if isinstance(x, Tensor) else x


def _alike(*several: Any) -> list[np.ndarray]:
    """Values of one type: fp32 where one is, else that of the tensors."""
    values = [_values(x) for x in several]
    known = [x.dtype for x in values if isinstance(x, np.ndarray | np.generic)]
    if any(dtype == np.float32 for dtype in known) or any(isinstance(x, float) for x in values):
        return [np.asarray(x, np.float32) for x in values]
    dtype = np.result_type(*known) if known else np.int32
    return [np.asarray(x, dtype) for x in values]


def _operation(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Tensor, Any], Any]:
    def apply(self: Tensor, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        left, right = _alike(other, self) if swapped else _alike(self, other)
        return Tensor(function(left, right))

    return apply


def _divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Towards zero."""
    return (np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))).astype(left.dtype)


for _name, _function in {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": _divide, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift, "rshift": operator.rshift,
    "mod": lambda left, right: left - _divide(left, right) * right,
}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operation(_function, False))
    setattr(Tensor, f"__r{_name}__", _operation(_function, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Tensor, f"__{_name}__", _operation(getattr(operator, _name), False))


def _added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Bits of the fp32 sum; every NaN that is made is the one without a sign."""
    total = np.asarray(left + right, np.float32)
    return np.where(np.isnan(total), np.uint32(0x7FFFFFFF), total.view(np.uint32))


def _shifted(places: np.ndarray) -> np.ndarray:
    places = places.view(np.uint32).astype(np.uint64)
    return np.where(places > 31, 0, WORD << np.minimum(places, 31) & WORD).astype(np.uint32)


#: Beginning of the PTX, and what it does to the arguments.
PTX: dict[str, Callable[..., Any]] = {
    "popc.b32": lambda x: np.unpackbits(x[:, None].view(np.uint8), axis=1).sum(1, dtype=np.int32),
    "lg2.approx": np.log2,
    "rcp.approx": np.reciprocal,
    "sqrt.approx": np.sqrt,
    "bfind.u32": lambda x: np.where(x == 0, -1, np.frexp(x.view(np.uint32).astype(np.float64))[1] - 1).astype(np.int32),
    "shl.b32 $0, -1": lambda places: _shifted(places).view(np.int32),
    "{ .reg .b32 d; add.f32": lambda word, score, less: (
        word.view(np.uint32) << np.uint32(1) | _added(score, less) >> np.uint32(31)
    ).view(np.int32),
}


def _inline(asm: str, constraints: str, args: list[Tensor], **_: Any) -> Tensor:
    (apply,) = (apply for words, apply in PTX.items() if asm.startswith(words))
    return Tensor(apply(*(x.values for x in args)))


def _load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Tensor:
    offset, used = pointer.chosen(mask)
    return Tensor(np.where(used, pointer.memory[np.where(used, offset, 0)], pointer.memory.dtype.type(other)))


def _store(pointer: Pointer, values: Any, mask: Any = None) -> None:
    offset, used = pointer.chosen(mask)
    pointer.memory[offset[used]] = np.broadcast_to(_values(values), offset.shape)[used]


def _copy(shared: Shared, pointer: Pointer, mask: Any) -> None:
    """As the machine does it: what the mask leaves out is filled with zeros."""
    offset, used = pointer.chosen(mask)
    shared.values[~used] = 0.0
    shared.values[used] = pointer.memory[offset[used]]


def _range(*ends: Any) -> Iterator[Tensor]:
    return (Tensor(np.int32(i)) for i in builtins.range(*map(int, ends)))


def _fold(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda *several: Tensor(function(*_alike(*several)))


def _language(program: int, programs: int) -> SimpleNamespace:
    rubbish = np.random.default_rng(program)

    def allocate(dtype: type, shape: list[int], layout: Any) -> Shared:
        left = rubbish.standard_normal(shape).astype(np.float32) * 3
        left[rubbish.random(shape) < 0.2] = np.nan
        return Shared(left)

    nothing = dict.fromkeys(("BlockedLayout", "SliceLayout", "SwizzledSharedLayout"), lambda *_: None)
    return SimpleNamespace(
        **nothing, int32=np.int32, int64=np.int64, float32=np.float32, static_range=builtins.range,
        program_id=lambda axis: Tensor(np.int32(program)), num_programs=lambda axis: Tensor(np.int32(programs)),
        allocate_shared_memory=allocate, inline_asm_elementwise=_inline, load=_load, store=_store,
        arange=lambda start, end, layout: Tensor(np.arange(start, end, dtype=np.int32)),
        expand_dims=lambda x, axis: Tensor(np.expand_dims(x.values, axis)),
        cast=lambda x, dtype: Tensor(np.asarray(_values(x), dtype)), convert_layout=lambda x, layout: x,
        reshape=lambda x, shape: Tensor(x.values.reshape(shape)),
        where=lambda test, left, right: Tensor(np.where(_values(test), *_alike(left, right))),
        minimum=_fold(np.fmin), maximum=_fold(np.fmax), abs=_fold(np.abs),
        sum=lambda x, axis: Tensor(x.values.sum(axis, dtype=x.values.dtype)),
        max=lambda x, axis: Tensor(np.fmax.reduce(x.values, axis)),
        min=lambda x, axis: Tensor(np.fmin.reduce(x.values, axis)),
        associative_scan=lambda x, axis, add: Tensor(np.cumsum(x.values, axis, dtype=np.int32)),
    )  # fmt: skip


def launch(modules: tuple[ModuleType, ...], kernel: str, programs: int, *args: Any) -> None:
    """Run a kernel on the functions of these modules; arrays become pointers, whole numbers int32."""
    given = [
        Pointer(x) if isinstance(x, np.ndarray) else Tensor(np.int32(x)) if type(x) is int else x.value for x in args
    ]
    for program in range(programs):
        known: dict[str, Any] = {}
        for name, one in (item for module in modules for item in vars(module).items()):
            if isinstance(getattr(one, "fn", None), FunctionType):
                known[name] = FunctionType(one.fn.__code__, known, name)
            elif type(one).__name__ == "constexpr":
                known[name] = one.value
        known |= {
            "gl": _language(program, programs), "copy_async": _copy, "range": _range, "barrier": lambda: None,
            "async_copy": SimpleNamespace(commit_group=lambda: None, wait_group=lambda left: None),
        }  # fmt: skip
        with np.errstate(all="ignore"):
            known[kernel](*given)
