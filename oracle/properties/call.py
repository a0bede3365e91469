"""An implementation that a property calls, and what it answered."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ...optimized.triton_runtime import interpreted
from ..calling.call import Raised, called
from ..calling.memory import guarded_allocations
from ..case import Case
from ..config import load
from ..facts import facts
from ..inputs import make
from ..judge.units import LN2
from ..operators import operator
from .budgets import attention_budget, merge_budget, scores_budget
from .claim import Broken, Claim, DoesNotApply, near, same

Arguments = Mapping[str, Any]
ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")
INDEXER = ("indexer_scores", "paged_indexer_scores")


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs of one call, and what rounding may do to them."""

    raw: tuple[Tensor, ...]
    """As they were returned; of an operator that writes in place, what it wrote to."""
    out: Tensor
    """First output in fp64; of attention with the value for queries without keys put to 0."""
    allowed: Tensor
    """Bound on its error."""
    lse: Tensor | None = None
    """[s,h] natural log, fp64, -inf for queries without keys; None where the contract declares none."""
    lse_allowed: Tensor | None = None
    empty: Tensor | None = None
    """[s,h] queries without keys."""


@dataclass(slots=True)
class Call:
    """One implementation on one case; remembers answers that several properties ask for."""

    case: Case
    implementation: Implementation
    device: str
    seen: dict[str, tuple[dict[str, Any], Answer]] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        return self.implementation.contract

    @property
    def name(self) -> str:
        """Name of the operator."""
        return self.case.operator

    @property
    def repeats(self) -> bool:
        """Whether equal computations give equal bits: what the contract declares of two runs."""
        return self.contract.deterministic

    @property
    def invariant(self) -> bool:
        """Whether a row has equal bits wherever it stands in a batch, as declared.

        Triton's interpreter multiplies with numpy, whose rounding depends on a row's place in a tile: no kernel could
        keep the promise there.
        """
        return self.contract.batch_invariant and self.repeats and not self.interpreted

    @property
    def interpreted(self) -> bool:
        """Whether it is a Triton kernel that runs in the interpreter."""
        if self.device.startswith("cuda") or not interpreted():
            return False
        function: Any = self.implementation.load()
        while isinstance(function, partial):
            function = function.func
        module = sys.modules.get(getattr(function, "__module__", ""))
        return "triton" in self.implementation.backend or "triton" in vars(module or object)

    def given(self) -> dict[str, Any]:
        """Fresh keywords of the case, each tensor dense and in memory of its own."""
        return copied(make(self.case, load(self.case.geometry), self.device).kwargs())

    def require(self, **changes: Any) -> Case:
        """The case with changed fields. Raises DoesNotApply with the reason where the implementation does not take
        it."""
        case = replace(self.case, **changes)
        reason = self.implementation.supports(facts(case, load(case.geometry), self.device))
        if reason is not None:
            raise DoesNotApply(reason)
        return case

    def with_option(self, option: str) -> Case:
        """``require`` for one more option."""
        return self.require(options=tuple(sorted({*self.case.options, option})))

    def plain(self) -> tuple[dict[str, Any], Answer]:
        """The keywords of the case and the answer to them."""
        return self.remembered("plain", self.given)

    def remembered(self, key: str, arguments: Any) -> tuple[dict[str, Any], Answer]:
        """Keywords and answer under a name; ``arguments()`` makes the keywords the first time."""
        if key not in self.seen:
            made = arguments()
            self.seen[key] = made, self.answer(made)
        return self.seen[key]

    def answer(self, arguments: Arguments) -> Answer:
        """Call once on copies of the keywords.

        Raises DoesNotApply where the implementation does not take what was changed, and Broken where nothing comes
        back that could be looked at.
        """
        given = copied(arguments)
        reason = self.implementation.supports(facts(self.case, load(self.case.geometry), self.device) | sizes(given))
        if reason is not None:
            raise DoesNotApply(reason)
        op = operator(self.name)
        try:
            with guarded_allocations("nan"):
                returned = called(self.implementation, torch.device(self.device), given)
                outputs = tuple(given[name] for name in op.writes) if op.writes else returned
                if not isinstance(outputs, tuple) or not all(isinstance(x, Tensor) for x in outputs):
                    raise Broken("returned something else than a tuple of tensors")
                outputs = tuple(x.detach().clone() for x in outputs)
        except (Raised, RuntimeError) as raised:
            raise Broken(f"raised {raised}") from raised
        shapes = op.shapes(given)
        wanted = 1 if self.contract.lse_base is None and "lse" in op.outputs else len(op.outputs)
        if [tuple(x.shape) for x in outputs[:wanted]] != list(shapes[:wanted]):
            raise Broken(f"returned shapes {[list(x.shape) for x in outputs]}, expected {[list(x) for x in shapes]}")
        return self.read(dict(arguments), outputs)

    def read(self, a: dict[str, Any], outputs: tuple[Tensor, ...]) -> Answer:
        """What these outputs of a call on ``a`` say."""
        return self._answer(a, operator(self.name).settle(a, outputs, self.contract))

    def _answer(self, a: dict[str, Any], raw: tuple[Tensor, ...]) -> Answer:
        if self.name in ATTENTION:
            return self._attention(a, raw)
        if self.name in INDEXER:
            return Answer(raw, raw[0].double(), scores_budget(self.name, a, raw, self.contract))
        if self.name == "merge_lse":
            allowed, lse_allowed = merge_budget(a, raw, self.contract)
            unit = LN2 if self.contract.lse_base == "2" else 1.0
            return Answer(raw, raw[0].double(), allowed, raw[1].double() * unit, lse_allowed)
        out = selected_scores(a, raw[0]) if self.name == "topk_select" else raw[0].float().double()
        return Answer(raw, out, torch.zeros_like(out))

    def _attention(self, a: dict[str, Any], raw: tuple[Tensor, ...]) -> Answer:
        allowed, lse_allowed, empty = attention_budget(self.name, a, raw, self.contract)
        out = raw[0].double()
        if self.contract.empty_out != "zero":
            out = out.masked_fill(empty[..., None], 0.0)
        base = self.contract.lse_base
        if base is None:
            return Answer(raw[:1], out, allowed, empty=empty)
        lse = raw[1].double() * (LN2 if base == "2" else 1.0)
        if self.contract.empty_lse != "-inf":
            lse = lse.masked_fill(empty, -torch.inf)
        return Answer(raw, out, allowed, lse, lse_allowed, empty)


