"""No right implementation fails on a drawn case. A failing draw names the case and the command that runs it again."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.inputs import KINDS, OPTIONS
from attnoracle.oracle.strategies import PROFILES, cases, use_profile
from attnoracle.oracle.suites import fixture_cases

#: torch's CPU flash kernels need heads as wide in values as in keys.
GEOMETRY = {"dense_mha": "glm-5"}
#: FlexAttention compiles every shape anew, seconds each.
SLOW = "flex"
NIGHT = use_profile() == "nightly"


def _of(operator: str, *, triton: bool) -> list[Implementation]:
    mine = [one for one in IMPLEMENTATIONS if one.operator == operator and one.backend != SLOW]
    return [one for one in mine if one.backend.startswith("triton") == triton]


def _hold(case: Case, implementations: list[Implementation]) -> None:
    for one in implementations:
        try:
            verdict = check(case, one)
        except Exception as error:
            error.add_note(f"while checking {case.id} with {one.name}")
            raise
        assert not verdict.bad, f"{verdict.status}: {verdict.reason}\nrun it again: {verdict.repro}"


def _draw(operator: str, examples: int, implementations: list[Implementation], shrink: bool = True, **options) -> None:
    """``examples`` cases by day, as many as the profile says by night."""

    @settings(
        max_examples=settings().max_examples if NIGHT else examples,
        phases=[phase for phase in Phase if shrink or phase is not Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(operator, **options))
    def hold(case):
        _hold(case, implementations)

    hold()


@pytest.mark.parametrize("operator", KINDS)
def test_torch(operator):
    _draw(operator, 16, _of(operator, triton=False), geometry=GEOMETRY.get(operator, "tiny"))


@pytest.mark.parametrize("operator", KINDS)
def test_triton(operator):
    _draw(operator, 6, _of(operator, triton=True), largest=65)


@pytest.mark.parametrize("case", fixture_cases(), ids=lambda case: case.id)
def test_cases_that_once_failed_wrongly_pass(case):
    for one in _of(case.operator, triton=False) + _of(case.operator, triton=True):
        verdict = check(case, one)
        assert verdict.status in ("PASS", "UNSUPPORTED"), f"{verdict.reason}\nrun it again: {verdict.repro}"


# The strategies themselves.


class Enough(Exception):
    """Everything was drawn that is waited for."""


@pytest.mark.parametrize("operator", KINDS)
def test_what_is_drawn_reaches_every_kind_and_option(operator):
    seen: list[Case] = []
    unwanted = {"hugerows"} | ({"poison-nan"} if operator in ("dense_mha", "masked_mha") else set())
    options = set(OPTIONS[operator]) - unwanted

    def missing() -> list[str]:
        found = {
            "kinds": {case.kind for case in seen} == set(KINDS[operator]),
            "layouts": {case.layout for case in seen} == {"contiguous", "offset", "strided"},
            "options": {option for case in seen for option in case.options} == options,
            "no keys": any(0 in case.k_lens for case in seen),
            # A step of decoding: as many queries for every request, at least one.
            "no queries": operator == "paged_indexer_scores" or any(0 in case.q_lens for case in seen),
            "fewer keys": operator == "merge_lse"
            or any(q > k for case in seen for q, k in zip(case.q_lens, case.k_lens, strict=True)),
        }
        return [name for name, there in found.items() if not there]

    @settings(
        derandomize=True, deadline=None, max_examples=600, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    @given(cases(operator))
    def collect(case):
        assert Case.parse(case.id) == case
        assert set(case.options) <= options and case.kind in KINDS[operator]
        if len(seen) == 600 or (len(seen) % 40 == 0 and not missing()):
            raise Enough  # in Hypothesis' repetition of the last one too
        seen.append(case)

    with suppress(Enough):
        collect()
    assert not missing()


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.data(), st.integers(1, 20))
def test_lengths_are_bounded(data, largest):
    case = data.draw(cases("dense_mha", largest=largest))
    assert max(*case.q_lens, *case.k_lens) <= largest


def test_an_unknown_operator_is_bad_input():
    with pytest.raises(BadInput, match="operator 'mha': expected one of dense_mha"):
        _draw("mha", 1, [])


def test_a_failing_draw_prints_the_case_and_the_command():
    def broken(q, v, **rest):
        return q.new_zeros(*q.shape[:2], v.shape[2]), q[..., 0].float()

    right = find("dense_mha/eager")
    wrong = Implementation("dense_mha/broken", right.contract, right.supports, lambda: broken)
    with pytest.raises(AssertionError, match=r"run it again: attnoracle repro 'dense_mha:tiny:h\d+:q.*' --implement"):
        _draw("dense_mha", 5, [wrong], shrink=False, geometry="tiny", largest=33)


def test_the_profile_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "nightly")
    try:
        assert use_profile() == "nightly" and not settings().derandomize
        monkeypatch.setenv("HYPOTHESIS_PROFILE", "daily")
        with pytest.raises(BadInput, match="HYPOTHESIS_PROFILE: expected one of steady, nightly, got 'daily'"):
            use_profile()
    finally:
        monkeypatch.undo()
        use_profile()
    assert PROFILES["steady"].derandomize and PROFILES["steady"].deadline is None
