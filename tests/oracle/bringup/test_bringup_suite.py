"""The generated suite on the worked example: right code passes, and what it writes finds the example's misreading."""

import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from attnoracle.oracle.bringup import cache_bytes
from attnoracle.oracle.bringup.capability import probe
from attnoracle.oracle.bringup.session import Session
from attnoracle.oracle.bringup.subject import open_subject
from attnoracle.oracle.bringup.written import write
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.layer.variants import NeverMha
from attnoracle.oracle.policies import load_rules, read_rules
from attnoracle.reference.layer import SparseMLALayer
from attnoracle.reference.stages import DRAFT_STAGES, RANK_STAGES, STAGES

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "bringup"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_right_code_passes_every_case(suite, found_by, example_model, dtype):
    assert {case.stage for case in suite.cases} == {
        *(stage.name for stage in (*DRAFT_STAGES, *STAGES, *RANK_STAGES)), *cache_bytes.STAGES, "full_layers",
    }  # fmt: skip
    assert [str(each) for each in found_by(example_model, dtype)] == []


def test_a_stage_that_changes_its_input_is_found(suite):
    case = next(case for case in suite.cases if case.stage == "output")
    found = suite.judge(case, lambda *, attended: attended.zero_().flatten(1) @ suite.weights.o.float().T)
    assert "changed its input attended" in str(found)


def test_wide_dtypes_are_refused(suite):
    with pytest.raises(BadInput, match="expected one of float32, float64"):
        suite.judge(suite.cases[0], lambda **_: None, "bfloat16")


def test_the_policy_stub_is_a_policy(folder):
    rules = read_rules(folder / "policy.toml")
    assert rules.tables[256, 256, "FLASHMLA_SPARSE", 8].pure == ()
    assert abs(date.today() - date.fromisoformat(rules.date)) <= timedelta(days=1)


@pytest.mark.parametrize(
    ("make", "declared", "ran", "agrees"),
    [
        (SparseMLALayer, True, ("dense_mha",), True),
        (SparseMLALayer, False, ("sparse_mqa",), True),
        (NeverMha, True, ("sparse_mqa",), False),
        (NeverMha, False, ("sparse_mqa",), True),
    ],
)
def test_a_declared_capability_is_one_that_runs(suite, make, declared, ran, agrees):
    found = probe(suite.model, make, declared=declared)
    assert (found.ran, found.agrees) == (ran, agrees), str(found)


@pytest.fixture
def pytest_in(served):
    def run(folder):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [*served, "pytest", "-q", "-rfs", "-p", "no:cacheprovider", "-p", "no:randomly", str(folder)]
        told = subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder)
        return told.returncode, told.stdout

    return run


def test_the_generated_file_finds_the_example_s_misreading(folder, pytest_in):
    for name in ("model.py", "adapters.py"):
        (folder / name).write_text((EXAMPLE / name).read_text())
    code, told = pytest_in(folder)
    assert code == 1 and "(index-rope-style)" in told
    failed = {line.split("[")[1].split("-")[0] for line in told.splitlines() if line.startswith("FAILED")}
    assert failed == {"index_query", "index_key", "chain"}


def test_stages_that_are_left_out_are_skipped_and_counted(tmp_path, pytest_in):
    write(open_subject(str(EXAMPLE / "config.json")), load_rules("vllm-0.33"), tmp_path)
    session = Session(tmp_path)
    with pytest.raises(AssertionError, match="none of 20 stages has an adapter"):
        session.check_coverage()
    with pytest.raises(AssertionError, match="has to be declared"):
        session.check_capability()
    stub = (tmp_path / "adapters.py").read_text()
    stub = stub.replace("PREFILL = None", "PREFILL = False") + "\n\ndef full_layers(mine):\n    return [0]\n"
    (tmp_path / "adapters.py").write_text(stub)
    code, told = pytest_in(tmp_path)
    assert code == 1 and "1 failed" in told and "19 of 20 stages left out" in told
    assert write(open_subject(str(EXAMPLE / "config.json")), load_rules("vllm-0.33"), tmp_path) == (
        "tiny.json", "cases.json", "test_bringup.py",
    )  # fmt: skip
    assert (tmp_path / "adapters.py").read_text() == stub
