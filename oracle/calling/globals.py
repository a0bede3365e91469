"""Global state that an implementation must leave as it found it, since the next one would inherit it."""

from __future__ import annotations

import builtins
import inspect
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor

_AUTOCAST = ("cpu", "cuda")
#: Where a function put in place of another would reach the judge: what it computes with, and what it times with.
_NAMESPACES: tuple[ModuleType | type, ...] = (
    torch,
    torch.Tensor,
    torch.nn.functional,
    torch.cuda,
    torch.testing,
    torch.linalg,
    math,
    time,
    builtins,
)
_TORCH = Path(torch.__file__).parent
#: Threads of these are pools of the library, not of the kernel.
_LIBRARIES = ("torch", "triton", "concurrent", "multiprocessing", "tqdm")


@dataclass(frozen=True, slots=True)
class _Setting:
    """One switch: its name in words, how it is read, how it is put back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def _autocast() -> tuple[Any, ...]:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST)


def _set_autocast(values: Any) -> None:
    for kind, (enabled, dtype) in zip(_AUTOCAST, values, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.clear_autocast_cache()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_grad(on: bool) -> None:
    torch.set_grad_enabled(on)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody removed it
        return None


_SETTINGS = (
    _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting(
        "torch's default device",
        torch.get_default_device,
        # The CPU is what holds without a mode; a mode of its own would slow every call.
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    _Setting(
        "torch's float32 matmul precision (TF32)",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _Setting("cuDNN's TF32 switch", *_attribute(torch.backends.cudnn, "allow_tf32")),
    _Setting("cuDNN's benchmark switch", *_attribute(torch.backends.cudnn, "benchmark")),
    _Setting(
        "cuBLAS's reduced fp16 sums", *_attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction")
    ),
    _Setting(
        "cuBLAS's reduced bf16 sums", *_attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction")
    ),
    _Setting("torch's thread count", torch.get_num_threads, torch.set_num_threads),
    _Setting("torch's grad mode", torch.is_grad_enabled, _set_grad),
    _Setting("torch's autocast", _autocast, _set_autocast),
    _Setting(
        "torch's switch for deterministic algorithms",
        _deterministic,
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    _Setting("the state of Python's random generator", random.getstate, random.setstate),
    _Setting("the working directory", _folder, lambda path: os.chdir(path) if path is not None else None),
)


@dataclass(frozen=True, slots=True)
class GlobalState:
    """A snapshot; ``restore`` puts it back and names what had changed."""

    values: tuple[Any, ...]
    generators: tuple[Tensor, ...]
    numpy_generator: Any
    functions: tuple[Mapping[str, Any], ...]
    threads: frozenset[int]

    @classmethod
    def take(cls) -> GlobalState:
        return cls(
            tuple(setting.read() for setting in _SETTINGS),
            _generators(),
            numpy.random.get_state(),
            tuple(_functions(space) for space in _NAMESPACES),
            frozenset(thread.ident or 0 for thread in threading.enumerate()),
        )

    def restore(self) -> list[str]:
        """Put everything back; the names of what an implementation changed.

        A thread that it left behind is named too, and cannot be stopped.
        """
        # First the functions, with which the rest is read and written.
        changed = self._restore_functions()
        for setting, before in zip(_SETTINGS, self.values, strict=True):
            if setting.read() != before:
                setting.write(before)
                changed.append(setting.name)
        now = _generators()
        for at, (before, after) in enumerate(zip(self.generators, now, strict=False)):
            if not torch.equal(before, after):
                torch.cuda.set_rng_state(before, at - 1) if at else torch.set_rng_state(before)
                changed.append("the state of torch's random generator")
        if not _same(self.numpy_generator, numpy.random.get_state()):
            numpy.random.set_state(self.numpy_generator)
            changed.append("the state of numpy's random generator")
        return list(dict.fromkeys(changed)) + self._threads_left()

    def _restore_functions(self) -> list[str]:
        changed = []
        for space, before in zip(_NAMESPACES, self.functions, strict=True):
            now = vars(space)
            for name, function in before.items():
                if now.get(name) is not function and not _wrapped_by_torch(now.get(name), function):
                    setattr(space, name, function)
                    owner = f"torch.{space.__name__}" if isinstance(space, type) else space.__name__
                    changed.append(f"{owner}.{name}")
        return changed

    def _threads_left(self) -> list[str]:
        found = [thread for thread in threading.enumerate() if (thread.ident or 0) not in self.threads]
        found = [thread for thread in found if not _of_a_library(thread)]
        for thread in found:
            thread.join(0.1)  # one that is about to end is no leftover
        return [f"what runs: the thread {thread.name!r} was left behind" for thread in found if thread.is_alive()]


def _functions(space: ModuleType | type) -> Mapping[str, Any]:
    """Functions of a namespace by name; private names, classes and plain values come and go."""
    return {
        name: value
        for name, value in vars(space).items()
        if callable(value) and not isinstance(value, type) and not name.startswith("_")
    }


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """Whether torch itself put a wrapper around a function, as the first import of its compiler does."""
    code = getattr(now, "__code__", None)
    own = code is not None and Path(code.co_filename).is_relative_to(_TORCH)
    return own and now is not before and inspect.unwrap(now) is inspect.unwrap(before)


def _generators() -> tuple[Tensor, ...]:
    """torch's generators: the CPU's, then those of the GPUs if any was used."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return tuple(states)


def _same(before: Any, after: Any) -> bool:
    return all(numpy.array_equal(a, b) for a, b in zip(before, after, strict=True))


def _of_a_library(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None) or type(thread)
    return str(getattr(target, "__module__", "")).partition(".")[0] in _LIBRARIES