def sizes(a: Arguments) -> dict[str, Any]:
    """What the keywords themselves say of the facts that ``supports`` decides on."""
    known: dict[str, Any] = {}
    for name, ends in (("q_lens", a.get("cu_q")), ("k_lens", a.get("cu_k"))):
        if ends is not None:
            known[name] = tuple((ends[1:] - ends[:-1]).tolist())
    if "indices" in a and "kv" in a:
        known["k"] = a["indices"].shape[1]
    return known | ({"causal": a["causal"]} if "causal" in a else {})


def copied(arguments: Arguments) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in arguments.items()}


def selected_scores(a: Arguments, indices: Tensor) -> Tensor:
    """The scores that a selection [s,k] names, ascending, fp64: -inf for -1, NaN for what lies outside the window."""
    columns = indices.long() + a["ks"].long()[:, None]
    inside = (indices >= 0) & (columns < a["ke"].long()[:, None]) & (columns < a["scores"].shape[1])
    scores = a["scores"].double().gather(1, torch.where(inside, columns, 0))
    named = torch.where(inside, scores, torch.where(indices == -1, -torch.inf, torch.nan))
    return named.sort(1).values


def lse_of(answer: Answer) -> tuple[Tensor, Tensor]:
    """LSE and its bound. Raises DoesNotApply where the contract declares no LSE."""
    if answer.lse is None or answer.lse_allowed is None:
        raise DoesNotApply("it returns no LSE")
    return answer.lse, answer.lse_allowed


def alike(
    what: str, got: Answer, want: Answer, rows: Tensor | slice = slice(None), of: Any = slice(None)
) -> list[Claim]:
    """Rows ``rows`` of one answer equal rows ``of`` of another, within both budgets."""
    claims = [near(f"out {what}", got.out[rows], want.out[of], got.allowed[rows] + want.allowed[of])]
    if got.lse is not None and want.lse is not None:
        assert got.lse_allowed is not None and want.lse_allowed is not None
        allowed = got.lse_allowed[rows] + want.lse_allowed[of]
        claims.append(near(f"lse {what}", got.lse[rows], want.lse[of], allowed))
    return claims


def equal(
    call: Call, what: str, got: Answer, want: Answer, rows: Tensor | slice = slice(None), of: Any = slice(None)
) -> list[Claim]:
    """``alike``, bit for bit where the contract declares that equal computations give equal bits."""
    if not call.repeats:
        return alike(what, got, want, rows, of)
    names = operator(call.name).outputs
    return [same(f"{n} {what}", a[rows], b[of]) for n, a, b in zip(names, got.raw, want.raw, strict=False)]
