"""Bundles: written, read on trust of nothing, run again."""

import hashlib
import json
import subprocess
import sys

import pytest

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.bundle import VERSION, read, replay, write
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.named import named
from attnoracle.oracle.check import check
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import fault

CASE = Case.parse("merge_lse:tiny:h2:q3:k3:bf16:randn:strided:-:s0")


@pytest.fixture
def bundle(tmp_path):
    implementation = fault("merge-by-mean").implementation()
    return write(tmp_path / "bundle", check(CASE, implementation), implementation)


def _changed(folder, **fields):
    path = folder / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_bundle_fails_in_the_same_way_again(bundle):
    found = replay(read(bundle), fault("merge-by-mean").implementation, "cpu")
    assert found.outcome == "same" and not found.stored and "the same failure" in str(found)


def test_a_cured_kernel_and_another_failure_are_told_apart(bundle):
    assert replay(read(bundle), named("merge_lse/torch", "merge_lse"), "cpu").outcome == "gone"
    other = replay(read(bundle), fault("merge-lse-is-max").implementation, "cpu")
    assert other.outcome == "another" and "now:" in str(other)


def test_stored_tensors_serve_where_the_case_stands_for_others_by_now(bundle):
    path = bundle / "inputs.safetensors"
    from safetensors.torch import load, save

    tensors = load(path.read_bytes())
    tensors["out_a"] = tensors["out_a"] + 1
    path.write_bytes(save(tensors))
    record = json.loads((bundle / "bundle.json").read_text())
    _changed(bundle, files=record["files"] | {path.name: hashlib.sha256(path.read_bytes()).hexdigest()})
    found = replay(read(bundle), fault("merge-by-mean").implementation, "cpu")
    assert found.stored and found.outcome == "same" and "stored tensors" in str(found)
    inputs = read(bundle).inputs("cpu")
    assert inputs.tensors["out_a"].equal(tensors["out_a"]) and not inputs.tensors["out_a"].is_contiguous()


def test_the_script_runs_and_is_short(bundle, served):
    text = (bundle / "repro.py").read_text()
    assert 20 <= len(text.splitlines()) <= 35
    text = text.replace("merge_lse/fault-merge-by-mean", "fault:merge-by-mean")
    (bundle / "again.py").write_text(text)
    ended = subprocess.run([*served, "python", str(bundle / "again.py")], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "the same failure" in ended.stdout


def test_the_command_says_whether_it_is_the_same(bundle, capsys):
    assert main(["repro", str(bundle), "-i", "fault:merge-by-mean", "--device", "cpu"]) == 1
    assert "the same failure" in capsys.readouterr().out
    assert main(["repro", str(bundle), "-i", "merge_lse/torch", "--device", "cpu", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["outcome"] == "gone"


def test_a_newer_schema_is_refused(bundle):
    _changed(bundle, schema={"name": "attnoracle.bundle", "version": VERSION + 1})
    with pytest.raises(BadInput, match="newer"):
        read(bundle)


@pytest.mark.parametrize("name", ["../verdict.json", "/etc/hostname", "..", "", "sub/verdict.json", "model.pkl"])
def test_files_outside_the_bundle_or_of_another_kind_are_refused(bundle, name):
    record = json.loads((bundle / "bundle.json").read_text())
    _changed(bundle, files=record["files"] | {name: "0" * 64})
    with pytest.raises(BadInput, match=r"outside itself|no bundle has"):
        read(bundle)


def test_a_link_is_refused(bundle, tmp_path):
    outside = tmp_path / "verdict.json"
    (bundle / "verdict.json").rename(outside)
    (bundle / "verdict.json").symlink_to(outside)
    with pytest.raises(BadInput, match="is a link"):
        read(bundle)


@pytest.mark.parametrize("name", ["verdict.json", "inputs.safetensors", "repro.py"])
def test_a_wrong_hash_is_refused(bundle, name):
    path = bundle / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(BadInput, match="another hash"):
        read(bundle)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"schema": {"name": "other", "version": 1}}, "is no attnoracle.bundle"),
        ({"schema": {"name": "attnoracle.bundle", "version": "1"}}, "version"),
        ({"case": {"id": "nothing"}}, "does not parse"),
        ({"files": {}}, "lacks"),
        ({"signature": [["a"]]}, "signature"),
        ({"options": []}, "options"),
    ],
)
def test_broken_manifests_are_refused_with_the_reason(bundle, fields, reason):
    _changed(bundle, **fields)
    with pytest.raises(BadInput, match=reason):
        read(bundle)


