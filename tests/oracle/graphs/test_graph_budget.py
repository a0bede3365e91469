"""What a replay of one token in padded rows may differ by, emulated: other orders of sums, and codes on an edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnoracle.oracle.graphs import budget as budgets
from attnoracle.oracle.graphs.engine import Engine
from attnoracle.oracle.graphs.makers import EmulatedMaker
from attnoracle.oracle.graphs.run import run_sequence
from attnoracle.oracle.graphs.sequences import parse
from attnoracle.oracle.graphs.setup import Setup, setup
from attnoracle.oracle.layer.rig import Rig
from attnoracle.reference.layer import LayerInputs, Parts, PreparedQuery, Query, SparseMLALayer, pack_e4m3

#: Steps of one token, eager with one row and replayed with four.
SEQUENCE = parse("FULL 4 at 60: a3; a1; a1")


def violations(given: Setup, engine: type[Engine] = Engine) -> set[str]:
    seen = run_sequence(SEQUENCE, given, EmulatedMaker(), engine)
    return {violation.check for step in seen for violation in step.violations}


class Repacks(SparseMLALayer):
    """Packs other latents where a product has more than one row, as a GPU takes another order of its sum there."""

    def prepare(self, inputs: LayerInputs, positions: Tensor, *, absorb: bool) -> PreparedQuery:
        prepared = super().prepare(inputs, positions, absorb=absorb)
        if prepared.mqa is None or len(inputs.q) == 1:
            return prepared
        codes, rank = prepared.mqa.tensor, self.parts.w_uk.shape[2]
        tensor = torch.cat((self.latents(inputs.q, codes[..., :rank]), codes[..., rank:]), -1)
        return replace(prepared, mqa=Query(tensor, prepared.mqa.form))

    def latents(self, q: Tensor, codes: Tensor) -> Tensor:
        raise NotImplementedError


class RoundsOtherwise(Repacks):
    """The projection's sum comes out one step of its working precision higher."""

    def latents(self, q: Tensor, codes: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        exact = torch.einsum("shp,hpc->shc", q[..., : self.parts.w_uk.shape[1]].to(wide), self.parts.w_uk.to(wide))
        scale = self.parts.q_scale
        assert scale is not None
        return pack_e4m3(torch.nextafter(exact, torch.full_like(exact, torch.inf)).to(q.dtype), scale)


class NextCode(Repacks):
    """One latent dim of every head is the next code."""

    def latents(self, q: Tensor, codes: Tensor) -> Tensor:
        moved = codes.view(torch.uint8).clone()
        moved[..., 0] += 1
        return moved.view(torch.float8_e4m3fn)


class Otherwise(Engine):
    layer = RoundsOtherwise


class OneCode(Engine):
    layer = NextCode


def on_edges(monkeypatch: pytest.MonkeyPatch, addend: float) -> None:
    """Latents 17/16 + ``addend`` times a power of two: between the codes of 1 and 9/8; each the sum of two products."""
    drawn, made = Rig.sequence, Rig.parts

    def sequence(self: Rig, *place: int) -> dict[str, Tensor]:
        values = drawn(self, *place)
        nope = self.deployment.qk_nope_head_dim
        size = torch.exp2(values["q"][..., :nope:2].double().abs().log2().round().clamp(-2, 1))
        values["q"] = values["q"].clone()
        values["q"][..., :nope:2] = 17 / 16 * size
        values["q"][..., 1:nope:2] = addend * size
        return values

    def parts(self: Rig, *arguments: Any) -> Parts:
        one = made(self, *arguments)
        pairs = torch.arange(one.w_uk.shape[1]) // 2
        picks = pairs[:, None] == torch.arange(one.w_uk.shape[2]) % (one.w_uk.shape[1] // 2)
        one.w_uk.copy_(picks)
        return one

    monkeypatch.setattr(Rig, "sequence", sequence)
    monkeypatch.setattr(Rig, "parts", parts)


@pytest.mark.parametrize(
    ("dtype", "addend"), [(torch.float64, 2.0**-24), (torch.bfloat16, 2.0**-8)], ids=["fp64", "bf16"]
)
def test_a_code_on_an_edge_may_come_out_as_either(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, addend: float
) -> None:
    """The sum lies between two numbers of the format before e4m3 (bf16, or fp32 for fp64), and those between codes."""
    on_edges(monkeypatch, addend)
    packed = setup("packed")
    given = replace(packed, sizes=replace(packed.sizes, dtype=dtype, seed=1))
    engine = Engine(given, EmulatedMaker(), "NONE", ())
    (layer, _), q = engine.parts_of(), engine.sequence(1, 0, 0, 4)["q"]
    lower = 16 / 17 * q[..., :8:2].double().repeat(1, 1, 4)
    assert torch.equal(budgets.code_spread(layer, q, dtype), lower / 8)
    assert not budgets.code_spread(layer, q * 1.03, dtype).any()
    assert violations(given, Otherwise) == set()
    if dtype == torch.float64:  # what bf16 kernels may round is as much as a code
        monkeypatch.setattr(budgets, "code_spread", lambda parts, q, dtype: torch.zeros(1, dtype=torch.float64))
        assert violations(given, Otherwise) == {"outputs"}


def test_a_code_off_an_edge_may_not() -> None:
    assert violations(setup("packed"), OneCode) == {"outputs"}


def test_no_code_is_uncertain_in_the_shipped_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is allowed there is fp32's rounding, and no code's."""
    found: list[float] = []
    spread: Callable[..., Tensor] = budgets.code_spread

    def watched(*arguments: Any) -> Tensor:
        found.append(float(spread(*arguments).amax()))
        return spread(*arguments)

    monkeypatch.setattr(budgets, "code_spread", watched)
    assert violations(setup("packed"), Otherwise) == set()
    assert found and set(found) == {0.0}


def test_attention_over_codes_rounds_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in another order where there is more than one row: 10^3 fp64 budgets off, as on an H200, and right."""
    real, bounds = Setup.operators, []

    def operators(self: Setup) -> Any:
        found = dict(real(self))
        plain = found["sparse_mqa"]

        def sparse_mqa(*, q: Tensor, indices: Tensor, **options: Any) -> Any:
            return plain(q=q, indices=indices if len(q) == 1 else indices.flip(1), **options)

        return found | {"sparse_mqa": sparse_mqa}

    monkeypatch.setattr(Setup, "operators", operators)
    assert violations(setup("packed")) == set()
    exact = budgets.budget

    def in_fp64(*arguments: Any, packed: bool) -> float:
        bounds.append(exact(*arguments, packed=packed))
        return exact(*arguments, packed=False)

    monkeypatch.setattr("attnoracle.oracle.graphs.checks.budget", in_fp64)
    assert violations(setup("packed")) == {"outputs"}
    assert max(bounds) < 1e-3
