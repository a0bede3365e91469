"""Jobs into an engine and verdicts out of it: each once, whatever is lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..guests import known
from ..verdict import Verdict
from .protocol import Answer, Engine, Lost
from .worker import Pair

OnResult = Callable[[int, Verdict], None]
OnDone = Callable[[Verdict], None]


class Feed:
    """Puts a lost job in again until it has cost as many workers as the engine allows, then it is an ERROR."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pairs: dict[int, Pair] = {}
        self._losses: Counter[int] = Counter()

    def __len__(self) -> int:
        """Jobs under way."""
        return len(self._pairs)

    def put(self, job: int, pair: Pair) -> None:
        self._pairs[job] = pair
        self._engine.put(job, pair)

    def get(self, patience: float | None = None) -> list[tuple[int, Verdict]]:
        """Verdicts as they come; none after ``patience`` seconds without one."""
        found = []
        for job, answer in self._engine.get(patience):
            if job not in self._pairs:
                continue  # a worker taken for lost that answered all the same
            verdict = self._settled(job, answer)
            if verdict is not None:
                del self._pairs[job]
                found.append((job, verdict))
        return found

    def _settled(self, job: int, answer: Answer) -> Verdict | None:
        """The verdict, or None where the job has to run again."""
        if isinstance(answer, Verdict):
            return answer
        self._losses[job] += 1
        if not answer.final and self._losses[job] < self._engine.tries:
            self._engine.put(job, self._pairs[job])
            return None
        return self._error(job, answer)

    def _error(self, job: int, lost: Lost) -> Verdict:
        case, implementation = self._pairs[job]
        times = f" ({self._losses[job]} times)" if self._losses[job] > 1 else ""
        return Verdict(
            case=case,
            implementation=implementation,
            status="ERROR",
            reason=f"{lost.reason}{times}",
            seconds=lost.seconds,
            device=self._engine.device,
            origin=known.origin(case.geometry, implementation),
        )


def drive(
    engine: Engine, pairs: Sequence[Pair], *, on_result: OnResult, on_done: OnDone | None = None
) -> list[Verdict]:
    """Verdicts in the order of ``pairs``.

    ``on_result(i, verdict)`` is called in that order, as early as it can be; ``on_done(verdict)`` as they come.
    """
    feed = Feed(engine)
    for i, pair in enumerate(pairs):
        feed.put(i, pair)
    verdicts: dict[int, Verdict] = {}
    reported = 0
    while len(feed):
        for i, verdict in feed.get():
            verdicts[i] = verdict
            if on_done is not None:
                on_done(verdict)
        while reported in verdicts:
            on_result(reported, verdicts[reported])
            reported += 1
    return [verdicts[i] for i in range(len(pairs))]
