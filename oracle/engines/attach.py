"""Runs somebody's script with every layer of a class watched, and judges what was captured."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput, Unsupported
from .theirs import as_theirs
from .watch import Watch


def named(path: str) -> Any:
    """The object at ``module:name``.

    Raises BadInput for another form and for a module that raises, Unsupported for one that is not here.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise BadInput(f"{path!r}: expected module:name")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"{path}: cannot import {module} here ({error}); install the engine, or run in its environment"
        ) from error
    except Exception as error:
        raise as_theirs(error, f"{path}: importing {module}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadInput(f"{path}: {module} has no {name}")
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def watched(layer: type, watch: Watch) -> Iterator[None]:
    """While active, every new layer of the class is watched from its first forward on, in the order of these."""
    before: Callable[..., Any] = layer.forward  # type: ignore[attr-defined]
    seen: set[int] = set()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen:
            seen.add(id(self))
            watch.attach(self)
        return before(self, *args, **kwargs)

    layer.forward = forward  # type: ignore[attr-defined]
    try:
        yield
    finally:
        layer.forward = before  # type: ignore[attr-defined]
        watch.detach()


def run_script(path: Path, arguments: Sequence[str]) -> None:
    """Run a script as ``__main__``; its sys.exit(0) is an end as any.

    Raises BadInput where there is none, and with the script's own frames for an exception of the script's.
    """
    if not path.is_file():
        raise BadInput(f"{path}: expected a Python script, found none")
    argv, folders = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(path), *arguments], [str(path.parent)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise BadInput(f"{path}: the script ended with {end.code!r}") from end
    except Exception as error:
        raise as_theirs(error, f"{path}: the script") from error
    finally:
        sys.argv, sys.path[:] = argv, folders
