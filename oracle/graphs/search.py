"""Random sequences: a Hypothesis state machine feeds steps to the engines until one breaks a check, and shrinks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import Unsupported
from .engine import Engine
from .faults import GraphFault
from .makers import maker
from .run import StepSeen, Trial
from .sequences import GraphMode, Sequence, Step
from .setup import LONGEST, Setup, setup

_NAMES = "abcdef"
_SIZES = ((1, 4), (4, 8), (8, 16), (4, 24))


@dataclass(frozen=True, slots=True)
class Found:
    """The shortest sequence that Hypothesis came to, and what it broke first."""

    sequence: Sequence
    told: str


class _Broken(AssertionError):
    def __init__(self, found: Found) -> None:
        super().__init__(f"{found.told}; sequence: {found.sequence}")
        self.found = found


def search(
    given: Setup, count: int, *, steps: int = 6, seed: int = 0, fault: GraphFault | None = None, shrink: bool = True
) -> Found | None:
    """Up to ``count`` random sequences of up to ``steps`` steps; None if none breaks a check.

    The same seed tries the same sequences. ``fault`` plants its engine and rules. Raises Unsupported where Hypothesis
    is not installed.
    """
    try:
        from hypothesis import HealthCheck, Phase, settings
        from hypothesis import seed as seeded
        from hypothesis.stateful import run_state_machine_as_test
    except ImportError as error:
        raise Unsupported("random search needs Hypothesis; pip install hypothesis") from error
    budget = settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seeded(seed)(machine(given, fault)), settings=budget)
    except _Broken as broken:
        return broken.found
    return None


def machine(given: Setup, fault: GraphFault | None = None) -> Any:
    """The state machine class: capture, then prefill, extend, decode, preempt, with and without a graph."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

    device = given.sizes.device
    if fault is not None:
        given, truth = setup(fault.subject, device, fault.version), setup(fault.subject, device, fault.truth)
    else:
        truth = given
    modes: list[GraphMode] = ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE", "NONE"]
    prompts = st.sampled_from([3, 6, 1, 12])
    switches = st.sampled_from(["", "", "force", "eager"])

    class Sequences(RuleBasedStateMachine):
        @initialize(mode=st.sampled_from(modes), sizes=st.sampled_from(_SIZES), length=st.sampled_from([2, 6, 20]))
        def capture(self, mode: GraphMode, sizes: tuple[int, ...], length: int) -> None:
            self.mode, self.length = mode, length
            self.sizes = () if mode == "NONE" else sizes
            self.taken: list[Step] = []
            self.lengths: dict[str, int] = {}
            engine = fault.engine if fault else Engine
            self.trial = Trial(mode, self.sizes, length, given, maker(device), engine, truth)
            if self.trial.opening is not None:
                self.judge(self.trial.opening)

        def take(self, queries: list[tuple[str, int]], switch: str = "", preempted: tuple[str, ...] = ()) -> None:
            step = Step(tuple(queries), preempted, switch == "eager", switch == "force")
            self.taken.append(step)
            for name in preempted:
                del self.lengths[name]
            for name, tokens in queries:
                self.lengths[name] = self.lengths.get(name, 0) + tokens
            self.judge(self.trial.take(step))

        def judge(self, seen: StepSeen) -> None:
            if seen.violations:
                told = str(seen.violations[0])
                # A capture that is broken by itself needs a step to be a sequence.
                taken = tuple(self.taken) or (Step((("a", 1),)),)
                raise _Broken(Found(Sequence(self.mode, self.sizes, self.length, taken), told))

        def fresh(self) -> str | None:
            return next((name for name in _NAMES if name not in self.lengths), None)

        def open(self, room: int) -> list[str]:
            return [name for name, tokens in self.lengths.items() if tokens + room <= LONGEST]

        @rule(tokens=prompts, switch=switches)
        def prefill(self, tokens: int, switch: str) -> None:
            name = self.fresh()
            if name is not None:
                self.take([(name, tokens)], switch)

        @precondition(lambda self: self.lengths)
        @rule(switch=switches)
        def decode(self, switch: str) -> None:
            if self.open(1):
                self.take([(name, 1) for name in self.open(1)], switch)

        @precondition(lambda self: self.lengths)
        @rule(tokens=prompts, switch=switches)
        def prefill_among_decodes(self, tokens: int, switch: str) -> None:
            name = self.fresh()
            if name is not None:
                self.take([*((other, 1) for other in self.open(1)), (name, tokens)], switch)

        @precondition(lambda self: self.lengths)
        @rule(tokens=st.sampled_from([3, 9]), switch=switches)
        def extend(self, tokens: int, switch: str) -> None:
            names = self.open(tokens)
            if names:
                self.take([(names[0], tokens), *((name, 1) for name in names[1:])], switch)

        @precondition(lambda self: self.lengths)
        @rule(tokens=prompts, switch=switches)
        def preempt(self, tokens: int, switch: str) -> None:
            name = next(iter(self.lengths))
            self.take([(name, tokens)], switch, (name,))

    return Sequences
