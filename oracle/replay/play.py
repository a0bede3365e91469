"""One incident of any kind, made ready to be played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import BadInput
from .expected import Outcome
from .incident import AnyIncident, Incident
from .operator_incident import OperatorIncident
from .outcome import Seen
from .steps_incident import StepsIncident

Judged: TypeAlias = Seen | Outcome


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """An incident, how many judgements it takes, and the function that makes them one after the other."""

    incident: AnyIncident
    total: int
    run: Callable[[], Iterator[Judged]]


def prepare(
    incident: AnyIncident,
    *,
    variants: Sequence[str] = (),
    lengths: Sequence[int] = (),
    quick: bool = False,
    operators: str = "reference",
    device: str = "cpu",
    workers: int = 1,
) -> Play:
    """``variants`` by name, none for all; ``workers``: processes that many prompts are shared among.

    Raises BadInput for what the kind of incident does not have.
    """
    names = tuple(dict.fromkeys(variants))
    if isinstance(incident, Incident):
        return _prompts(incident, names, lengths, quick, operators, device, workers)
    for option, given in (("--length", bool(lengths)), ("--implementations", operators != "reference")):
        if given:
            raise BadInput(f"{option}: expected an incident of prompts, got {incident.name} of kind {incident.kind}")
    if device != "cpu":
        raise BadInput(f"--device {device}: {incident.name} of kind {incident.kind} is played on the CPU")
    return _steps(incident, names) if isinstance(incident, StepsIncident) else _cases(incident, names)


def _prompts(
    incident: Incident,
    names: Sequence[str],
    lengths: Sequence[int],
    quick: bool,
    operators: str,
    device: str,
    workers: int,
) -> Play:
    chosen = [incident.variant(name) for name in names] or list(incident.variants)
    if quick:
        incident = replace(incident, companions=tuple(one for one in incident.companions if one.quick))
    asked = sorted(set(lengths or (incident.quick_lengths if quick else incident.lengths)))
    faulty = sum(variant.faulty for variant in chosen)
    total = len(chosen) * len(asked) + faulty * len(incident.companions)

    def run() -> Iterator[Judged]:
        from .operators import injected
        from .replay import Replay
        from .shares import LEAST_STEPS, play_shares

        ready = injected(operators, device)  # what cannot run here says so before any process starts
        if workers > 1 and total >= LEAST_STEPS:
            yield from play_shares(incident, operators, device, chosen, asked, workers)
        else:
            yield from Replay(incident, ready, device).run(chosen, asked)

    return Play(incident, total, run)


def _steps(incident: StepsIncident, names: Sequence[str]) -> Play:
    chosen = [incident.variant(name) for name in names] or list(incident.variants)
    total = sum(scene.plays_in(variant) for variant in chosen for scene in incident.scenes)

    def run() -> Iterator[Judged]:
        from .steps import StepsReplay

        yield from StepsReplay(incident).run(chosen)

    return Play(incident, total, run)


def _cases(incident: OperatorIncident, names: Sequence[str]) -> Play:
    chosen = [incident.variant(name) for name in names] or list(incident.variants)

    def run() -> Iterator[Judged]:
        from .kernels import play_cases

        yield from play_cases(incident, chosen)

    return Play(incident, len(chosen) * len(incident.cases), run)
