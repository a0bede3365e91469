"""A step function of one's own, and single implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.graphs import check_step
from attnoracle.oracle.graphs.makers import EmulatedMaker
from attnoracle.oracle.graphs.single import CASES, graph_safe, run_single

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))


def inputs(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 4, (3,), generator=generator)
    return {"x": torch.randn(3, 4, generator=generator), "lengths": lengths}


def right(x: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(4, device=x.device) < lengths[:, None]
    return torch.where(seen, x @ W, 0).sum(1)


def leaks(x: Tensor, lengths: Tensor) -> Tensor:
    return right(x, lengths) / x.abs().amax()


class Remembers:
    """Uses a length that the host took note of."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, x: Tensor, lengths: Tensor) -> Tensor:
        self.longest += 1
        return x[:, 0] * self.longest


def adds(x: Tensor, lengths: Tensor) -> Tensor:
    return TOTAL.add_(x.sum())


TOTAL = torch.zeros(())


def syncs(x: Tensor, lengths: Tensor) -> Tensor:
    return x[:, : int(lengths.max())].sum(1)


@pytest.mark.parametrize(
    ("step", "checks"),
    [
        (right, set()),
        (leaks, {"padding-in"}),
        (Remembers(), {"frozen-host", "outputs"}),
        (adds, {"outputs", "replay-twice", "padding-in"}),
        (syncs, {"illegal-call"}),
    ],
    ids=["right", "leaks", "remembers", "adds", "syncs"],
)
def test_a_step_function(step: Callable[..., Any], checks: set[str]) -> None:
    constants = {"w": W, "total": TOTAL}
    report = check_step(step, inputs(0), [inputs(1), inputs(2)], constants=constants, real_rows=[2, 2])
    assert report.graphs == "emulated"
    assert {violation.check for violation in report.violations} == checks
    assert report.well is (not checks)


def test_reading_what_lay_around_is_told() -> None:
    report = check_step(right, inputs(0), [inputs(1)], constants={})
    (found,) = report.violations
    assert found.check == "captured-metadata" and "test_graph_steps.py" in found.frozen
    assert check_step(right, inputs(0), [inputs(1)]).well


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x": torch.zeros(5, 4)}, r"replay 1, x: expected \[3, 4\] torch.float32, got \[5, 4\] torch.float32; pad it"),
        ({"y": torch.zeros(1)}, r"expected the inputs \['lengths', 'x'\], got"),
    ],
    ids=["shape", "names"],
)
def test_inputs_that_cannot_share_buffers(change: dict[str, Tensor], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        check_step(right, inputs(0), [inputs(1) | change])


def test_implementations_that_declare_it_are_graph_safe() -> None:
    """One that is cheap in the interpreter; the command runs all of them."""
    reason = availability()
    if reason is not None:
        pytest.skip(reason)
    safe = {one.name: one for one in graph_safe()}
    assert set(CASES) == {one.operator for one in safe.values()}
    seen = run_single(safe["merge_lse/triton"], EmulatedMaker(), "cpu")
    assert [step.number for step in seen] == [0, 1]
    assert [step.violations for step in seen] == [(), ()]


def test_an_implementation_that_waits_is_told() -> None:
    from dataclasses import replace

    from attnoracle.optimized.catalogue import IMPLEMENTATIONS
    from attnoracle.reference import merge_lse

    def waits(**inputs: Any) -> Any:
        out, lse = merge_lse(**inputs)
        return (out if bool(lse.isfinite().any()) else out * 0).to(inputs["out_a"].dtype), lse.float()

    one = next(one for one in IMPLEMENTATIONS if one.operator == "merge_lse")
    seen = run_single(replace(one, load=lambda: waits, supports=lambda facts: None), EmulatedMaker(), "cpu")
    assert [violation.check for step in seen for violation in step.violations] == ["illegal-call"]
    assert "Tensor.__bool__" in seen[0].violations[0].frozen


def test_an_implementation_that_remembers_is_told() -> None:
    from dataclasses import replace

    from attnoracle.optimized.catalogue import IMPLEMENTATIONS
    from attnoracle.reference import merge_lse

    first: list[Tensor] = []

    def keeps(**inputs: Any) -> Any:
        first.append(inputs["lse_a"].clone())
        out, lse = merge_lse(**{**inputs, "lse_a": first[0]})
        return out.to(inputs["out_a"].dtype), lse.float()

    one = next(one for one in IMPLEMENTATIONS if one.operator == "merge_lse")
    seen = run_single(replace(one, load=lambda: keeps, supports=lambda facts: None), EmulatedMaker(), "cpu")
    assert "outputs" in [violation.check for step in seen for violation in step.violations]
