"""At which stage of one attention kernel the error begins: asked on inputs on which a stage has a known answer.

A kernel is a closed box, but its inputs are ours. Each probe exchanges the inputs of a stage for ones that make the
stage trivial, which is what exchanging it for the reference would do, and judges the answer by the same budgets:

* ``same scores``: queries of zeros. Every key that is read has the same weight, whatever scale, q.k or exp do: the
  LSE is the logarithm of how many keys were read, and the output is their mean. Wrong here: which keys are read, or
  P.V.
* ``same values``: every value is 1. P.V and the loading of V have the answer 1, and the LSE is that of the case. Wrong
  LSE here, and right with the same scores: q.k, the scale or the softmax.

What is right in a probe was not the fault's stage; what is wrong in both and on the case itself lies before or behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...optimized.implementation import Implementation
from ..calling.call import Raised
from ..calling.once import run_once
from ..case import Case
from ..check import drawn
from ..operators import operator
from .distance import gap
from .expectation import ATTENTION, expectation, normalised, plain_cache
from .hypothesis import Stage
from .observation import named_outputs

#: 1.0 in e4m3.
_CODE_OF_1 = 0x38


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe: whether each output was right."""

    name: str
    out: bool
    lse: bool | None
    """None where the kernel returns none."""

    def __str__(self) -> str:
        told = [f"out {'right' if self.out else 'wrong'}"]
        if self.lse is not None:
            told.append(f"lse {'right' if self.lse else 'wrong'}")
        return f"{self.name}: {', '.join(told)}"


@dataclass(frozen=True, slots=True)
class Located:
    """The stage that the probes point at."""

    stage: Stage | None
    """None: they do not decide."""
    why: str
    probes: tuple[Probe, ...]


def locate(case: Case, implementation: Implementation, device: str = "cpu") -> Located | None:
    """The stage at which an attention kernel goes wrong; None for other operators and for kernels that raise."""
    if case.operator not in ATTENTION:
        return None
    try:
        probes = {
            name: _probe(name, case, implementation, device, change)
            for name, change in (("the case", None), ("same scores", _same_scores), ("same values", _same_values))
        }
    except Raised:
        return None
    stage, why = _decide(probes)
    return Located(stage, why, tuple(probes.values()))


def _decide(probes: Mapping[str, Probe]) -> tuple[Stage | None, str]:
    plain, keys, values = probes["the case"], probes["same scores"], probes["same values"]
    if keys.lse is False:
        return "mask", "with equal scores the LSE counts the keys, and the count is wrong: other keys are read"
    if plain.lse is False and plain.out:
        return "lse", "the output is right and its LSE is not"
    if plain.lse is False and keys.lse:
        return "scores", "with equal scores the LSE is right, on the case it is not: scale, q.k or softmax"
    if not keys.out and keys.lse:
        if values.out:
            return "P.V", "weights are right and sum to 1, values are not: which are loaded, or how they are summed"
        return "output", "weights are right, and even values of 1 do not come out: normalisation, merge or store"
    if not plain.out:
        return (
            "softmax",
            "keys, values and LSE are right with equal scores: weights that differ are rounded or rescaled wrongly",
        )
    return None, "the probes are right, and so is the case by element: the fault is inside every element's budget"


def _probe(name: str, case: Case, implementation: Implementation, device: str, change: Any) -> Probe:
    inputs = drawn(case, device)
    if change is not None:
        change(inputs.tensors, inputs.options)
    arguments = inputs.kwargs()
    outputs = run_once(implementation, inputs.arena.device, "nan", arguments).outputs
    contract = implementation.contract
    expected = expectation(case.operator, arguments, contract)
    got = normalised(named_outputs(case.operator, outputs), contract, expected.exact)
    right = {
        output: _right(output, got, expected.exact, expected.allowed, arguments)
        for output in operator(case.operator).outputs
    }
    return Probe(name, bool(right["out"]), right["lse"])


def _right(
    output: str,
    got: dict[str, Tensor],
    exact: dict[str, Tensor],
    allowed: dict[str, Tensor],
    arguments: Mapping[str, Any],
) -> bool | None:
    if output not in got:
        return None
    one = gap({output: got[output]}, {output: exact[output]}, {output: allowed[output]}, arguments)
    return one.off == 0


def _same_scores(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
    tensors["q"].zero_()


def _same_values(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
    """1 in every value that is finite; what is poisoned stays."""
    if options.get("cache_format", "model") != "model":
        _same_codes(tensors["kv"], options)
        return
    values = tensors["v"] if "v" in tensors else tensors["kv"][:, : options["value_dim"]]
    plain = torch.isfinite(values.float()) & (values.float().abs() < 1e4)
    values.copy_(torch.where(plain, torch.ones_like(values), values))


def _same_codes(kv: Tensor, options: Mapping[str, Any]) -> None:
    """The code of 1 and the scale 1 in every row of a quantised cache that is finite."""
    numbers = plain_cache({**options, "kv": kv})
    rows = (torch.isfinite(numbers) & (numbers.abs() < 1e4)).all(-1).view(kv.shape[:-1])
    latent = int(options["value_dim"])
    bytes_ = kv.view(torch.uint8)
    changed = bytes_[rows]
    changed[:, :latent] = _CODE_OF_1
    if options["cache_format"] == "fp8_ds_mla":
        stop = latent + 4 * max(1, latent // 128)
        changed[:, latent:stop] = torch.ones((stop - latent) // 4).view(torch.uint8)
    bytes_[rows] = changed
