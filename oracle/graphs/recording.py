"""Records what a function does on the device: aten operations and Triton launches, in order, with all their arguments.

Tensor arguments are noted by where they lie: in a named buffer, in a value that the recording made, or elsewhere. Two
recordings of one function can therefore be compared although they lie in different memory, and the first difference
says what the host would do otherwise now. With a pool the recording can be replayed, see ``makers.py``.

Host reads are trapped by name, because ``tolist`` and ``cpu`` leave no trace among the operations. A Triton launch is
recorded whole: what the interpreter copies inside is its own affair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import legality
from .launches import intercepted
from .pool import Pool
from .violation import CaptureFailed, IllegalCall

_ALLOCATIONS = {
    "aten.empty", "aten.empty_strided", "aten.empty_like", "aten.new_empty", "aten.new_empty_strided",
    "aten.empty_permuted",
}  # fmt: skip
FOREIGN = "elsewhere"


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor argument: the buffer or value it lies in, and which part of it."""

    of: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.of}{list(self.shape)} at {self.offset}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation or launch."""

    name: str
    where: str
    """File and line that called it."""
    arguments: tuple[Any, ...]
    """Leaves in order: a Place for a tensor, the value for anything else."""
    again: Callable[[], None] | None = None
    """Runs it on the same memory once more; None where nothing was recorded for that."""


class Recording:
    """A context in which everything is recorded. ``buffers`` are the tensors that stay, by name.

    strict: raise CaptureFailed at an illegal call; otherwise note the first one in ``illegal``.
    pool: emulate a capture: outputs lie in the pool, and memory outside it is put back at the end.
    """

    def __init__(
        self, what: str, buffers: Mapping[str, Tensor], *, strict: bool, pool: Pool | None = None, real: bool = False
    ) -> None:
        self.what, self.strict, self.pool, self.real = what, strict, pool, real
        self.ops: list[Op] = []
        self.illegal: IllegalCall | None = None
        self._names = {_address(tensor): name for name, tensor in buffers.items() if tensor.numel()}
        self._made: dict[int, str] = {}
        self._count = 0
        self._alive: list[Tensor] = []
        self._host: dict[int, Tensor] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._quiet = 0
        self._stack = ExitStack()

    def __enter__(self) -> Recording:
        self._stack.enter_context(intercepted(self._launch))
        self._stack.enter_context(_Functions(self))
        self._stack.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        for now, before in self._before.values():
            now.copy_(before)
        self._before.clear()
        self._host.clear()
        self._alive.clear()

    def function(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A torch function called from Python."""
        if self._quiet:
            return func(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], Tensor) else None
        on_device = first is not None and self._on_device(first)
        reader, built, mover = (
            legality.reads_host(func),
            legality.builds_from_host(func, args, kwargs),
            legality.moves(func),
        )
        if reader and on_device:
            self._refuse(reader, legality.READS)
        if built:
            self._refuse(built, legality.COPIES)
        if mover and first is not None and not self.real and not on_device and _names_device(args[1:], kwargs):
            self._refuse(mover, legality.COPIES)
        if legality.makes_host_tensor(func, args, kwargs):
            made = self._silently(func, args, kwargs)
            if isinstance(made, Tensor):
                self._host[_address(made)] = made
            return made
        return func(*args, **kwargs)

    def operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An aten operation."""
        if self._quiet:
            return func(*args, **kwargs)
        leaves = _leaves(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        hosts = [tensor for tensor in tensors if not self._on_device(tensor)]
        if any(tensor.dim() for tensor in hosts) and len(hosts) < len(tensors) and not self.real:
            self._refuse(_facts(func)[0], legality.MIXES)
        if tensors and len(hosts) == len(tensors):
            made = func(*args, **kwargs)
            for leaf in _leaves((made,), {}):
                if isinstance(leaf, Tensor):
                    self._host[_address(leaf)] = leaf
            return made
        name = _facts(func)[0]
        why = legality.waits(name, args, kwargs)
        if why is not None:
            self._refuse(name, why)
        written = _written(func, args, kwargs)
        if self.pool is not None:
            self._keep(written)
        result = func(*args, **kwargs)
        inside = {_address(tensor) for tensor in tensors}
        made = (result,) if isinstance(result, Tensor) else _leaves((result,), {})
        fresh = [leaf for leaf in made if isinstance(leaf, Tensor) and _address(leaf) not in inside]
        if not fresh and not written:
            return result  # a view, or a question about types: nothing runs on the device
        arguments = tuple(self._argument(leaf) for leaf in leaves)
        moved = {}
        for value in fresh:
            owned = self.pool.adopt(value) if self.pool is not None else value
            moved[id(value)] = owned
            if self.pool is None and owned.device.type == "cpu":
                self._alive.append(owned)  # or a number that torch wraps could come to lie where it lay
            self._made[_address(owned)] = f"%{self._count}"
            self._count += 1
        if name not in _ALLOCATIONS:
            again = self._replayed(func, args, kwargs, [moved[id(value)] for value in fresh]) if self.pool else None
            self.ops.append(Op(name, _caller(), arguments, again))
        if isinstance(result, Tensor):
            return moved.get(id(result), result)
        return tree_map(lambda leaf: moved.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf, result)

    def _launch(self, run: Callable[..., Any], kernel: Any, args: Any, grid: Any, kwargs: Any) -> Any:
        """A Triton launch, recorded whole: what happens inside, and our own bookkeeping, is not recorded."""
        quiet = self._quiet
        self._quiet += 1
        try:
            if not quiet:
                self._note_launch(run, kernel, args, grid, kwargs)
            return run(kernel, *args, grid=grid, warmup=False, **kwargs)
        finally:
            self._quiet -= 1

    def _note_launch(self, run: Callable[..., Any], kernel: Any, args: Any, grid: Any, kwargs: Any) -> None:
        size = grid if isinstance(grid, tuple) else ("by its own rule",)
        leaves = tuple(self._argument(leaf) for leaf in (*args, *kwargs.values(), *size))
        again = None
        if self.pool is not None:
            self._keep([leaf for leaf in _leaves(args, kwargs) if isinstance(leaf, Tensor)])
            fixed, named = (
                [self._fixed(leaf) for leaf in args],
                {key: self._fixed(leaf) for key, leaf in kwargs.items()},
            )

            def again() -> None:
                run(kernel, *fixed, grid=grid, warmup=False, **named)

        name = getattr(getattr(kernel, "fn", kernel), "__name__", str(kernel))
        self.ops.append(Op(f"triton.{name}", _caller(), leaves, again))

    def _replayed(self, func: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> Callable[[], None]:
        fixed, named = tree_map(self._fixed, tuple(args)), tree_map(self._fixed, dict(kwargs))
        targets = [self._fixed(output) for output in outputs]

        def again() -> None:
            result = func(*fixed, **named)
            for target, value in zip(targets, _fresh(result, targets), strict=True):
                target.copy_(value)

        return again

    def _fixed(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or self.pool is None:
            return leaf
        pooled = self.pool.fixed(leaf)
        return leaf if pooled is None else pooled

    def _argument(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf if isinstance(leaf, int | float | bool | str | None) else str(leaf)
        at = _address(leaf)
        of = self._made.get(at) or self._names.get(at) or ("host" if at in self._host else FOREIGN)
        of = of if leaf.numel() else "nothing"
        if leaf.dim() == 0 and of in ("host", FOREIGN) and (not self.real or leaf.device.type == "cpu"):
            return self._silently(leaf.item, (), {})  # a number that the host wrapped
        offset = int(leaf.storage_offset()) if of != "nothing" else 0
        return Place(of, offset, tuple(leaf.shape), tuple(leaf.stride()), str(leaf.dtype))

    def _keep(self, tensors: Sequence[Tensor]) -> None:
        """Remember memory outside the pool before it is written: a real capture runs nothing."""
        for tensor in tensors:
            at = _address(tensor)
            if at in self._before or not tensor.numel() or (self.pool and self.pool.fixed(tensor) is not None):
                continue
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self._before[at] = (whole, whole.clone())

    def _on_device(self, tensor: Tensor) -> bool:
        return tensor.device.type != "cpu" if self.real else _address(tensor) not in self._host

    def _refuse(self, call: str, why: str) -> None:
        found = IllegalCall(call, _caller(), why)
        self.illegal = self.illegal or found
        if self.strict:
            raise CaptureFailed(self.what, found)

    def _silently(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._quiet += 1
        try:
            return func(*args, **kwargs)
        finally:
            self._quiet -= 1


class _Functions(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recording.function(func, args, kwargs or {})


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recording.operation(func, args, kwargs or {})


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _fresh(result: Any, targets: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that were made anew, which are as many as they were when recorded."""
    if isinstance(result, Tensor):
        return [result][: len(targets)]
    made = [leaf for leaf in _leaves((result,), {}) if isinstance(leaf, Tensor)]
    return made[-len(targets) :] if targets else []


@cache
def _facts(func: Any) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Name without overload, and place and name of the arguments that an operation writes, by its schema."""
    arguments = enumerate(func._schema.arguments)
    written = [(n, one.name) for n, one in arguments if one.alias_info is not None and one.alias_info.is_write]
    return str(func).rpartition(".")[0], tuple(written)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    values = [args[place] if place < len(args) else kwargs.get(name) for place, name in _facts(func)[1]]
    return [leaf for leaf in _leaves(values, {}) if isinstance(leaf, Tensor)]


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Everything inside of lists and tuples, in order."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            found += _leaves(value, {})
        else:
            found.append(value)
    return found


def _names_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("device") is not None or any(isinstance(value, str | torch.device) for value in args)


_OWN = ("oracle/graphs/recording.py", "oracle/graphs/launches.py", "optimized/interpreter")


def _caller() -> str:
    """The nearest frame that is neither torch's, Triton's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in ("/torch/", "/triton/", *_OWN)) and not path.startswith("<"):
            return f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
