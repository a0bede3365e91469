"""One judged step and what is said after it, and the step that came before."""

from __future__ import annotations

from dataclasses import dataclass

from ...reference.routing import Mode
from ..errors import BadInput
from ..layer.contract import Monitor
from ..layer.rig import StepResult
from .prompts import FILLER, VOCABULARY, prompt
from .retrieval import RetrievalRig

#: Words said after a prompt.
TOKENS = 8
#: Id of the request of the preceding step; those of a scene count from 0.
_PRECEDING = 1_000_000


@dataclass(frozen=True, slots=True)
class Scene:
    """A step: requests whose prompts came in earlier steps and that decode in it, and prompts that are new in it."""

    before: tuple[int, ...]
    prompts: tuple[int, ...]
    mode: Mode = "NONE"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the prompts of all requests, in the order of their ids 0, 1, …"""
        return (*self.before, *self.prompts)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """The judged step, and the first words that every request said, by its id."""

    result: StepResult
    said: tuple[tuple[int, ...], ...]


def play(rig: RetrievalRig, scene: Scene, tokens: int = TOKENS) -> Played:
    """Earlier prompts one a step, the judged step, and decode steps of one token each until ``tokens`` are said."""
    ids = range(len(scene.lengths))
    rig.texts |= {number: prompt(length)[0] for number, length in enumerate(scene.lengths)}
    for number, length in enumerate(scene.before):
        rig.say(rig.step([(number, length)]))
    queries = [(number, 1 if number < len(scene.before) else scene.lengths[number]) for number in ids]
    result = rig.step(queries, mode=scene.mode, decoding=not scene.prompts)
    rig.say(result)
    while min(len(rig.texts[number]) - scene.lengths[number] for number in ids) < tokens:
        rig.say(rig.step([(number, 1) for number in ids], decoding=True))
    return Played(result, tuple(tuple(rig.texts[n][scene.lengths[n] :][:tokens]) for n in ids))


def preceding_tokens(rows: int, least: int, topk: int) -> int:
    """Length of the request that :func:`precede` runs."""
    # The first two words of the opposite kind still follow one of the other, so their keys are mixed.
    return least + 2 + topk + rows


def precede(rig: RetrievalRig, rows: int, least: int) -> None:
    """Leave ``rows`` rows in the buffer, none of which selected a position before ``least``.

    One request reads ``least`` words of one kind and then only their opposite, so that every later token finds all the
    keys of its own kind before any other; the last ``rows`` tokens have more than top-k of those. Raises BadInput where
    the rows are not what they are to be.
    """
    kind, opposite = VOCABULARY - 1, FILLER
    total = preceding_tokens(rows, least, rig.deployment.index_topk)
    context = total - rows
    rig.texts[_PRECEDING] = [kind] * least + [opposite] * (total - least)
    most = len(rig.buffer.indices)
    for count in filter(None, (*[most] * (context // most), context % most, rows)):
        result = rig.step([(_PRECEDING, count)])
        if result.violations:
            raise BadInput(f"preceding step: expected a right one, got {result.violations[0]}")
    found = int(rig.buffer.indices[:rows].min())
    if found < least:
        raise BadInput(f"preceding step: expected selections from position {least} on, got {found}")
    # Its traces are as large as what it read, and nobody asks for them again.
    rig.monitor = Monitor(rig.rules, rig.deployment)