def test_tensors_that_are_none_are_refused(bundle):
    path = bundle / "inputs.safetensors"
    path.write_bytes(b"\x80\x04K\x01.")  # a pickle
    record = json.loads((bundle / "bundle.json").read_text())
    _changed(bundle, files=record["files"] | {path.name: hashlib.sha256(path.read_bytes()).hexdigest()})
    with pytest.raises(BadInput, match="cannot be read"):
        read(bundle)


def test_only_failures_are_bundled_and_nothing_is_overwritten(bundle, tmp_path):
    right = named("merge_lse/torch", "merge_lse")()
    with pytest.raises(BadInput, match="holds a failure"):
        write(tmp_path / "other", check(CASE, right), right)
    wrong = fault("merge-by-mean").implementation()
    with pytest.raises(BadInput, match="new or empty"):
        write(bundle, check(CASE, wrong), wrong)


@pytest.fixture(scope="module")
def from_a_gpu(tmp_path_factory):
    """A bundle of a fault in a shipped Triton kernel, as a machine with a GPU would have written it."""
    from attnoracle.oracle.device import settle

    settle("cpu")
    made = fault("triton-merge-weight-of-a-twice").implementation()
    # Drawn here: the values of a case are the same on every machine.
    folder = write(tmp_path_factory.mktemp("gpu") / "bundle", check(CASE, made), made)
    told = json.loads((folder / "verdict.json").read_text()) | {"device": "NVIDIA H200"}
    (folder / "verdict.json").write_text(json.dumps(told))
    record = json.loads((folder / "bundle.json").read_text())
    digest = hashlib.sha256((folder / "verdict.json").read_bytes()).hexdigest()
    _changed(folder, files=record["files"] | {"verdict.json": digest}, device="cuda")
    return folder


def test_a_bundle_of_a_compiled_kernel_fails_in_the_same_way_in_the_interpreter(from_a_gpu):
    found = replay(read(from_a_gpu), fault("triton-merge-weight-of-a-twice").implementation, "cpu")
    assert read(from_a_gpu).device == "cuda" and found.outcome == "same" and not found.stored
    assert "bundled on NVIDIA H200; this run is on cpu" in str(found)


def test_where_the_failure_does_not_come_back_it_is_said_why(from_a_gpu):
    gone = replay(read(from_a_gpu), named("merge_lse/triton", "merge_lse"), "cpu")
    assert gone.outcome == "gone" and "compiled there" in str(gone) and "race" in str(gone)
    needs = Implementation("merge_lse/hopper", Contract(), lambda facts: "needs CUDA", lambda: print)
    cannot = replay(read(from_a_gpu), lambda: needs, "cpu")
    assert cannot.outcome == "cannot" and "needs CUDA" in str(cannot)


def test_what_a_kernel_wrote_in_place_is_in_its_bundle(tmp_path, capsys):
    case = Case.parse("write_index:tiny:h1:q5,4:k21,9:bf16:randn:contiguous:page-16:s0")
    made = fault("slot-off-by-one").implementation()
    folder = write(tmp_path / "b", check(case, made), made)
    assert set(read(folder).outputs) == {"pages"}
    assert main(["diagnose", str(folder), "--stored", "--device", "cpu"]) == 1
    assert "slot after its own" in capsys.readouterr().out


def test_large_tensors_stay_out_and_the_case_stands_for_them(tmp_path, monkeypatch):
    """An offset past 2^31 took a bundle of 4 GB: what a kernel returned is bounded as what it was given is."""
    implementation = fault("merge-by-mean").implementation()
    monkeypatch.setattr(sys.modules["attnoracle.oracle.bundle.write"], "MOST_BYTES", 64)
    folder = write(tmp_path / "bundle", check(CASE, implementation), implementation)
    assert not (folder / "inputs.safetensors").exists() and not (folder / "outputs.safetensors").exists()
    assert replay(read(folder), fault("merge-by-mean").implementation, "cpu").outcome == "same"
