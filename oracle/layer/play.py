"""Random sequences of batches under the layer contract, by a seed: whether a planted fault of a layer is seen.

The state machine of the tests plays the same moves and shrinks what it finds; this is for counting, without Hypothesis.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...reference.layer import MissingMetadata
from ...reference.routing import Rules
from .expected import wrong_numbers
from .fault import LayerFault
from .rig import Rig, RigSizes
from .small import DEPLOYMENT, small_rules

SIZES = RigSizes(kinds=("full", "shared", "full"), blocks=96, max_tokens=160, index_heads=4)
#: Sequences that a fault has to survive, and steps of each.
SEQUENCES, STEPS = 60, 8
#: Tokens of a request at most, and requests that are open at once.
LONGEST, OPEN, PAGE = 48, 5, DEPLOYMENT.block_size
#: One step: requests and their new tokens, the graph mode, whether the batch decodes.
Move = tuple[list[tuple[int, int]], str, bool]


def rules_broken(fault: LayerFault, seed: int = 0) -> tuple[tuple[str, ...], str]:
    """Rules that the fault broke until one did that it names, and the place of that; a sequence ends at the first.

    A layer that raises for what its builder tells it has broken ``raised``, which no fault names.
    """
    rules = small_rules()
    seen: dict[str, None] = {}
    for number in range(SEQUENCES):
        draw = random.Random(f"{seed} {number}")
        for place, broken in enumerate(_sequence(rules, fault, draw)):
            seen |= dict.fromkeys(broken)
            if set(broken) & set(fault.rules):
                return tuple(seen), f"sequence {number} of seed {seed}, step {place + 1}"
            if broken:
                break
    return tuple(seen), f"{SEQUENCES} sequences of seed {seed}"


def _sequence(rules: Rules, fault: LayerFault, draw: random.Random) -> Iterator[tuple[str, ...]]:
    """Rules that each step of one sequence broke."""
    deployment = replace(
        DEPLOYMENT,
        wrapper=draw.choice(("fused", "generic")),
        index_topk=draw.choice((4, 16)),
        force_mqa=draw.choice((False, False, True)),
        max_num_seqs=draw.choice((1, 4)),
    )
    rig = Rig(rules, deployment, SIZES, make=fault.make)
    alter = fault.alter()
    fresh = 0
    for _ in range(STEPS):
        queries, mode, decoding = draw.choice(_moves(rig, fresh))(draw)
        fresh = max([fresh, *(number + 1 for number, _ in queries)])
        if not queries:
            continue
        try:
            result = rig.step(queries, mode=mode, decoding=decoding, alter=alter)  # type: ignore[arg-type]
            violations = (*result.violations, *wrong_numbers(rig, result))
        except MissingMetadata:
            violations = rig.monitor.end()
        except (RuntimeError, IndexError, ValueError):
            if not fault.rules:
                raise
            violations = rig.monitor.end()
            yield (*dict.fromkeys(violation.rule for violation in violations), "raised")
            return
        yield tuple(dict.fromkeys(violation.rule for violation in violations))


def _moves(rig: Rig, fresh: int) -> list[Callable[[random.Random], Move]]:
    """What can be done now: prefill; with open requests extend, decode, prefill beside them, share, start over."""

    def prefill(draw: random.Random) -> Move:
        lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 3))]
        for number in list(rig.lengths)[: max(0, len(rig.lengths) + len(lengths) - OPEN)]:
            rig.preempt(number)
        return [(fresh + i, n) for i, n in enumerate(lengths)], draw.choice(("NONE", "PIECEWISE")), False

    def extend(draw: random.Random) -> Move:
        length, others = draw.randint(3, 12), draw.randint(1, 3)
        open_ = [number for number, known in rig.lengths.items() if known + length <= LONGEST]
        mode = draw.choice(("NONE", "PIECEWISE"))
        return [(number, length if not i else others) for i, number in enumerate(open_)], mode, False

    def decode(draw: random.Random) -> Move:
        tokens = draw.choice((1, 2))
        open_ = [number for number, known in rig.lengths.items() if known + tokens <= LONGEST]
        return [(number, tokens) for number in open_], draw.choice(("NONE", "FULL")), True

    def beside(draw: random.Random) -> Move:
        open_ = [number for number, known in rig.lengths.items() if known < LONGEST][:3]
        if not open_ or len(rig.lengths) >= OPEN:
            return [], "NONE", False
        return [*((number, 1) for number in open_), (fresh, draw.randint(3, 20))], "NONE", False

    def preempt(draw: random.Random) -> Move:
        number = next(iter(rig.lengths))
        rig.preempt(number)
        return [(number, draw.randint(1, 20))], "NONE", False

    def hit(draw: random.Random) -> Move:
        donors = [number for number, known in rig.lengths.items() if known >= PAGE]
        if not donors or len(rig.lengths) >= OPEN:
            return [], "NONE", False
        donor = draw.choice(donors)
        rig.adopt(fresh, donor, PAGE * draw.randint(1, rig.lengths[donor] // PAGE))
        return [(fresh, draw.randint(1, 12))], draw.choice(("NONE", "PIECEWISE")), False

    open_moves = [extend, decode, beside, hit] if rig.lengths else []
    return [prefill, *open_moves, *([preempt] if len(rig.lengths) > 1 else [])]
