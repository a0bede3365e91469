"""How far a run has come: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .plain import duration


class Judged(Protocol):
    """A verdict, or a step of a replay."""

    @property
    def status(self) -> str: ...


#: A log is read afterwards, so it takes few lines.
_QUIET_SECONDS = 30.0


@contextmanager
def progress(console: Console, total: int, *, quiet: bool = False) -> Iterator[Callable[[Judged], None]]:
    """A function to call with every verdict as it comes; writes to ``console``, which is that of stderr."""
    if quiet or total == 0:
        yield lambda verdict: None
    elif console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task("checking", total=total, found="")
            seen: Counter[str] = Counter()

            def advance(verdict: Judged) -> None:
                seen[verdict.status] += 1
                bar.update(task, advance=1, found=_found(seen))

            yield advance
    else:
        yield _lines(console, total)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[found]}", markup=False),
        console=console,
        transient=True,
    )


def _lines(console: Console, total: int) -> Callable[[Judged], None]:
    started = last = time.monotonic()
    seen: Counter[str] = Counter()

    def advance(verdict: Judged) -> None:
        nonlocal last
        seen[verdict.status] += 1
        now = time.monotonic()
        if now - last >= _QUIET_SECONDS:
            last = now
            found = _found(seen)
            told = f"checked {seen.total()} of {total} in {duration(now - started)}" + (f": {found}" if found else "")
            console.print(told, markup=False, highlight=False, soft_wrap=True)

    return advance


def _found(seen: Counter[str]) -> str:
    return ", ".join(f"{seen[status]} {status.lower()}" for status in ("FAIL", "ERROR", "SUSPECT") if seen[status])
