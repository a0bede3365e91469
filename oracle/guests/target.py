"""From ``package.module:attribute`` or ``folder/file.py:attribute`` to the object it names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ...optimized import triton_runtime
from ..errors import BadInput, unknown


def resolve(target: str) -> Any:
    """The object that a target names. Raises BadInput with what was found and what was expected.

    Triton is set up first, interpreted and mended where there is no GPU: a module that decorates kernels settles
    that for the whole process. The folder the command runs in is searched, as by ``python -m``.
    """
    place, _, path = target.rpartition(":")
    if not place or not re.fullmatch(r"[A-Za-z_][\w.]*", path):
        raise BadInput(f"{target!r}: expected package.module:function or folder/file.py:function")
    found: Any = _module(place)
    for name in path.split("."):
        if not hasattr(found, name):
            raise unknown(f"attribute of {place}", name, _callables(found))
        found = getattr(found, name)
    return found


def _callables(found: Any) -> list[str]:
    """Names that a target may end in: of functions and the like, or of all there is where there are none."""
    there = {name: value for name, value in getattr(found, "__dict__", {}).items() if not name.startswith("_")}
    return [name for name, value in there.items() if callable(value)] or list(there)


def _module(place: str) -> ModuleType:
    triton_runtime.prepare_if_available()
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except BadInput:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"module {place!r}: expected one that imports, got {told}{_hint(place, error)}") from error


def _hint(place: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == place.partition(".")[0]:
        return f"; install it, or run attnoracle in the folder that holds {error.name}"
    return ""


def _from_file(path: Path) -> ModuleType:
    """A module from a file, its folder searched for its neighbours; the same module each time."""
    if not path.is_file():
        raise BadInput(f"no file {path}: expected a Python file")
    where = path.resolve()
    loaded = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(where)), None)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(where.stem, where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(where.parent) not in sys.path:
        sys.path.insert(1, str(where.parent))
    sys.modules.setdefault(where.stem, module)  # dataclasses, pickle and Triton look a function's module up
    spec.loader.exec_module(module)
    return module
