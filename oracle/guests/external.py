"""An implementation that is not ours: a record that names it, and the Implementation it becomes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...optimized.contract import Contract
from ...optimized.implementation import Facts, Implementation
from ..errors import BadInput, unknown
from ..operators import OPERATORS
from ..operators import operator as find_operator
from . import contract_file
from .contract_file import Limits
from .fit import Fitted, fit, refusal
from .target import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Names a callable, its signature and its contract; survives the way into another process."""

    name: str
    """``<operator>/<backend>``"""
    target: str
    adapter: str = ""
    contract: Contract = Contract()  # noqa: RUF009 -- frozen
    limits: Limits = Limits()  # noqa: RUF009 -- frozen
    contract_path: str = ""
    """File the contract came from; empty: it was probed, or nobody declared any."""

    @property
    def operator(self) -> str:
        return self.name.partition("/")[0]

    def fitted(self) -> Fitted:
        return _fitted(self.target, self.operator, self.adapter)

    def implementation(self) -> Implementation:
        """The record that ``check`` takes."""
        return Implementation(self.name, self.contract, self._supports, self._load, origin=self.arguments)

    @property
    def arguments(self) -> str:
        """The options of a command that name it again."""
        words = ["--impl", self.target, "--operator", self.operator]
        words += ["--adapter", self.adapter] if self.adapter else []
        words += ["--contract", self.contract_path] if self.contract_path else []
        return shlex.join(words)

    def _supports(self, facts: Facts) -> str | None:
        return refusal(self.fitted(), facts) or self.limits.refusal(facts) or refused_by(self.contract, facts)

    def _load(self) -> Callable[..., tuple[Any, ...]]:
        return self.fitted().function


@cache
def _fitted(target: str, operator: str, adapter: str) -> Fitted:
    return fit(resolve(target), operator, adapter, what=target)


def refused_by(contract: Contract, facts: Facts) -> str | None:
    """Cases whose answer a contract leaves open: their right answer here would be another there."""
    options = facts["options"]
    if contract.duplicates != "counted" and "duplicates" in options:
        return f"its contract has duplicates {contract.duplicates}"
    if contract.invalid_index != "ignored" and "invalid" in options:
        return f"its contract has invalid_index {contract.invalid_index}"
    if contract.causal_alignment != "bottom-right" and facts["causal"] and facts["q_lens"] != facts["k_lens"]:
        return f"its contract aligns the causal diagonal {contract.causal_alignment}"
    return None


def external(target: str, operator: str, *, contract: str = "", adapter: str = "") -> External:
    """The record for a target, checked: it imports, it is callable, and it fits the operator.

    ``contract`` is the path of a contract file. Raises BadInput for whatever does not hold.
    """
    known = [one.name for one in OPERATORS]
    if operator not in known:
        raise unknown("operator", operator, known)
    base = default_contract(operator)
    declared = contract_file.read(contract, base) if contract else contract_file.Declared(base)
    if declared.operator not in (None, operator):
        raise BadInput(f"--contract {contract}: is for {declared.operator}, and the operator is {operator}")
    made = External(
        name=f"{operator}/{_backend(target)}",
        target=target,
        adapter=adapter,
        contract=declared.contract,
        limits=declared.limits,
        contract_path=contract,
    )
    fitted = made.fitted()
    return replace(made, adapter=fitted.adapter)


def default_contract(operator: str) -> Contract:
    """What is held against a kernel of which nothing is known: nothing is excused."""
    match operator:
        case "dense_mha" | "masked_mha" | "sparse_mqa":
            return Contract(probabilities=None)
        case "merge_lse":
            return Contract(probabilities="fp32")
        case "indexer_scores":
            return Contract(probabilities="fp32", output="fp32", lse_base=None)
        case "topk_select":
            return Contract(probabilities="fp32", lse_base=None, index_space="request-local")
        case _:
            outputs = find_operator(operator).outputs
            return Contract(probabilities="fp32", lse_base="e" if "lse" in outputs else None)


def _backend(target: str) -> str:
    """The function's own name; with its module where a shipped implementation has that name."""
    place, _, path = target.rpartition(":")
    stem = place.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    from ...optimized.catalogue import IMPLEMENTATIONS

    taken = {one.backend for one in IMPLEMENTATIONS}
    return f"{stem}.{path}" if path in taken else path
