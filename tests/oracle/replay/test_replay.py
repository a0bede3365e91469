"""The replay of vllm#52512 in short: the incident as users saw it, both detectors, and the cures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.errors import Unsupported
from attnoracle.oracle.replay.incident import Incident, load_incident
from attnoracle.oracle.replay.operators import Injected, injected, reference_operators
from attnoracle.oracle.replay.outcome import Seen
from attnoracle.oracle.replay.play import prepare
from attnoracle.oracle.replay.prompts import FILLER, prompt
from attnoracle.oracle.replay.replay import Replay
from attnoracle.oracle.replay.retrieval import WIDE

FAULTY = ("faulty", "faulty-stale")
CURES = ("forced-mqa", "capability-off", "mha-branch")
BOTH = ("layer-contract", "differential")


@pytest.fixture(scope="module")
def incident() -> Incident:
    return load_incident("pr-52512")


@pytest.fixture(scope="module")
def seen(incident: Incident) -> dict[tuple[str, str], Seen]:
    """Every variant on both sides of the decode threshold, and the companions where something is wrong."""
    operators, wrong = injected("reference", "cpu"), [incident.variant(name) for name in FAULTY]
    cured = [variant for variant in incident.variants if variant.name not in FAULTY]
    seen = [*Replay(incident, operators).run(wrong, (128, 129))]
    seen += Replay(replace(incident, companions=()), operators).run(cured, (128, 129))
    return {(one.variant, one.name): one for one in seen}


@pytest.mark.parametrize("length", ["129"])
@pytest.mark.parametrize("variant", FAULTY)
def test_faulty_lengths_repeat_a_word(seen: dict[tuple[str, str], Seen], variant: str, length: str) -> None:
    one = seen[variant, length]
    assert (one.status, one.detected_by, one.met) == ("FAIL", BOTH, True)
    assert set(one.tokens) == {FILLER}
    assert (one.classification, one.route_decided, one.route_executed) == ("prefill", "dense_mha", "sparse_mqa")
    assert one.indexer_skipped
    assert one.minus_one_share == (1.0 if variant == "faulty" else 0.0)


@pytest.mark.parametrize("length", ["128"])
@pytest.mark.parametrize("variant", [*FAULTY, *CURES])
def test_prompts_up_to_the_threshold_are_decodes(seen: dict[tuple[str, str], Seen], variant: str, length: str) -> None:
    one = seen[variant, length]
    assert (one.status, one.detected_by, one.met) == ("PASS", (), True)
    assert (one.classification, one.route_executed, one.indexer_skipped) == ("decode", "sparse_mqa", False)


@pytest.mark.parametrize("length", ["129"])
@pytest.mark.parametrize("variant", CURES)
def test_cures_are_right(seen: dict[tuple[str, str], Seen], variant: str, length: str) -> None:
    one = seen[variant, length]
    assert (one.status, one.detected_by, one.met) == ("PASS", (), True)
    assert one.tokens == one.expected_tokens == tuple(prompt(int(length))[1][:8])
    dense = variant == "mha-branch"
    assert (one.route_executed, one.indexer_skipped) == (("dense_mha", True) if dense else ("sparse_mqa", False))


@pytest.mark.parametrize("variant", FAULTY)
def test_companions_are_right_in_faulty_variants(
    seen: dict[tuple[str, str], Seen], incident: Incident, variant: str
) -> None:
    for companion in incident.companions:
        one = seen[variant, companion.name]
        assert (one.status, one.detected_by, one.met) == ("PASS", companion.detected_by, True)
        assert one.tokens == one.expected_tokens
        assert ("layer-contract" in one.detected_by) is (one.route_decided == "dense_mha")


@pytest.mark.parametrize(("length", "status"), [(2048, "FAIL"), (2049, "PASS")])
def test_the_upper_end(incident: Incident, length: int, status: str) -> None:
    replay = Replay(replace(incident, companions=()), injected("reference", "cpu"))
    (one,) = replay.run([incident.variant("faulty")], [length])
    assert (one.status, one.met) == (status, True)


def test_numbers_alone_are_detected_by_the_differential_check(incident: Incident) -> None:
    """A kernel 1 % off in a layer that does everything in the right order; the tokens do not show it."""
    right = reference_operators(torch.float32)

    def dense_mha(**inputs: Any) -> tuple[Any, ...]:
        out, lse = right.operators["dense_mha"](**inputs)
        return out * 1.01, lse

    wrong = Injected(operators={**right.operators, "dense_mha": dense_mha}, dtype=right.dtype, format=right.format)
    (one,) = Replay(incident, wrong).run([incident.variant("mha-branch")], [129])
    assert (one.status, one.detected_by, one.met) == ("FAIL", ("differential",), False)
    assert one.tokens == one.expected_tokens


def test_the_dims_of_a_real_model_say_the_same(incident: Incident) -> None:
    """For kernels that know no other dims: what is wider than the small model holds zeros."""
    wide = replace(reference_operators(torch.float32), dims=WIDE)
    (one,) = Replay(incident, wide).run([incident.variant("mha-branch")], [129])
    assert (one.status, one.detected_by, one.met) == ("PASS", (), True)
    assert one.route_executed == "dense_mha" and one.tokens == one.expected_tokens


def test_flashinfer_is_refused_with_its_reason_where_it_cannot_run() -> None:
    with pytest.raises(Unsupported, match=r"implementations flashinfer: .*flashinfer needs a CUDA device"):
        injected("flashinfer", "cpu")


def test_prompts_can_only_be_continued_from_far_back() -> None:
    words, rest = prompt(512)
    cue = words[-2:]
    places = [place for place in range(len(words) - 1) if words[place : place + 2] == cue]
    assert places == [8, 510]
    assert words[10:24] == rest
    assert words.count(FILLER) > 256


def test_the_triton_kernels_inside_the_layers(incident: Incident) -> None:
    """Dense and sparse routes on shipped kernels, judged by what their formats make certain."""
    reason = availability()
    if reason is not None:
        pytest.skip(reason)
    kernels = injected("triton", "cpu")
    variants = [incident.variant("mha-branch")]
    (one,) = Replay(incident, kernels).run(variants, [129])
    assert (one.status, one.detected_by, one.met) == ("PASS", (), True)
    assert 0 < one.worst <= 1


def test_the_quick_form_leaves_out_the_companion_that_costs_as_much_as_the_rest():
    incident = load_incident("pr-52512")
    assert [one.name for one in incident.companions if not one.quick] == ["one prefill above 2048"]
    faulty = sum(variant.faulty for variant in incident.variants)
    assert prepare(incident, quick=True).total == len(incident.variants) * len(incident.quick_lengths) + 2 * faulty


def test_what_precedes_is_cut_into_steps_that_have_tokens():
    """Its context is twice the rows of a buffer that is as long as the longest prompt alone."""
    incident = load_incident("pr-52512")
    replay = Replay(replace(incident, companions=()), injected("reference", "cpu"))
    (stale,) = [variant for variant in incident.variants if variant.preceded]
    assert (
        int(replay._start(stale).buffer.indices[: incident.preceding.rows].min()) >= incident.preceding.least_selected
    )
