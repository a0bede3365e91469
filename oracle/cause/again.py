"""Runs a case again, here or in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..case import Case
from ..check import check
from ..fleet.pool import Pool
from ..verdict import Verdict
from .named import Make, named

#: Marks the name of an implementation that is to be called in sequence as well (see ``oracle/sequence.py``).
IN_SEQUENCE = "sequence of "


def fails_later(verdict: Verdict) -> bool:
    """Whether one call is right and a later one on the same memory is not."""
    return bool(verdict.findings) and all(finding.check == "sequence" for finding in verdict.findings)


def here(make: Make, device: str, *, sequence: bool = False) -> Callable[[Case], Verdict]:
    """Runs in this process; every run has a fresh implementation, so that none remembers the one before."""
    return lambda case: check(case, make(), device=device, sequence=sequence)


@contextmanager
def apart(name: str, device: str, timeout: float, *, sequence: bool = False) -> Iterator[Callable[[Case], Verdict]]:
    """Runs in a worker process that may die or hang: either is an ERROR verdict."""
    marked = IN_SEQUENCE + name if sequence else name
    with Pool(jobs=1, device=device, timeout=timeout, judge=judge) as pool:
        yield lambda case: pool.run([(case, marked)], on_result=lambda i, verdict: None)[0]


def judge(case: Case, name: str, device: str) -> Verdict:
    """What a worker does."""
    if case.operator in ("layer", "graphs"):
        from ..campaign.scene_play import play

        return play(case, name, device)
    plain = name.removeprefix(IN_SEQUENCE)
    return check(case, named(plain, case.operator)(), device=device, sequence=plain != name)
