"""``attnoracle check --properties``: the table, the named lines, the exit codes, the JSON."""

import json

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.properties.property import Outcome
from attnoracle.oracle.properties.table import PROPERTIES
from attnoracle.oracle.reports.properties_report import exit_code, verdict_lines


@pytest.fixture
def command(capsys, monkeypatch):
    """Exit code, stdout and stderr of ``attnoracle check --properties``."""
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments):
        code = main(["check", "--properties", *arguments])
        return code, *capsys.readouterr()

    return command


def test_an_implementation_that_keeps_them(command, tmp_path):
    target = tmp_path / "out.json"
    code, out, _ = command("-i", "merge_lse/torch", "-i", "dense_mha/fa4", "--json", str(target))
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert "batch-invariance: 1 bitwise, as declared" in out and "two-streams:      1 not applicable" in out
    assert "not run  dense_mha/fa4" in out
    found = json.loads(target.read_text())
    assert found["schema"] == {"name": "attnoracle.properties", "version": 1}
    assert {one["number"] for one in found["properties"]} == {one.number for one in PROPERTIES}
    assert {one["status"] for one in found["properties"]} == {"held", "not applicable"}
    assert all(one["statement"] and one["case"] for one in found["properties"])
    assert found["summary"]["failed"] == 0 and found["summary"]["lines"]["repeat"] == "1 held"


def test_a_kernel_whose_rows_depend_on_the_batch(command, tmp_path, monkeypatch):
    """As a guest that declares batch invariance: named with its line, its relation and its case."""
    (tmp_path / "wavers.py").write_text(
        "import torch\n"
        "from attnoracle.optimized.torch_kernels.merge import merge_lse\n"
        "def mine(out_a, lse_a, out_b, lse_b):\n"
        "    out, lse = merge_lse(out_a, lse_a, out_b, lse_b)\n"
        "    return (out, lse) if len(out) > 4 else (out * 1.25, lse)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = command("--impl", "wavers:mine", "--operator", "merge_lse", "--quiet")
    assert code == 1
    assert "5 batch-invariance" in out and "FAILED" in out
    assert "stated: A request alone has the answer it has in a batch" in " ".join(out.split())
    assert "batch-invariance: 1 FAILED" in out


def test_exit_codes_and_lines():
    def one(status, name="repeat", number=6):
        return Outcome(number, name, "x/y", "case", status, "", 0.0, 1)

    assert exit_code([one("held")]) == 0
    assert exit_code([one("held"), one("failed")]) == 1
    assert exit_code([one("not applicable")]) == exit_code([]) == 2
    four = [one("held", p.name, p.number) for p in PROPERTIES]
    assert verdict_lines(four, ())["batch-invariance"] == "1 within budget, nothing declared"


def test_the_list_states_every_property(command):
    code, out, _ = command("--list")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert all(f"{one.number:>2} {one.name}" in out for one in PROPERTIES)


def test_what_does_not_go_with_it(command):
    code, _, err = command("--jobs", "2", "--bundle", "x")
    assert code == 2 and "does not go with --jobs, --bundle" in err
    code, _, err = command("--geometry", "tinny", "-i", "merge_lse/torch")
    assert code == 2 and "tiny" in err
