"""Routes that theory says are equal, through a whole layer on torch's and Triton's kernels, by the full verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.optimized.implementation import Implementation
from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.config import load
from attnoracle.oracle.errors import BadInput, Unsupported
from attnoracle.oracle.facts import facts
from attnoracle.oracle.faults import fault
from attnoracle.oracle.layer.implementations import chosen, natural
from attnoracle.oracle.layer.variants import RotatesTwice
from attnoracle.oracle.routes.agreement import ROUTES, AgreeingRoute, agree, case_of, composed, steps
from attnoracle.oracle.routes.agreement_inputs import latent_batch, quarter_turns
from attnoracle.oracle.verdict import Verdict

SHORT, LONG, FEW = (8, 5, 7), (9, 4, 15), (4, 9, 5)


@cache
def kernels(name: str) -> dict[str, Implementation]:
    """Torch's, with what attends and merges from Triton for ``triton``: its indexer is judged elsewhere."""
    case = case_of("tiny", 1, SHORT, 8)
    found = {one.operator: one for one in chosen("torch", facts(case, load("tiny"), "cpu"))}
    if name == "triton":
        reason = availability()
        if reason is not None:
            pytest.skip(reason)
        attends = {"dense_mha", "masked_mha", "sparse_mqa", "merge_lse"}
        found |= {one.operator: one for one in IMPLEMENTATIONS if one.backend == "triton" and one.operator in attends}
    return found


def routes(*names: str) -> list[AgreeingRoute]:
    known = {route.name: route for route in ROUTES}
    return [known[name] for name in names]


def verdicts(
    lengths: Sequence[int], topk: int, implementations: dict[str, Implementation], chosen: Sequence[AgreeingRoute]
) -> dict[str, Verdict]:
    case = case_of("tiny", 2 if lengths == LONG else 1, lengths, topk)
    return {route.name: found for route, found in agree(case, tuple(implementations.values()), routes=chosen)}


@pytest.mark.parametrize(("lengths", "topk"), [(SHORT, 8), (LONG, 6), ((30, 4, 9, 17), 12)])
def test_all_routes_on_torch(lengths: tuple[int, ...], topk: int) -> None:
    found = verdicts(lengths, topk, kernels("torch"), ROUTES)
    # No mask of torch's comes with an LSE, so its partials cannot be merged.
    unmerged = {"masked-context", "masked-chunks", "masked-ds-mla"} & set(found)
    assert {name: one.reason for name, one in found.items() if one.status != "PASS" and name not in unmerged} == {}
    assert {found[name].status for name in unmerged} <= {"UNSUPPORTED"}
    assert len(found) >= 8


@pytest.mark.parametrize(
    ("lengths", "topk", "names"),
    [
        (SHORT, 8, ("dense-chunks", "dense-packed", "sparse-short")),
        (FEW, 4, ("masked-chunks", "masked-ds-mla", "sparse-dcp-2", "sparse-ds-mla", "sparse-packed")),
    ],
)
def test_routes_on_triton(lengths: tuple[int, ...], topk: int, names: tuple[str, ...]) -> None:
    found = verdicts(lengths, topk, kernels("triton"), routes(*names))
    assert {name: (one.status, one.reason) for name, one in found.items()} == dict.fromkeys(names, ("PASS", ""))


@pytest.mark.parametrize(
    ("planted", "operator", "lengths", "name"),
    [
        ("triton-last-key-dropped", "dense_mha", SHORT, "dense-context"),
        ("first-key-dropped", "masked_mha", LONG, "masked"),
        ("merge-base-2-lse-as-natural", "merge_lse", LONG, "sparse-dcp-2"),
        ("merge-natural-lse-as-base-2", "merge_lse", SHORT, "dense-chunks"),
        ("lse-base-2", "sparse_mqa", LONG, "sparse-dcp-2"),
        ("first-entry-dropped", "sparse_mqa", LONG, "sparse"),
    ],
)
def test_one_wrong_kernel_disagrees(planted: str, operator: str, lengths: tuple[int, ...], name: str) -> None:
    """Every other kernel of the layer is right, and so is all that the layer does."""
    if planted.startswith("triton") and (reason := availability()) is not None:
        pytest.skip(reason)
    wrong = {**kernels("torch"), operator: fault(planted).implementation()}
    found = verdicts(lengths, 8, wrong, routes(name))
    assert found[name].status == "FAIL", found[name].reason


def test_a_wrong_layer_on_right_kernels_disagrees() -> None:
    (route,) = routes("dense")
    case = case_of("tiny", 1, SHORT, 8)
    ((_, found),) = agree(case, tuple(kernels("torch").values()), routes=[route], make=RotatesTwice)
    assert found.status == "ERROR" and "rotated 2 times" in found.reason


def test_another_route_than_the_wanted_one_is_an_error() -> None:
    (route,) = routes("dense")
    found = verdicts(SHORT, 8, kernels("torch"), [replace(route, executes=frozenset({"sparse_mqa"}))])
    assert found["dense"].status == "ERROR" and "ran ['dense_mha']" in found["dense"].reason


def test_batches_have_what_makes_routes_exact() -> None:
    batch = latent_batch(case_of("tiny", 2, LONG, 6))
    assert torch.equal(batch.w_uk.abs().sum(-1), torch.ones(2, batch.geometry.qk_nope_head_dim))
    x = batch.inputs[2]
    assert torch.equal(x["kv_c"].to(torch.bfloat16).float(), x["kv_c"])
    scores = torch.einsum("sie,te->st", x["index_q"], x["index_k"])
    assert all(len(row.unique()) == len(row) and row.min() > 0 for row in scores)
    turned = quarter_turns(x["k_pe"], torch.arange(15))
    assert torch.equal(turned[4:8], quarter_turns(x["k_pe"][4:8], torch.arange(4)))
    assert torch.equal(turned[1, :2], torch.stack((-x["k_pe"][1, 1], x["k_pe"][1, 0])))


@pytest.mark.parametrize("plan", ["whole", "cut", "decode", "mixed"])
def test_plans_run_every_token_once(plan: str) -> None:
    counted = [0, 0, 0]
    for queries in steps(plan, LONG):  # type: ignore[arg-type]
        for number, count in queries:
            counted[number] += count
    assert tuple(counted) == LONG


def test_an_lse_is_converted_by_its_contract() -> None:
    dense = kernels("torch")["dense_mha"].contract
    lse = torch.tensor([[2.0, -50000.0, torch.inf]])
    two = natural(lse, replace(dense, lse_base="2", empty_lse="sentinel"))
    assert two[0, 0] == pytest.approx(2 * 0.6931472) and two[0, 1] == -torch.inf
    assert natural(lse, replace(dense, empty_lse="+inf"))[0, 2] == -torch.inf


def test_a_composed_contract_is_the_coarsest() -> None:
    given = [replace(kernels("torch")["dense_mha"].contract, probabilities=name) for name in ("fp32", None, "e4m3")]
    assert composed(given[:2], merges=False).probabilities is None
    assert composed(given, merges=True).probabilities == "e4m3"
    assert composed(given, merges=True).partials == "bf16"


def test_sets_say_what_they_lack() -> None:
    known = facts(case_of("glm-5", 16, SHORT, 8), load("glm-5"), "cpu")
    with pytest.raises(Unsupported, match=r"dense_mha/flashinfer-fa2: flashinfer needs a CUDA device"):
        chosen("flashinfer", known)
    with pytest.raises(BadInput, match="nearest: torch"):
        chosen("torsh", known)
