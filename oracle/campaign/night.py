"""A night: runs what a corpus has planned and plans more, until the budget is spent.

The loop knows an engine and no more: where the judgements run is not its affair.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..environment import commit
from ..fleet.calls import Calls
from ..fleet.feed import Feed
from ..fleet.protocol import Engine
from ..fleet.worker import Pair
from ..verdict import Status, Verdict
from .cause import ends_its_process, look_into
from .corpus import Corpus
from .findings import Finding, Findings
from .guide import ROUND, Guide
from .result import Result

#: Rounds that may be under way while the next is planned; more where an engine needs more to be busy.
AHEAD = 2
#: Seconds between two looks of whoever watches.
LOOK = 0.5
#: Seconds after the end that looking into failures may still take; what it did not get to, the next night does.
PATIENCE = 90.0


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop; None: no limit of that kind."""

    cases: int | None = None
    seconds: float | None = None


class Night:
    """One run of a campaign over its corpus."""

    def __init__(self, corpus: Corpus, guide: Guide, engine: Engine, aside: Calls, names: tuple[str, ...]) -> None:
        """``names``: implementations that take part; what is planned for others stays planned."""
        self.corpus, self.guide, self.engine = corpus, guide, engine
        self.names = frozenset(names)
        self.counts: Counter[Status] = Counter()
        """Verdicts of this night by status."""
        self.started = time.monotonic()
        self.findings = Findings(self._look)
        self._aside = aside
        self._feed = Feed(engine)
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self._pairs: dict[int, Pair] = {}
        self._queue: deque[int] = deque()
        self._begun = 0
        self._learned = 0
        self._filed = 0
        self._old: dict[int, Finding] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def cases(self) -> int:
        """Judged in this night."""
        return sum(self.counts.values())

    @property
    def looking(self) -> int:
        """Failures that are being looked into."""
        return len(self._asked)

    def run(self, budget: Budget, watch: Callable[[Night], None] = lambda night: None) -> None:
        """Until the budget is spent. Raises what the check itself raised; what was judged until then is kept."""
        self.started = time.monotonic()
        self._resume()
        while True:
            while len(self._feed) < self.engine.depth and (place := self._next(budget)) is not None:
                self._feed.put(place, self._pairs[place])
            if not len(self._feed):
                break
            for place, verdict in self._feed.get(LOOK):
                self._take(place, verdict)
            self._settle()
            watch(self)
        self._wait(watch, None if budget.seconds is None else PATIENCE)
        self._learn(len(self.corpus.plans))

    def close(self, settings: dict[str, Any]) -> None:
        """Write down that this night was, and with what settings."""
        record = {
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "git": commit(),
            "device": self.engine.device,
            **settings,
            "seconds": round(self.seconds, 1),
            "cases": self.cases,
        }
        self.corpus.night(record)

    def _resume(self) -> None:
        """Take in the corpus: what was tried, what failed, and what is still to run."""
        for place, pair in self.corpus.planned():
            self._pairs[place] = pair
            self.guide.tried(pair)
            if place not in self.corpus.results and pair[1] in self.names:
                self._queue.append(place)
        self._file()
        for number, finding in enumerate(self.findings):
            if finding.implementation in self.names:
                self._old[-1 - number] = finding
                self._feed.put(-1 - number, (finding.smallest, finding.implementation))

    def _next(self, budget: Budget) -> int | None:
        """The place of the next pair; None where the budget is spent or the round before has to end first."""
        if budget.seconds is not None and self.seconds >= budget.seconds:
            return None
        if budget.cases is not None and self._begun >= budget.cases:
            return None
        if not self._queue and not self._plan():
            return None
        self._begun += 1
        return self._queue.popleft()

    def _plan(self) -> bool:
        number = len(self.corpus.plans)
        # What an engine of many workers has under way is more than the last two rounds.
        known = number - max(AHEAD, 1 - (-self.engine.depth // ROUND)) + 1
        if any(place not in self.corpus.results for place in self._places(self._learned, known)):
            return False
        self._learn(known)
        pairs = self.guide.plan(number)
        self.corpus.plan(number, pairs)
        for place, pair in enumerate(pairs, len(self._pairs)):
            self._pairs[place] = pair
            self._queue.append(place)
        return True

    def _places(self, first: int, end: int) -> Iterator[int]:
        """Places of the rounds from ``first`` to below ``end`` whose implementations take part."""
        last = min(end * ROUND, len(self._pairs))
        return (place for place in range(first * ROUND, last) if self._pairs[place][1] in self.names)

    def _learn(self, end: int) -> None:
        """Let the guide know what the rounds below ``end`` came to."""
        for number in range(self._learned, end):
            for place in range(number * ROUND, min((number + 1) * ROUND, len(self._pairs))):
                if place in self.corpus.results:
                    self.guide.learn(self._pairs[place], self.corpus.results[place])
        self._learned = max(self._learned, end)

    def _take(self, place: int, verdict: Verdict) -> None:
        if place in self._old:
            self._old.pop(place).again = verdict.status
            return
        verdict = replace(verdict, implementation=self._pairs[place][1])
        self.counts[verdict.status] += 1
        self.corpus.result(place, Result.of(verdict))
        self._file()

    def _file(self) -> None:
        """File failures in the order of planning, so that the same ones come first whichever worker was faster."""
        while self._filed < len(self._pairs):
            result = self.corpus.results.get(self._filed)
            if result is None:
                if self._pairs[self._filed][1] in self.names:
                    return
            elif result.verdict is not None:
                self.findings.file(self._filed, result.verdict)
            self._filed += 1

    def _look(self, finding: Finding) -> None:
        known = self.corpus.causes.get(finding.place)
        if known is not None:
            self.findings.settle(finding.place, known)
        elif finding.implementation in self.names:
            verdict = finding.verdict
            arguments = (verdict.case.id, verdict.implementation, self.engine.device, ends_its_process(verdict))
            self._asked[finding.place] = self._aside.call(look_into, *arguments)

    def _settle(self) -> None:
        """Take in what was found out."""
        for place in sorted(place for place, future in self._asked.items() if future.done()):
            error = self._asked[place].exception()
            if error is None:
                cause = self._asked[place].result()
            elif isinstance(error, BrokenProcessPool):
                cause = {"case": "", "conclusion": "", "note": "not shrunk: it ended the process that looked into it"}
            else:  # no reason to end a night: the failure stands, and the note says what is wrong with looking into it
                cause = {"case": "", "conclusion": "", "note": f"not shrunk: {type(error).__name__}: {error}"}
            del self._asked[place]
            self._keep(place, cause)

    def _keep(self, place: int, cause: dict[str, Any]) -> None:
        files = cause.pop("files", {})
        if files:
            folder = self.corpus.folder / "findings" / f"{place:06d}"
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            cause["bundle"] = f"findings/{place:06d}"
        cause["after_seconds"] = round(self.seconds, 1)
        self.corpus.cause(place, cause)
        self.findings.settle(place, cause)

    def _wait(self, watch: Callable[[Night], None], patience: float | None) -> None:
        """Until all failures were looked into, at most ``patience`` seconds."""
        until = None if patience is None else time.monotonic() + patience
        while self._asked and (until is None or time.monotonic() < until):
            wait(self._asked.values(), LOOK, "FIRST_COMPLETED")
            self._settle()
            watch(self)
