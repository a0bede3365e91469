"""Runs an audit on an engine, worker processes or a cluster, remembering every outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..fleet.choose import Place
from ..fleet.feed import drive
from ..verdict import Verdict
from . import properties, trial
from .journal import Journal
from .plan import Job, Settings
from .result import Audit
from .state_faults import played

#: Seconds after which one fault has hung, where there are workers to end.
PATIENCE = 600.0


def run(
    jobs: Sequence[Job],
    settings: Settings,
    journal: Journal,
    *,
    workers: int | None,
    place: Place | None = None,
    on_done: Callable[[Verdict], None] = lambda verdict: None,
) -> Audit:
    """The outcomes of ``jobs``, those in the journal included; what is missing is run and written there first.

    ``workers``: at most so many; None: as many as the place has. ``place``: where, this machine if none is named.
    """
    started = time.monotonic()

    def done(verdict: Verdict) -> None:
        journal.add(verdict)
        on_done(verdict)

    place = place or Place("local", settings.device)
    judge = properties.judge if settings.properties else trial.judge
    with place.engine(judge, jobs=workers, timeout=None if workers == 1 else PATIENCE) as engine:
        pairs = [(job.case, job.name) for job in journal.left(jobs)]
        drive(engine, pairs, on_result=lambda i, verdict: None, on_done=done)
        slots = engine.slots
    outcomes = [journal.outcomes[job.key] for job in jobs]
    # An audit that goes on took longer than this process saw.
    worked = sum(outcome.seconds for outcome in outcomes) / slots
    others = played(settings.seed) if settings.whole and not settings.properties else ()
    return Audit.of(outcomes, max(time.monotonic() - started, worked), settings.seed, others)
