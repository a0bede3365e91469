"""Bundles: written, read on trust of nothing, run again."""

import hashlib
import json
import subprocess
import sys

import pytest

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


def test_the_script_runs_and_is_short(bundle):
    text = (bundle / "repro.py").read_text()
    assert 20 <= len(text.splitlines()) <= 35
    text = text.replace("merge_lse/fault-merge-by-mean", "fault:merge-by-mean")
    (bundle / "again.py").write_text(text)
    ended = subprocess.run([sys.executable, str(bundle / "again.py")], capture_output=True, text=True)
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
