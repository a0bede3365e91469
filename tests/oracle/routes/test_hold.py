"""Routers that are code, held to rules: right ones in several styles, and ones that are wrong in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.engines.batches import questions
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.policies import load_rules
from attnoracle.oracle.routes.hold import Held, hold
from attnoracle.oracle.routes.setup import make_deployment
from attnoracle.reference.routing import (
    classify,
    context_plan,
    decode_threshold,
    longest_chunk,
    mask_bytes,
)

RULES = load_rules("vllm-0.33")
GLM = make_deployment([RULES], "glm-5.2", backend="FLASHMLA_SPARSE", tensor_parallel=4, family=100, cache="model")
ROW = RULES.tables[(256, 256, "FLASHMLA_SPARSE", 4)]
THRESHOLD, TOPK = decode_threshold(RULES, GLM).value, GLM.index_topk


def router(queries: Sequence[int], lengths: Sequence[int], wrong: str = "") -> str:
    """Right, or wrong in one way."""
    rows = [(q, s) for q, s in zip(queries, lengths, strict=True) if q or wrong == "padding-counts"]
    first = rows[0][0]
    if wrong == "batch-is-one" and max(q for q, _ in rows) <= THRESHOLD:
        return "none"
    uniform = first <= THRESHOLD and wrong != "any-decodes"
    cut = next((n for n, (q, _) in enumerate(rows) if (q != first if uniform else q > THRESHOLD)), len(rows))
    prefills = rows[cut:]
    if not prefills:
        return "none"
    seen = rows if wrong == "decodes-too" else prefills
    longest = {"first-length": seen[0][1], "summed": sum(s for _, s in seen)}.get(wrong, max(s for _, s in seen))
    query = prefills[0][0] if wrong == "first-query" else max(q for q, _ in prefills)
    if (query if wrong == "query-for-length" else longest) + (wrong == "limit-excluded") <= TOPK:
        return "dense_mha"
    contexts = [s - q for q, s in prefills]
    cached = contexts[0] > 0 if wrong == "first-context" else any(contexts) and wrong != "continuation-is-fresh"
    intervals = ROW.context if cached and ROW.context is not None else ROW.pure
    worth = next((query >= shortest for last, shortest in intervals if longest <= last), False)
    chunk = 0 if wrong == "no-chunks" else longest_chunk(context_plan(RULES, GLM, contexts))
    assert RULES.mask_workspace is not None
    count = {"one-mask": 1, "every-row": len(queries)}.get(wrong, len(prefills))
    needed = mask_bytes(RULES.mask_workspace, count, query, max(query, chunk)) + (wrong == "guard-excluded")
    fits = needed <= RULES.mask_workspace.max_bytes or wrong == "no-guard"
    return "masked_mha" if worth and fits else "sparse_mqa"


def vectorised(queries: Sequence[int], lengths: Sequence[int]) -> str:
    """The same without a loop, as an engine keeps a batch; padding stays in, and is never a prefill."""
    q, s = torch.tensor(queries), torch.tensor(lengths)
    prefill = ((q != q[0]) & (q != 0)) if int(q[0]) < THRESHOLD + 1 else q > 0
    if not bool(prefill.any()):
        return "none"
    prefill = (prefill.cumsum(0) > 0) & (q > 0)
    q, s = q[prefill], s[prefill]
    if not bool((s > TOPK).any()):
        return "dense_mha"
    intervals = torch.tensor(ROW.context if bool((s > q).any()) else ROW.pure)
    at = int(torch.searchsorted(intervals[:, 0].contiguous(), s.max()))
    if at == len(intervals) or bool((q < intervals[at, 1]).all()):
        return "sparse_mqa"
    keys = torch.maximum(q.max(), (s - q).max().clamp_max(65536))
    tile = 128 if int(q.max()) <= 128 else 256
    bytes_ = 4 * len(q) * (-(-q.max() // tile) * tile) * (-(-keys // 128) * 4)
    return "masked_mha" if int(bytes_) <= 128 << 20 else "sparse_mqa"


def held(router: Callable[[Sequence[int], Sequence[int]], str], batches: int = 250) -> Held:
    return hold(router, RULES, GLM, batches=batches)


@pytest.mark.parametrize("right", [router, vectorised])
def test_right_routers_in_several_styles(right: Callable[[Sequence[int], Sequence[int]], str]) -> None:
    found = held(right)
    assert found.differences == () and found.batches > 250


WRONG = (
    "padding-counts",
    "batch-is-one",
    "any-decodes",
    "decodes-too",
    "first-length",
    "summed",
    "first-query",
    "query-for-length",
    "limit-excluded",
    "first-context",
    "continuation-is-fresh",
    "one-mask",
    "every-row",
    "guard-excluded",
    "no-guard",
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_router_is_seen(wrong: str) -> None:
    found = held(partial(router, wrong=wrong), 1500 if wrong == "every-row" else 250)
    assert found.wrong and found.differences, wrong


def test_a_difference_holds_nothing_that_it_does_without() -> None:
    (one, *_) = held(partial(router, wrong="padding-counts")).differences
    assert one.text.endswith("and 1 empty") and len(one.batch.requests) == 1 and one.due == "none"


def test_what_a_router_raises_is_a_difference_and_another_word_is_refused() -> None:
    assert held(lambda q, s: {}[0], 1).differences[0].got == "KeyError: 0"
    with pytest.raises(BadInput, match="expected one of dense_mha"):
        held(lambda q, s: "flash", 1)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["route", "--hold", f"{__file__}:router", "--backend", "FLASHMLA_SPARSE"]) == 0
    assert "batches as the rules say" in capsys.readouterr().out


def test_batches_for_engines_have_padding_flags_and_chunks() -> None:
    asked = list(questions(RULES, 400, 0))
    requests = [(one, request) for one in asked for request in one.batch.requests]
    assert sum(one.padding > 0 for one in asked) > 10
    for one in asked:
        assert not one.padding or not classify(RULES, one.deployment, one.batch)[1].value.prefills
    # The end of a prompt that is as short as a decode, and drafts that are longer than one token.
    assert any(request.prefilling and request.query_len == 1 for _, request in requests)
    assert any(request.prefilling is False and request.query_len > 1 for _, request in requests)
    several = [context_plan(RULES, one.deployment, [r.context_len for r in one.batch.requests]) for one in asked]
    assert sum(len(plan) > 2 and longest_chunk(plan[:1]) < longest_chunk(plan) for plan in several) > 5
    assert [one.padding for one in questions(RULES, 50, 1)] == [one.padding for one in questions(RULES, 50, 1)]
