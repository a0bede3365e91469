"""Our routing rules beside vLLM's own functions, decision by decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any

from ...reference.routing import (
    ContextChunk,
    MaskWorkspace,
    Rules,
    context_plan,
    context_rows,
    decide_route,
    decide_skip,
    mask_shape,
)
from ..routes.batches import EDGES
from .agreement import Comparison
from .batches import Question
from .theirs import is_ours
from .vllm_rules import EngineRoute, VllmRules

_WHAT = {
    "answers": "whether a batch is decided at all",
    "threshold": "longest query that counts as decode",
    "split": "decode requests and tokens of a batch, padding among the requests",
    "gate": "whether masked MHA is possible at all",
    "workspace": "rows of the chunked-context workspace",
    "dense": "use_dense_mha of the prefill metadata",
    "chunks": "how cached context is cut",
    "guard": "whether the masks fit",
    "mha": "whether prefills run as MHA (_use_sparse_mha)",
    "masked": "the same, of batches where masked MHA was decided",
    "skip": "whether the indexer skips scoring",
}


def compare_rules(engine: VllmRules, rules: Rules, questions: Iterable[Question]) -> list[Comparison]:
    """One comparison a decision. Those of the prefill metadata are asked where there is one."""
    found = {name: Comparison(name, what) for name, what in _WHAT.items()}
    for question in questions:
        try:
            answers = _answers(engine, rules, question)
        except Exception as error:
            if is_ours(error):
                raise
            answers = {"answers": ("a decision", f"{type(error).__name__}: {error}")}
        else:
            answers["answers"] = ("a decision", "a decision")
        for name, (ours, theirs) in answers.items():
            found[name].note(partial(_spell, question), ours, theirs)
    return list(found.values())


def compare_mask_shapes(engine: VllmRules, workspace: MaskWorkspace, count: int, seed: int) -> Comparison:
    """Shapes of bit masks, with and without the word for key starts."""
    random, found = Random(seed), Comparison("mask-shape", "shape of a bit-packed mask")
    for _ in range(count):
        queries, keys = (random.choice(EDGES) + random.choice((-1, 0, 1)) or 1 for _ in range(2))
        requests, reserve = random.randint(1, 64), random.random() < 0.5
        ours = mask_shape(workspace, requests, queries, keys, reserve=reserve)
        found.note(
            lambda r=requests, q=queries, k=keys, w=reserve: {"requests": r, "queries": q, "keys": k, "reserve": w},  # type: ignore[misc]
            ours,
            engine.mask_shape(requests, queries, keys, reserve),
        )
    return found


def _answers(engine: VllmRules, rules: Rules, question: Question) -> dict[str, tuple[Any, Any]]:
    """Ours and the engine's, by decision."""
    deployment, batch = question.deployment, question.batch
    flag = rules.layer_supports_dense if deployment.layer_supports_dense is None else deployment.layer_supports_dense
    theirs: EngineRoute = engine.route(
        deployment,
        batch,
        layer_flag=flag,
        mode=question.mode,
        kind=question.kind,
        capturing=question.capturing,
        padding=question.padding,
    )
    ours = decide_route(rules, deployment, batch)
    split = ours.split.value
    skip = decide_skip(
        rules, deployment, ours, layer="layer", kind=question.kind, mode=question.mode, capturing=question.capturing
    )
    answers: dict[str, tuple[Any, Any]] = {
        "threshold": (ours.threshold.value, theirs.threshold),
        "split": (
            (len(split.decodes) + question.padding, split.num_decode_tokens),
            (theirs.num_decodes, theirs.num_decode_tokens),
        ),
        "gate": (ours.gate.value, theirs.gate),
        "workspace": (context_rows(rules, deployment).value, engine.workspace_rows(deployment)),
        "mha": (ours.route.value in ("dense_mha", "masked_mha"), theirs.mha),
        "skip": (skip.value, theirs.skip),
    }
    if ours.route.value == "masked_mha":
        answers["masked"] = (True, theirs.mha and not theirs.dense)
    if theirs.dense is not None:
        contexts = [request.context_len for request in split.prefills]
        plan = context_plan(rules, deployment, contexts)
        answers["dense"] = (ours.dense.value, theirs.dense)
        answers["chunks"] = ([_told(one) for one in plan], [asdict(one) for one in theirs.chunks or ()])
        if theirs.gate:
            answers["guard"] = (ours.guard.value, theirs.guard)
    return answers


def _told(chunk: ContextChunk) -> dict[str, Any]:
    """As the engine's are told."""
    return {
        "first": chunk.requests.start,
        "stop": chunk.requests.stop,
        "starts": chunk.starts,
        "lengths": chunk.lengths,
        "continues": chunk.continues,
    }


def _spell(question: Question) -> dict[str, Any]:
    return {
        "deployment": asdict(question.deployment),
        "requests": [(request.query_len, request.context_len) for request in question.batch.requests],
        "prefilling": [request.is_prefilling for request in question.batch.requests],
        "padding": question.padding,
        "mode": question.mode,
        "kind": question.kind,
        "capturing": question.capturing,
    }
