"""A suite for one model: its cases, and how a stage of somebody's code is judged.

The code sees what the reference sees: exact intermediates of the stage before, rounded to the dtype that it runs in. So
a fault shows in its own stage and in no later one. A stage is right if every element lies within the budget that its
arithmetic allows (``budget``), a selection if it is one of those that the scores allow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...reference.stages import Model, Stage, random_weights, run, stages_of
from ..errors import BadInput
from . import cache_bytes
from .budget import BUDGETS
from .misreadings import named
from .subject import open_subject

DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Name in a checkout of transformers -> name in ``reference.stages.Weights``.
CHECKPOINT = {
    "q_a_proj.weight": "q_a",
    "q_a_layernorm.weight": "q_a_norm",
    "q_b_proj.weight": "q_b",
    "kv_a_proj_with_mqa.weight": "kv_a",
    "kv_a_layernorm.weight": "kv_a_norm",
    "kv_b_proj.weight": "kv_b",
    "o_proj.weight": "o",
    "indexer.wq_b.weight": "index_q",
    "indexer.wk.weight": "index_k",
    "indexer.k_norm.weight": "index_norm",
    "indexer.k_norm.bias": "index_norm_bias",
    "indexer.weights_proj.weight": "index_weights",
    "enorm.weight": "draft_embed_norm",
    "hnorm.weight": "draft_hidden_norm",
    "eh_proj.weight": "draft_proj",
}
#: Context-parallel ranks of the suite and the run of keys that each keeps: of a short query the last has none.
RANKS = (3, 2)
#: Hidden states so small that the epsilon of a norm decides its result.
SMALL = 1e-3


@dataclass(frozen=True, slots=True)
class StageCase:
    """``tokens`` of one request from position ``first`` on, of which the last ``queries`` are new."""

    name: str
    stage: str
    tokens: int
    queries: int
    first: int = 0
    size: float = 1.0
    """What the hidden states are multiplied by."""
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.stage}-{self.name}"


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong with a stage, and the names of the misreadings that give just that."""

    case: StageCase
    message: str
    misreadings: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = "".join(f"\n  this is what comes out where {each}" for each in self.misreadings)
        return f"{self.case}: {self.message}{told}"


