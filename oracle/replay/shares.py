"""An incident of prompts played by several processes: the same steps in the same order as by one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from ..fleet.threads import limit_threads
from .incident import Incident, Variant
from .operators import injected
from .outcome import Seen
from .replay import Replay

#: Fewer steps are over before a second process has imported what it needs.
LEAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Share:
    """What one process plays at a time: variants at prompt lengths, and companions or not."""

    variants: tuple[Variant, ...]
    lengths: tuple[int, ...]
    companions: bool


def shares(variants: Sequence[Variant], lengths: Sequence[int]) -> list[Share]:
    """A variant with a preceding step whole, which takes longest; the others length by length, with one truth each."""
    other = tuple(variant for variant in variants if not variant.preceded)
    faulty = tuple(variant for variant in other if variant.faulty)
    found = [Share((variant,), tuple(lengths), True) for variant in variants if variant.preceded]
    found += [Share(other, (length,), False) for length in lengths if other]
    return found + [Share(faulty, (), True)] * bool(faulty)


def play_shares(
    incident: Incident, operators: str, device: str, variants: Sequence[Variant], lengths: Sequence[int], workers: int
) -> Iterator[Seen]:
    """Outcomes in the order of :meth:`Replay.run`, each as soon as those before it are there."""
    context = multiprocessing.get_context("spawn")
    names = [str(length) for length in lengths]
    companions = [companion.name for companion in incident.companions]
    wanted = [(one.name, name) for one in variants for name in names + companions * one.faulty]
    found: dict[tuple[str, str], Seen] = {}
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(incident, operators, device)) as pool:
        for done in as_completed([pool.submit(_play, share) for share in shares(variants, lengths)]):
            found |= {(one.variant, one.name): one for one in done.result()}
            while wanted and wanted[0] in found:
                yield found[wanted.pop(0)]


_replay: Replay
"""That of a worker."""


def _begin(incident: Incident, operators: str, device: str) -> None:
    global _replay
    limit_threads(1)
    _replay = Replay(incident, injected(operators, device), device)


def _play(share: Share) -> list[Seen]:
    return list(_replay.run(share.variants, share.lengths, companions=share.companions))
