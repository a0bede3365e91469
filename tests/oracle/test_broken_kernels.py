"""Three broken Triton kernels: each gets FAIL and exit code 1.

``allclose`` at 1e-2 on random inputs sees them where queries have few keys, and lets all three through where they have
2048: random weights spread, so outputs are small against its absolute tolerance.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from attnoracle.optimized import catalogue, triton_runtime
from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.cli.app import main
from attnoracle.reference import dense_mha

SOURCE = Path(__file__).with_name("broken") / "dense_mha.py"
FAULTS = ("SCALE_OFF", "KEY_DROPPED", "CAUSAL_OFF")
#: The lengths of the quick suite's first case.
CASE = Case(operator="dense_mha", geometry="tiny", heads=2, q_lens=(37, 1, 64), k_lens=(37, 130, 64), seed=3)

pytestmark = pytest.mark.skipif(
    triton_runtime.availability() is not None, reason=f"no Triton here: {triton_runtime.availability()}"
)


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if triton_runtime.interpreted() else "cuda"


@pytest.fixture(scope="session")
def kernel():
    """The operator of the broken source."""
    triton_runtime.prepare()
    spec = importlib.util.spec_from_file_location("attnoracle_broken_dense_mha", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.dense_mha


@pytest.fixture
def implementation(kernel):
    def make(fault: str) -> Implementation:
        name = f"dense_mha/broken-{fault.lower().replace('_', '-')}"
        return Implementation(
            name, Contract(probabilities=None), lambda facts: None, lambda: partial(kernel, fault=fault)
        )

    return make


def test_without_a_fault_the_kernel_passes(implementation, device):
    assert check(CASE, implementation(""), device=device).status == "PASS"


@pytest.mark.parametrize(
    ("fault", "named"),
    [("SCALE_OFF", {"lse"}), ("KEY_DROPPED", {"element", "lse"}), ("CAUSAL_OFF", {"element", "lse"})],
)
def test_each_fails(implementation, device, fault, named):
    verdict = check(CASE, implementation(fault), device=device)
    assert verdict.status == "FAIL" and verdict.proved
    assert named <= {finding.check for finding in verdict.findings}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fails_by_its_output_alone(kernel, device, fault):
    """A kernel that returns no LSE is caught as well."""
    blind = Implementation(
        "dense_mha/broken",
        Contract(probabilities=None, lse_base=None),
        lambda facts: None,
        lambda: lambda **inputs: kernel(**inputs, fault=fault)[:1],
    )
    assert check(CASE, blind, device=device).status == "FAIL"


@pytest.mark.parametrize("fault", ["", FAULTS[-1]])
def test_the_command_exits_with_1_for_a_broken_one(implementation, device, fault, monkeypatch, capsys):
    one = implementation(fault) if fault else implementation("NONE")
    monkeypatch.setattr(catalogue, "IMPLEMENTATIONS", (one,))
    code = main(["check", "--device", device, "--jobs", "1", "--case", CASE.id])
    out = capsys.readouterr().out
    assert code == (1 if fault else 0), out
    if fault:
        assert f"attnoracle repro '{CASE.id}' --implementation {one.name}" in " ".join(out.split())


def _random(queries: int, keys: int, device: str):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(count, 2, 64, generator=generator).to(torch.bfloat16).to(device) for count in (queries, keys, keys)
    )
    cu_q, cu_k = (torch.tensor([0, count], dtype=torch.int32, device=device) for count in (queries, keys))
    return {"q": q, "k": k, "v": v, "cu_q": cu_q, "cu_k": cu_k, "scale": 64**-0.5}


@pytest.mark.parametrize(
    ("queries", "keys", "let_through"),
    [(128, 128, set()), (16, 1024, {"SCALE_OFF"}), (4, 2048, set(FAULTS))],
    ids=["no-context", "context-1k", "context-2k"],
)
def test_what_allclose_on_random_inputs_lets_through(kernel, device, queries, keys, let_through):
    inputs = _random(queries, keys, device)
    expected = dense_mha(**inputs)[0].float()
    passed = {
        fault
        for fault in FAULTS
        if torch.allclose(kernel(**inputs, fault=fault)[0].float(), expected, rtol=1e-2, atol=1e-2)
    }
    assert torch.allclose(kernel(**inputs)[0].float(), expected, rtol=1e-2, atol=1e-2)
    assert passed == let_through


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_check_sees_them_over_the_same_context(implementation, device, fault):
    case = Case(operator="dense_mha", geometry="tiny", heads=2, q_lens=(4,), k_lens=(2048,))
    assert check(case, implementation(fault or "NONE"), device=device).status == ("FAIL" if fault else "PASS")