def cases_of(m: Model, full_layers: int) -> tuple[StageCase, ...]:
    """A fresh prompt, a chunk behind cached context, a decode step and small hidden states, all beyond the top-k."""
    long = 3 * m.topk if m.topk else 24
    shapes = (
        ("prefill", long, long, 0, 1.0),
        ("chunk", long, long // 2, 0, 1.0),
        ("decode", long, 1, 0, 1.0),
        ("far", long // 2, long // 2, 1000, 1.0),
        ("small", long // 2, long // 2, 0, SMALL),
    )
    found = []
    for stage in stages_of(m):
        for number, (name, tokens, queries, first, size) in enumerate(shapes):
            found.append(StageCase(name, stage.name, tokens, queries, first, size, number))
    found += [StageCase("bytes", name, long, long) for name in cache_bytes.names(m)]
    return (*found, *([StageCase("model", "full_layers", 0, 0)] if full_layers else []))


class Suite:
    """Cases over a model with random weights."""

    def __init__(
        self, config: Mapping[str, Any], model: Model, full_layers: tuple[int, ...], cases: tuple[StageCase, ...]
    ) -> None:
        self.config, self.model, self.full_layers, self.cases = config, model, full_layers, cases
        self.weights = random_weights(model, seed=0)
        self._known: dict[tuple[float, ...], dict[str, Any]] = {}

    @classmethod
    def of(cls, config: Path) -> Suite:
        """The suite of a config file. Raises BadInput."""
        subject = open_subject(str(config))
        model, layers = subject.model(), subject.geometry.indexer_full_layers
        return cls(subject.config.fields, model, layers, cases_of(model, len(layers)))

    @classmethod
    def read(cls, folder: Path) -> Suite:
        """The suite in a folder that ``bringup --write`` made. Raises BadInput."""
        suite = cls.of(folder / "tiny.json")
        try:
            listed = json.loads((folder / "cases.json").read_text(encoding="utf-8"))["cases"]
            suite.cases = tuple(StageCase(**case) for case in listed)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{folder / 'cases.json'}: expected the cases that bringup --write makes: {error}") from None
        return suite

    def state(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The weights under their checkpoint names."""
        found = {name: getattr(self.weights, ours) for name, ours in CHECKPOINT.items()}
        return {name: value.to(dtype) for name, value in found.items() if value is not None}

    def cases_json(self) -> dict[str, Any]:
        return {"cases": [asdict(case) for case in self.cases]}

    def inputs(self, case: StageCase, dtype: torch.dtype) -> dict[str, Any]:
        """What a stage is given, floats in ``dtype``."""
        if case.stage in cache_bytes.STAGES:
            return cache_bytes.inputs(self.model, self.exact(case), case.stage)
        known = self.exact(case)
        chosen = {keyword: known[name] for keyword, name in self.stage(case.stage).inputs.items()}
        if case.stage == "select" and case.name == "far":
            chosen["scores"] = _close(chosen["scores"])
        return {name: value.to(dtype) if _is_float(value) else value for name, value in chosen.items()}

    def judge(self, case: StageCase, function: Callable[..., Any], dtype: str = "float32") -> Found | None:
        """What is wrong with ``function`` as this stage, or None.

        It takes the stage's keywords; what it raises goes on. Raises BadInput for another dtype.
        """
        if dtype not in DTYPES:
            raise BadInput(f"DTYPE {dtype!r}: expected one of {', '.join(DTYPES)}: a wider error hides a misreading")
        if case.stage == "full_layers":
            return self._layers(case, function)
        inputs = self.inputs(case, DTYPES[dtype])
        given = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
        result = function(**given)
        outputs = result if isinstance(result, tuple) else (result,)
        tensors = [name for name, value in inputs.items() if isinstance(value, Tensor)]
        changed = [name for name in tensors if not torch.equal(given[name], inputs[name])]
        if changed:
            return Found(case, f"it changed its input {', '.join(changed)}")
        if case.stage in cache_bytes.STAGES:
            told, names = cache_bytes.judge(self.model, case.stage, inputs, outputs)
            return Found(case, told, names) if told else None
        return self.judged(case, inputs, outputs, dtype)

    def judged(
        self, case: StageCase, inputs: Mapping[str, Any], outputs: tuple[Any, ...], dtype: str = "float32"
    ) -> Found | None:
        """What is wrong with the outputs that a stage between hidden states and output projection gave, or None."""
        exact = {name: value.double() if _is_float(value) else value for name, value in inputs.items()}
        if case.stage == "select":
            told = _selection(exact["scores"], outputs[0], self.model.topk)
            return Found(case, told) if told else None
        return self._numbers(case, exact, outputs, torch.finfo(DTYPES[dtype]).eps / 2)

    def exact(self, case: StageCase) -> dict[str, Any]:
        """Every intermediate of a case by name, in float64."""
        key = (case.tokens, case.queries, case.first, case.size, case.seed)
        if key not in self._known:
            self._known[key] = self._intermediates(case)
        return self._known[key]

    def _intermediates(self, case: StageCase) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1000 + case.seed)
        hidden = torch.randn(case.tokens, self.model.hidden, generator=generator, dtype=torch.float32) * case.size
        drafts = None
        if self.model.draft:
            # Of another size each, so that neither norm does nothing.
            previous, embedded = (torch.randn(hidden.shape, generator=generator).double() * size for size in (0.5, 2.0))
            drafts = previous, embedded
        return run(
            self.model, self.weights, hidden.double(), case.queries, first=case.first, drafts=drafts, ranks=RANKS
        )

    def stage(self, name: str) -> Stage:
        return next(stage for stage in stages_of(self.model) if stage.name == name)

    def _numbers(self, case: StageCase, inputs: dict[str, Any], outputs: tuple[Any, ...], u: float) -> Found | None:
        stage = self.stage(case.stage)
        wanted = _tuple(stage.function(self.model, self.weights, **inputs))
        shapes = [tuple(each.shape) for each in wanted]
        came = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in outputs]
        if came != shapes:
            return Found(case, f"expected {', '.join(map(str, shapes))}, got {', '.join(map(str, came))}")
        budgets = BUDGETS[case.stage](self.model, self.weights, inputs, wanted, u)
        got = tuple(each.double() for each in outputs)
        worst = _worst(got, wanted, budgets)
        if worst is None:
            return None
        name, index, value, expected, ratio = worst
        message = f"{stage.outputs[name]}{list(index)} is {value:.6g}, expected {expected:.6g}: {ratio:.3g} budgets off"
        # What is exact, or another rank's, may move elsewhere in a row.
        across = (0, -1) if case.stage == "rank_attention" else (-1,)
        rows = tuple(each.amax(across, keepdim=True).expand_as(each) for each in budgets)
        readings = []
        for reading in named(self.model, case.stage):
            other = _tuple(reading.stages[case.stage](self.model, self.weights, **inputs))
            if _worst(got, other, rows) is None and _worst(other, wanted, budgets) is not None:
                readings.append(f"{reading.told} ({reading.name})")
        return Found(case, message, tuple(readings))

    def _layers(self, case: StageCase, function: Callable[..., Any]) -> Found | None:
        came = tuple(function())
        if came == self.full_layers:
            return None
        wrong = sorted(set(came) ^ set(self.full_layers))
        return Found(case, f"expected full layers {list(self.full_layers)}, got {list(came)}: layers {wrong} differ")


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _worst(
    got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], budgets: tuple[Tensor, ...]
) -> tuple[int, tuple[int, ...], float, float, float] | None:
    """(output, index, value, expected, budgets off) of the worst element that is off; None if none is.

    Where the expected value is infinite the value has to be the same; a NaN is off by infinity.
    """
    found = None
    for number, (one, other, budget) in enumerate(zip(got, wanted, budgets, strict=True)):
        off = torch.where(one == other, 0.0, (one - other).abs().nan_to_num(torch.inf, torch.inf))
        ratio = torch.where(off > budget, off / budget.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
        if ratio.numel() and ratio.max() > (found[-1] if found else 0.0):
            index = tuple(int(each) for each in torch.unravel_index(ratio.argmax(), ratio.shape))
            found = (number, index, float(one[index]), float(other[index]), float(ratio[index]))
    return found


def _close(scores: Tensor) -> Tensor:
    """The same order of scores, so close to 1 that half precision cannot tell them."""
    finite = scores.isfinite()
    largest = scores[finite].abs().max().clamp(min=1e-30)
    return torch.where(finite, 1 + scores / largest * 2.0**-13, scores)


def _selection(scores: Tensor, indices: Tensor, topk: int) -> str:
    """What is wrong with int [s, k]; empty if it is a selection that these scores allow. Ties may go either way."""
    s, t = scores.shape
    if tuple(indices.shape) != (s, topk) or indices.is_floating_point():
        return f"expected whole numbers [{s}, {topk}], got {indices.dtype} {list(indices.shape)}"
    for row in range(s):
        seen = t - s + 1 + row
        chosen = [int(each) for each in indices[row] if each != -1]
        if len(set(chosen)) != len(chosen):
            return f"query {row} selects a key twice"
        if any(not 0 <= each < seen for each in chosen):
            return f"query {row} sees keys 0 to {seen - 1} and selects {[x for x in chosen if not 0 <= x < seen]}"
        if len(chosen) != min(seen, topk):
            return f"query {row} sees {seen} keys and selects {len(chosen)}, expected {min(seen, topk)}"
        left = [each for each in range(seen) if each not in set(chosen)]
        if left and max(scores[row, left]) > min(scores[row, chosen]):
            key = max(left, key=lambda each: float(scores[row, each]))
            return f"query {row} leaves out key {key}, which scores higher than one that it selects"
    return ""
