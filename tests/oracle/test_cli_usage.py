"""The command line without a check: usage, help, documents; and one check in processes of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnoracle.oracle.cli import terminal
from attnoracle.oracle.errors import BadInput

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def command():
    """Starts the command in a process of its own."""

    def command(*arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "attnoracle.oracle", *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    return command


@pytest.mark.parametrize(
    "arguments",
    ["chekc", "check --suite slow", "check --jobs 0", "check --seed x", "check --seed -1", "check --nope", "repro"],
)
def test_usage_errors_are_exit_2(attnoracle, arguments):
    code, out, err = attnoracle(*arguments.split())
    assert (code, out) == (2, "")
    assert "Usage: attnoracle" in err and "Traceback" not in err


def test_version_and_help(attnoracle):
    code, out, _ = attnoracle("--version")
    assert code == 0 and out.startswith("attnoracle 0.")
    code, out, _ = attnoracle("--help")
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    table = re.findall(r"`attnoracle (\w+)", README.read_text(encoding="utf-8").partition("## Commands")[2])
    assert [command for command, _ in lines] == list(dict.fromkeys(table))
    assert [told for _, told in lines if not told.endswith(".") or told.endswith("...")] == []
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = attnoracle("check", "--help")
    assert code == 0 and "--implementation" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_documents_that_cannot_be_written(tmp_path):
    with pytest.raises(BadInput, match=r"cannot write .*: Is a directory"):
        terminal.write(str(tmp_path), lambda: "text")
    terminal.write(None, lambda: pytest.fail("made a document nobody asked for"))


def test_a_check_in_worker_processes(command):
    cases = [f"merge_lse:tiny:h4:q{q}:k{q}:bf16:randn:contiguous:-:s{q}" for q in (3, 17)]
    chosen = [argument for case in cases for argument in ("--case", case)]
    with command("check", *chosen, "-i", "*/triton", "--device", "cpu", "--jobs", "2", "--json", "-") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    verdicts = json.loads(out)["verdicts"]
    assert [(verdict["case"]["id"], verdict["status"]) for verdict in verdicts] == [(case, "PASS") for case in cases]
    assert "2 verdicts in " in err


def test_a_reader_that_goes_away_leaves_no_traceback(command):
    with command("check", "--list") as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")
