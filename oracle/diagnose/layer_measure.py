"""How good the search for a stage in a layer is: faults planted in layers, builders and operators, on random steps.

The stage of a fault is written down here by its mechanism. Left out are faults that change no number (a branch reported
too early, a guard not asked) and builders that leave a field out, at which a layer stops by itself and names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from ...reference.layer import MissingMetadata
from ..faults import FAULTS, Fault
from ..layer import small
from ..layer.fault import LayerFault
from ..layer.faults import LAYER_FAULTS
from ..layer.rig import REFERENCE_OPERATORS, RigSizes
from .dictionary import numeric
from .hypothesis import Stage
from .layer_stages import OF_OPERATOR, LayerDiagnosis, localise
from .truth import MARKS

SIZES = RigSizes(kinds=("full", "shared", "full"), blocks=96, max_tokens=160)
DEPLOYMENT = replace(small.DEPLOYMENT, max_num_seqs=2)
#: Random sequences of steps that a fault is tried on, and steps of one.
SEQUENCES, STEPS = 8, 4
#: Stages at which faults of layers and builders act; several where one fault acts on what two stages hand on.
STAGES_OF: dict[str, tuple[Stage, ...]] = {
    "never-mha": ("route",),
    "skips-on-length": ("route",),
    "skips-before-caching": ("indexer q/k",),
    "loses-one": ("index conversion", "top-k"),
    "sees-the-future": ("index conversion", "top-k"),
    "repeats": ("index conversion", "top-k"),
    "writes-prefill-rows-only": ("index conversion", "top-k"),
    "keeps-the-first-selection": ("index conversion", "top-k", "route"),
    "rotates-twice": ("rope",),
    "never-rotates": ("rope",),
    "absorbed-into-mha": ("projection",),
    "unabsorbed-into-mqa": ("projection",),
    "decodes-as-prefills": ("route",),
    "takes-steps-for-dummies": ("route", "output"),
    "previous-requests": ("route", "gather", "index conversion", "quantised cache"),
    "swapped-tables": ("gather", "index conversion"),
    "shifted-slots": ("quantised cache", "gather"),
    "one-slot-for-all": ("quantised cache", "gather"),
    "loses-a-chunk": ("gather", "route"),
    "repeats-a-chunk": ("gather", "route"),
    "always-dense": ("route",),
}
#: Every n-th fault of an operator is planted in the layer.
EVERY = 9


@dataclass(frozen=True, slots=True)
class LayerTrial:
    """What became of one fault in a layer."""

    fault: str
    planted_in: str
    """``layer``, ``builder`` or ``operator``."""
    stage: str
    """Found; empty if no sequence showed the fault."""
    right: bool
    confirmed: bool | None
    """Whether the exchange of the stage alone, both ways, agreed; None where it cannot be exchanged."""
    sequences: int
    """Looked at until the fault showed."""


def sequences(seed: int = 0) -> Iterator[list[list[tuple[int, int]]]]:
    """Random steps of up to three requests: prompts, chunks of them, decodes; always the same for a seed."""
    for number in range(SEQUENCES):
        random = Random(1_000_003 * seed + number)
        lengths: dict[int, int] = {}
        steps = []
        for _ in range(STEPS):
            step = []
            for request in random.sample(range(4), random.randint(1, 3)):
                new = random.choice((1, 2, random.randint(3, 12))) if request in lengths else random.randint(2, 16)
                if lengths.get(request, 0) + new <= DEPLOYMENT.max_model_len:
                    lengths[request] = lengths.get(request, 0) + new
                    step.append((request, new))
            steps.append(step)
        yield [step for step in steps if step]


def of_layers() -> Iterator[LayerTrial]:
    """Every fault of a layer or a builder that changes numbers."""
    for fault in LAYER_FAULTS:
        if fault.name in STAGES_OF:
            made = _found(fault)
            yield _trial(fault.name, "layer" if _is_honest(fault) else "builder", STAGES_OF[fault.name], *made)


def of_operators() -> Iterator[LayerTrial]:
    """Every ``EVERY``-th fault of an operator, planted in a layer that is right otherwise."""
    planted = [one for one in FAULTS if one.operator in REFERENCE_OPERATORS and one.planted_in == "simulated"]
    for fault in [one for one in planted if numeric(one) and not one.options and one.name not in MARKS][::EVERY]:
        yield _trial(fault.name, "operator", _stages_in(fault), *_found(fault))


def _stages_in(fault: Fault) -> tuple[Stage, ...]:
    """An operator of attention is told by its output and LSE: any of its stages counts."""
    one = OF_OPERATOR.get(fault.operator)
    return (one,) if one else ("scores", "P.V", "lse")


def _is_honest(fault: LayerFault) -> bool:
    return fault.alter.__name__ == "_honest"


def _found(fault: LayerFault | Fault) -> tuple[LayerDiagnosis | None, int]:
    """The first diagnosis with a breach, and how many sequences it took."""
    for number, steps in enumerate(sequences(), 1):
        try:
            if isinstance(fault, LayerFault):
                alter = None if _is_honest(fault) else fault.alter
                found = localise(small.small_rules(), DEPLOYMENT, SIZES, steps, make=fault.make, alter=alter)
            else:
                operators = {**REFERENCE_OPERATORS, fault.operator: fault.plant()}
                found = localise(small.small_rules(), DEPLOYMENT, SIZES, steps, operators=operators)
        except (MissingMetadata, RuntimeError, ValueError, IndexError, KeyError, AssertionError):
            continue  # the layer, or an operator that got what it cannot take, stopped by itself
        if found.breaches:
            return found, number
    return None, SEQUENCES


def _trial(
    name: str, place: str, wanted: tuple[Stage, ...], found: LayerDiagnosis | None, sequences_: int
) -> LayerTrial:
    stage = found.stage if found else None
    confirmed = found.exchange.confirmed if found and found.exchange else None
    return LayerTrial(name, place, stage or "", stage in wanted, confirmed, sequences_)


def run(file: Path) -> None:
    """Measure all of them, one JSON line a fault."""
    with file.open("w", encoding="utf-8") as lines:
        for trial in chain(of_layers(), of_operators()):
            lines.write(json.dumps(asdict(trial)) + "\n")
            lines.flush()


def summary(trials: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """By where they are planted: how many showed on the sequences, and how many of these are at the right stage."""
    trials, found = list(trials), dict[str, Any]()
    for place in ("layer", "builder", "operator"):
        here = [trial for trial in trials if trial["planted_in"] == place]
        shown = [trial for trial in here if trial["stage"]]
        right = sum(bool(trial["right"]) for trial in shown)
        share = round(right / len(shown), 4) if shown else None
        found[place] = {"faults": len(here), "shown": len(shown), "right_stage": share}
    return found
