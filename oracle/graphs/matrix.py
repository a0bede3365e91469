"""What ``attnoracle graphs`` runs: jobs that a worker process can be told by name, and what came of them."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Literal

from ..fleet.threads import limit_threads
from .faults import GraphFault, graph_fault
from .makers import maker
from .run import StepSeen, run_sequence
from .sequences import Theme, parse
from .setup import setup

Kind = Literal["sequence", "single", "fault", "incident"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One state of the layers in the incident of vllm#52512."""

    what: str
    version: str
    truth: str
    """Rules of the layers that it is held against."""
    faulty: bool


#: Captured with a long batch, replayed with short prefills and decodes.
INCIDENT = "PIECEWISE 8,24 at 20: a20; b6; b1; c8 b1; d7"
VARIANTS: dict[str, Variant] = {
    "faulty": Variant(
        what="skips, runs sparse MQA (vllm#51298)", version="vllm-51298", truth="vllm-53785", faulty=True
    ),
    "capability-off": Variant(
        what="no dense prefill (vllm#52512)", version="vllm-52512", truth="vllm-52512", faulty=False
    ),
    "mha-branch": Variant(what="runs dense MHA (vllm#53785)", version="vllm-53785", truth="vllm-53785", faulty=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One sequence on one subject, one implementation, one fault, or one variant of the incident."""

    kind: Kind
    name: str
    """Theme, implementation, fault or variant."""
    subject: str
    line: str
    """The sequence; empty for an implementation."""
    device: str

    @property
    def fault(self) -> GraphFault:
        return graph_fault(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A job and its steps."""

    job: Job
    steps: tuple[StepSeen, ...]
    error: str = ""
    """What a run with a planted fault raised outside of its steps; empty if nothing."""

    @property
    def seen_by(self) -> tuple[str, ...]:
        """The checks that saw something, in order."""
        return tuple(dict.fromkeys(violation.check for step in self.steps for violation in step.violations))

    @property
    def runs(self) -> bool:
        """Whether it could run here at all."""
        return bool(self.steps)

    @property
    def met(self) -> bool:
        """Whether it went as it must: clean, or for a fault, seen by the check that it names."""
        if self.job.kind == "fault":
            return self.job.fault.check in self.seen_by
        if self.job.kind == "incident" and VARIANTS[self.job.name].faulty:
            return "route-trace" in self.seen_by and not self.error
        return not self.seen_by and not self.error

    @property
    def status(self) -> Literal["PASS", "FAIL"]:
        return "PASS" if self.met else "FAIL"

    @property
    def telling(self) -> str:
        """What the expected check said first; else what any said."""
        told = [violation for step in self.steps for violation in step.violations]
        wanted = self.job.fault.check if self.job.kind == "fault" else ""
        first = next((one for one in told if one.check == wanted), told[0] if told else None)
        return str(first) if first else self.error or "nothing was seen"


def sequences(themes: Sequence[Theme], subjects: Sequence[str], device: str) -> list[Job]:
    """One job a sequence and subject; no subjects: those of each theme."""
    return [
        Job(kind="sequence", name=theme.name, subject=subject, line=str(sequence), device=device)
        for theme in themes
        for subject in (subjects or theme.subjects)
        for sequence in theme.sequences
    ]


def singles(device: str) -> list[Job]:
    """The implementations that declare themselves graph-safe."""
    from .single import graph_safe

    names = [one.name for one in graph_safe()]
    return [Job(kind="single", name=name, subject=name, line="", device=device) for name in names]


def faults(chosen: Sequence[GraphFault], device: str) -> list[Job]:
    """Planted faults, each on its own sequence."""
    return [Job(kind="fault", name=one.name, subject=one.subject, line=one.sequence, device=device) for one in chosen]


def incident(device: str) -> list[Job]:
    """vllm#52512 in every variant."""
    return [Job(kind="incident", name=name, subject="fused", line=INCIDENT, device=device) for name in VARIANTS]


def run(job: Job) -> Result:
    """Run one job. What a planted fault raises is its error, so that the next can be run."""
    if job.kind == "single":
        from .single import graph_safe, run_single

        one = next(one for one in graph_safe() if one.name == job.name)
        return Result(job=job, steps=tuple(run_single(one, maker(job.device), job.device)))
    if job.kind == "fault":
        fault = job.fault
        given, truth = (setup(job.subject, job.device, version) for version in (fault.version, fault.truth))
        try:
            steps = run_sequence(parse(job.line), given, maker(job.device), fault.engine, truth)
        except Exception as error:
            return Result(job=job, steps=(), error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return Result(job=job, steps=tuple(steps))
    version = truth_version = "attnoracle"
    if job.kind == "incident":
        version, truth_version = VARIANTS[job.name].version, VARIANTS[job.name].truth
    given, truth = setup(job.subject, job.device, version), setup(job.subject, job.device, truth_version)
    return Result(job=job, steps=tuple(run_sequence(parse(job.line), given, maker(job.device), truth=truth)))


def run_all(jobs: Sequence[Job], workers: int, done: Callable[[Result], None]) -> list[Result]:
    """Results in the order of the jobs; several worker processes where there are more than a handful."""
    return list(_told(_results(jobs, workers), done))


def _results(jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    if any(job.device == "cuda" for job in jobs):
        # A capture collects garbage first; what was imported need not be looked through a thousand times.
        gc.collect()
        gc.freeze()
    if workers == 1 or len(jobs) < 8:
        yield from map(run, jobs)
        return
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=limit_threads, initargs=(1,)
    ) as pool:
        yield from pool.map(run, jobs, chunksize=2)


def _told(results: Iterator[Result], done: Callable[[Result], None]) -> Iterator[Result]:
    for result in results:
        done(result)
        yield result
