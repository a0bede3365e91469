"""Whose an exception is that ended somebody's code: told as theirs, with their frames, or left as ours."""

from __future__ import annotations

import site
import sysconfig
import traceback
from pathlib import Path

from ..errors import BadInput, OracleError

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / package}/" for package in ("oracle", "optimized", "reference"))
_LIBRARIES = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
#: Frames that are told, the innermost last.
_TOLD = 4


def as_theirs(error: Exception, what: str) -> Exception:
    """The error to raise in place of one that came out of their code; call it where that is caught.

    ``what`` is what ran, such as ``run.py: the script``. The innermost frame that is no library's says whose it is: an
    error that our code raised, or that a library raised when our code called it, is returned as it is.
    """
    if is_ours(error):
        return error
    told = [frame for frame in _frames(error) if not _of_ours(frame.filename)][-_TOLD:]
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in told]
    if isinstance(error, SyntaxError):
        lines.append(f"  {error.filename}:{error.lineno}")
    return BadInput("\n".join([f"{what} raised {type(error).__name__}: {error}", *lines]))


def is_ours(error: Exception) -> bool:
    """Whether our code raised it, or a library that our code called; call it where the error is caught."""
    frames = _frames(error)
    return isinstance(error, OracleError) or (bool(frames) and _of_ours(frames[-1].filename))


def _frames(error: Exception) -> list[traceback.FrameSummary]:
    """Those that are no library's, behind the caller's own."""
    return [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if not _of_library(frame.filename)]


def _of_ours(name: str) -> bool:
    return str(Path(name).resolve()).startswith(_OURS)


def _of_library(name: str) -> bool:
    """Standard library, installed packages, and the import system's frozen modules; ours are none, installed or not."""
    return name.startswith("<frozen") or (name.startswith(_LIBRARIES) and not _of_ours(name))
