"""What a machine can run: device, environment, features, and the doctor's table and JSON."""

import json
import os
import sys
from types import ModuleType

import pytest

from attnoracle.oracle import device, doctor, features
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.environment import commit, environment, installed, version
from attnoracle.oracle.errors import BadInput, Unsupported


def _broken_load():
    raise ImportError("no module named nonsense")


@pytest.fixture
def catalogue(make_implementation):
    def refuse(facts):
        raise KeyError("dtype")

    return (
        make_implementation("dense_mha/sdpa-math"),
        make_implementation("dense_mha/sdpa-cudnn", reason="needs a CUDA device"),
        make_implementation("indexer_scores/odd[red]\x1b[0m", load=_broken_load),
        type(make_implementation())("topk_select/buggy", make_implementation().contract, refuse, lambda: print),
    )


@pytest.fixture(autouse=True)
def world(monkeypatch, catalogue):
    asked = []

    def facts(case, geometry, device):
        asked.append((case.operator, geometry.name, device))
        return {"operator": case.operator, "device": device}

    for name, contents in {
        "attnoracle.oracle.facts": {"facts": facts},
        "attnoracle.optimized.catalogue": {"IMPLEMENTATIONS": catalogue},
    }.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return asked


def test_every_implementation_gets_an_answer_with_its_reason(catalogue, world):
    examination = doctor.examine(catalogue, device="cpu")
    assert [(prospect.supported, prospect.reason) for prospect in examination.prospects] == [
        (True, ""),
        (False, "needs a CUDA device"),
        (False, "does not load: ImportError: no module named nonsense"),
        (False, "supports() raised KeyError: 'dtype'"),
    ]
    assert examination.summary == {"implementations": 4, "supported": 1, "unsupported": 3}
    assert world[0] == ("dense_mha", "deepseek-v3.2", "cpu")


@pytest.mark.parametrize(
    "operator", ["dense_mha", "masked_mha", "sparse_mqa", "indexer_scores", "topk_select", "merge_lse"]
)
def test_the_representative_case_is_a_case(operator):
    case = doctor.representative(operator)
    assert case.parse(case.id) == case


def test_the_command_prints_machine_features_and_reasons(capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = {cells[0]: cells[1:] for cells in map(str.split, out.splitlines()) if cells}
    assert rows["torch"] == [installed("torch")]
    assert rows["dense_mha/sdpa-math"] == ["yes"]
    assert rows["dense_mha/sdpa-cudnn"] == ["no", "needs", "a", "CUDA", "device"]
    assert rows["indexer_scores/odd[red]\\x1b[0m"][0] == "no"
    assert "sdpa math" in out and "compiler" in out and "flashinfer" in out
    assert out.endswith("1 of 4 implementations can run here\n")
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_json_is_pure_and_complete(capsys):
    assert main(["doctor", "--device", "cpu", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    read = json.loads(out)
    assert read["schema"] == {"name": "attnoracle.doctor", "version": 1}
    assert read["command"] == ["attnoracle", "doctor", "--device", "cpu", "--json", "-"]
    assert set(read["features"]) == {"triton", "sdpa", "flashinfer", "peers", "compiler"}
    assert [record["supported"] for record in read["implementations"]] == [True, False, False, False]
    assert "implementations can run here" in err


def test_a_machine_that_runs_nothing_is_exit_2(monkeypatch, make_implementation, capsys):
    none = (make_implementation(reason="needs a moon"),)
    monkeypatch.setattr(sys.modules["attnoracle.optimized.catalogue"], "IMPLEMENTATIONS", none)
    assert main(["doctor", "--device", "cpu"]) == 2
    assert "0 of 1 implementation can run here" in capsys.readouterr().out


def test_the_environment_is_json_and_says_what_is_installed():
    facts = json.loads(json.dumps(environment()))
    assert facts["torch"] == installed("torch") and facts["numpy"] == installed("numpy")
    assert facts["flashinfer"] == installed("flashinfer-python")
    assert facts["cpus"] >= 1 and facts["device"]["name"]
    assert facts["attnoracle"] == version() != "unknown"
    assert facts["git"] == commit()
    assert installed("no-such-package-at-all") is None


def test_sdpa_backends_are_tried():
    refusals = features.features("cpu")["sdpa"]
    assert refusals["math"] == ""
    assert refusals["cudnn_attention"], "cuDNN does not run on a CPU"


def test_flashinfer_features_are_found_by_signature(monkeypatch):
    module = ModuleType("flashinfer")

    class Wrapper:
        def plan(self, head_dim_vo): ...

    module.BatchPrefillWithRaggedKVCacheWrapper = Wrapper
    module.top_k = print
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(features, "installed", lambda package: "9.9")
    told = features.features("cpu")["flashinfer"]
    assert told["version"] == "9.9"
    assert told["features"]["ragged prefill, V head dim of its own"] is True
    assert told["features"]["ragged prefill, packed custom mask"] is False
    assert told["features"]["sparse MLA decode"] is False
    assert told["features"]["top-k"] is True


def test_a_flashinfer_that_does_not_import_is_an_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setattr(features, "installed", lambda package: "9.9")
    assert features.features("cpu")["flashinfer"]["reason"].startswith("does not import: ModuleNotFoundError")


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(features, "installed", lambda package: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    told = features.features("cpu")
    assert told["triton"] == {"version": None, "mode": None, "reason": "triton is not installed"}
    assert told["flashinfer"]["reason"] == "flashinfer-python is not installed"
    assert told["compiler"]["reason"].startswith("no C++ compiler found")


def test_the_cpu_makes_triton_interpret(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert device.settle("cpu") == "cpu"
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_a_process_that_compiles_cannot_turn_to_the_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setattr(device, "_interprets", lambda: False)
    with pytest.raises(Unsupported, match="triton was imported before TRITON_INTERPRET=1"):
        device.settle("cpu")
    monkeypatch.setattr(device, "_interprets", lambda: True)
    assert device.settle("cpu") == "cpu", "it interprets already, whatever the environment says by now"


@pytest.mark.parametrize(("there", "expected"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_cuda_where_there_is_any(monkeypatch, there, expected):
    monkeypatch.setattr(device, "_has_cuda", lambda: there)
    assert device.settle("auto") == expected


def test_cuda_that_is_not_there_and_unknown_devices(monkeypatch):
    monkeypatch.setattr(device, "_has_cuda", lambda: False)
    with pytest.raises(Unsupported, match="torch sees no CUDA device"):
        device.settle("cuda")
    with pytest.raises(BadInput, match="expected one of auto, cpu, cuda, got 'tpu'"):
        device.settle("tpu")
