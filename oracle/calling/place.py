"""Where in a user's own file an exception comes from, in one short line."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

#: Packages whose frames are never the user's.
_OTHERS = frozenset(("attnoracle", "torch", "triton")) | sys.stdlib_module_names
#: Characters of a source line that are shown.
_WIDTH = 60
_TOLD = re.compile(r" \[[^\[\]:]+:\d+(: .*)?\]$", re.DOTALL)


def place(error: BaseException) -> str:
    """`` [kernels.py:26: i = tl.arange(0, N)]``, of the last frame that lies in a file of the user's; empty without
    one.

    Triton's interpreter raises an error of its own from the one of the kernel, so causes are looked at first.
    """
    for one in reversed(list(_chain(error))):
        frames = list(_frames(one))
        # A library that the user's file calls is somebody else's too, unless it is all there is.
        own = [found for found in frames if not {"site-packages", "dist-packages"} & {*PurePath(found[0]).parts}]
        for path, number in (own or frames)[-1:]:
            source = linecache.getline(path, number).strip()
            source = source if len(source) <= _WIDTH else f"{source[: _WIDTH - 3]}..."
            return f" [{PurePath(path).name}:{number}{': ' if source else ''}{source}]"
    return ""


def without(reason: str) -> str:
    """A reason without the place at its end: the same failure may come from a line that moved."""
    return _TOLD.sub("", reason)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    seen = set[int]()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """File and line of the frames that are not of ``_OTHERS``, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        if not _foreign(trace.tb_frame):
            yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _foreign(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _OTHERS or frame.f_code.co_filename.startswith("<")
