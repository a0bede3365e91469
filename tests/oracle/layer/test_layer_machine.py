"""Random batch sequences: the right layer never breaks its contract, every planted fault does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from attnoracle.oracle.layer.evidence import Violation
from attnoracle.oracle.layer.expected import wrong_numbers
from attnoracle.oracle.layer.fault import LayerFault
from attnoracle.oracle.layer.faults import LAYER_FAULTS
from attnoracle.oracle.layer.rig import Rig, RigSizes
from attnoracle.reference.layer import MissingMetadata
from attnoracle.reference.routing import Deployment, Rules

SIZES = RigSizes(kinds=("full", "shared", "full"), blocks=96, max_tokens=160, index_heads=4)
RIGHT = LayerFault(name="right", source="", rules=())
LONGEST = 48


class Broken(AssertionError):
    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("\n".join(map(str, violations)))
        self.rules = {violation.rule for violation in violations}


def machine(rules: Rules, deployment: Deployment, fault: LayerFault) -> Callable[[], RuleBasedStateMachine]:
    class Sequences(RuleBasedStateMachine):
        """Prefill, extend, decode and preempt over a rig; a step whose contract is broken raises."""

        @initialize(
            wrapper=st.sampled_from(["fused", "generic"]),
            topk=st.sampled_from([4, 16]),
            force=st.sampled_from([False, False, True]),
            seqs=st.sampled_from([1, 4]),
        )
        def build(self, wrapper: Any, topk: int, force: bool, seqs: int) -> None:
            changed = replace(deployment, wrapper=wrapper, index_topk=topk, force_mqa=force, max_num_seqs=seqs)
            self.rig = Rig(rules, changed, SIZES, make=fault.make)
            self.alter = fault.alter()
            self.fresh = 0

        def run(self, queries: list[tuple[int, int]], mode: Any = "NONE", decoding: bool = False) -> None:
            try:
                result = self.rig.step(queries, mode=mode, decoding=decoding, alter=self.alter)
            except MissingMetadata:
                raise Broken(self.rig.monitor.end()) from None
            violations = result.violations
            if fault is RIGHT or "differential" in fault.rules:
                violations = (*violations, *wrong_numbers(self.rig, result))
            if violations:
                raise Broken(violations)

        @rule(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3), mode=st.sampled_from(["NONE", "PIECEWISE"]))
        def prefill(self, lengths: list[int], mode: str) -> None:
            for number in list(self.rig.lengths)[: max(0, len(self.rig.lengths) + len(lengths) - 5)]:
                self.rig.preempt(number)
            self.run([(self.fresh + place, length) for place, length in enumerate(lengths)], mode)
            self.fresh += len(lengths)

        @precondition(lambda self: self.rig.lengths)
        @rule(length=st.integers(3, 12), others=st.integers(1, 3), mode=st.sampled_from(["NONE", "PIECEWISE"]))
        def extend(self, length: int, others: int, mode: str) -> None:
            """One request by a chunk of its prompt, others by a token or two."""
            open_ = [number for number, known in self.rig.lengths.items() if known + length <= LONGEST]
            if open_:
                self.run([(number, length if not place else others) for place, number in enumerate(open_)], mode)

        @precondition(lambda self: self.rig.lengths)
        @rule(tokens=st.sampled_from([1, 2]), mode=st.sampled_from(["NONE", "FULL"]))
        def decode(self, tokens: int, mode: str) -> None:
            open_ = [number for number, known in self.rig.lengths.items() if known + tokens <= LONGEST]
            if open_:
                self.run([(number, tokens) for number in open_], mode, decoding=True)

        @precondition(lambda self: self.rig.lengths)
        @rule(length=st.integers(3, 20))
        def prefill_among_decodes(self, length: int) -> None:
            open_ = [number for number, known in self.rig.lengths.items() if known < LONGEST][:3]
            if open_ and len(self.rig.lengths) < 5:
                self.run([*((number, 1) for number in open_), (self.fresh, length)])
                self.fresh += 1

        @precondition(lambda self: 0 < len(self.rig.lengths) < 5 and max(self.rig.lengths.values()) >= 4)
        @rule(length=st.integers(1, 12), pages=st.sampled_from([1, 2, 5]))
        def hit_a_prefix(self, length: int, pages: int) -> None:
            donor = max(self.rig.lengths, key=lambda number: self.rig.lengths[number])
            self.rig.adopt(self.fresh, donor, min(4 * pages, self.rig.lengths[donor] // 4 * 4))
            self.fresh += 1
            self.run([(self.fresh - 1, length)])

        @precondition(lambda self: len(self.rig.lengths) > 1)
        @rule(length=st.integers(1, 20))
        def start_over(self, length: int) -> None:
            number = next(iter(self.rig.lengths))
            self.rig.preempt(number)
            self.run([(number, length)])

    return Sequences


def play(rules: Rules, deployment: Deployment, fault: LayerFault) -> None:
    """At most 20 sequences of 8 steps, 14 of the right layer, always the same ones."""
    budget = settings(
        max_examples=14 if fault is RIGHT else 20,
        stateful_step_count=8,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine(rules, deployment, fault), settings=budget)


def test_the_right_layer_never_breaks_its_contract(rules: Rules, deployment: Deployment) -> None:
    play(rules, deployment, RIGHT)


@pytest.mark.parametrize("fault", LAYER_FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_caught(rules: Rules, deployment: Deployment, fault: LayerFault) -> None:
    with pytest.raises(Broken) as caught:
        play(rules, deployment, fault)
    assert caught.value.rules & set(fault.rules), str(caught.value)


def test_there_are_enough_faults() -> None:
    names = [fault.name for fault in LAYER_FAULTS]
    assert len(set(names)) == len(names) >= 15
