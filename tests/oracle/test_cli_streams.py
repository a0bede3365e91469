"""What goes where: documents stay whole and people can read the rest, whatever a kernel or a shell does."""

import io
import json
import os
import shlex
import subprocess
import sys

import pytest
from rich.console import Console

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.cli.judging import Documents
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.reports.summary import Summary
from attnoracle.oracle.reports.table import report

CASE = "merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s0"
NOISY = """
import os
from attnoracle.reference import merge_lse
def noisy(out_a, lse_a, out_b, lse_b):
    os.write(1, b"straight to the descriptor\\n")
    os.chdir("/")
    out, lse = merge_lse(out_a, lse_a, out_b, lse_b)
    return out.to(out_a.dtype), lse.float()
"""


@pytest.fixture
def shell(tmp_path, served):
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "c.toml").write_text('[contract]\nprobabilities = "fp32"\n')

    def shell(arguments, start=None):
        start = start or shlex.join([*served, "attnoracle"])
        line = f"{start} check --device cpu -j 1 --case '{CASE}' {arguments}"
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_INTERPRET": "1"}
        return subprocess.run(line, shell=True, env=env, cwd=tmp_path, capture_output=True, text=True)

    return shell


def test_a_kernel_that_writes_to_the_descriptor_leaves_json_whole(shell, tmp_path):
    told = shell("--impl noisy:noisy --operator merge_lse --contract c.toml --json - --junit junit.xml")
    assert json.loads(told.stdout)["verdicts"][0]["reason"].startswith("changed the working directory")
    assert "straight to the descriptor" in told.stderr
    assert (tmp_path / "junit.xml").exists(), "a relative path means the folder at the start"


def test_a_closed_stdout_is_no_failure_of_the_tool(shell, tmp_path):
    told = shell("-i merge_lse/torch --json o.json >&-", f"{sys.executable} -m attnoracle.oracle")
    assert (told.returncode, told.stdout) == (0, "")
    assert json.loads((tmp_path / "o.json").read_text())["summary"]["pass"] == 1


def test_two_documents_for_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"--json and --junit both go to .*: one file takes one document"):
        Documents("report", str(tmp_path / "report"))
    with pytest.raises(BadInput, match="stdout takes one document"):
        Documents("-", "-")


def test_forty_columns_keep_the_names(make_verdict):
    verdicts = [make_verdict("PASS"), make_verdict("FAIL", "indexer_scores/triton", reason="x")]
    told = io.StringIO()
    report(Console(file=told, width=40), verdicts, Summary.of(verdicts, 1.0))
    table = told.getvalue().split("\n\n")[0]
    assert "sparse_mqa/triton" in table and "indexer_scores/triton" in table
    assert max(map(len, table.splitlines())) <= 40 and "susp" not in table


@pytest.mark.parametrize(
    "case",
    [
        "dense_mha:glm-5:h2147483647:q1:k1:bf16:randn:contiguous:-:s0",
        "sparse_mqa:glm-5:h16:q65536x2147483647:k65536x2147483647:top2048:bf16:randn:contiguous:-:s0",
        "masked_mha:glm-5:h1:q2147483647:k2147483647:top9:bf16:randn:contiguous:-:s0",
        "indexer_scores:glm-5:h32:q1000000000:k1000000000:bf16:randn:contiguous:-:s0",
        "topk_select:glm-5:h1:q2147483647:k2147483647:top2147483647:bf16:randn:contiguous:-:s0",
        "merge_lse:glm-5:h2147483647:q2147483647:k2147483647:bf16:randn:contiguous:-:s0",
    ],
)
def test_a_size_that_no_machine_holds_is_unsupported_with_the_bytes(case, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    operator = case.partition(":")[0]
    names = {"dense_mha": "eager", "masked_mha": "sdpa-math", "sparse_mqa": "gather"}
    arguments = ["--case", case, "-i", f"{operator}/{names.get(operator, 'torch')}", "--device", "cpu", "-j", "1"]
    assert main(["check", *arguments]) == 2
    assert "for inputs and one answer, cpu has" in " ".join(capsys.readouterr().out.split())


def test_a_time_limit_that_is_never_reached(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["check", "--device", "cpu", "--case", CASE, "-i", "merge_lse/torch", "--timeout", "inf"]) == 0


@pytest.mark.parametrize("thread", [False, True])
def test_a_program_that_leaves_loses_nothing(thread):
    code = (
        "import atexit, ctypes, threading, time\n"
        "from attnoracle.oracle.cli.terminal import leave\n"
        "atexit.register(print, 'registered')\n"
        f"{'threading.Thread(target=lambda: (time.sleep(0.2), print(4))).start()' if thread else ''}\n"
        "print('printed')\n"
        "ctypes.CDLL(None).printf(b'by printf\\n')\n"
        "leave(7)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    words = ["printed", "registered", "by printf", *(["4"] if thread else [])]
    assert (told.returncode, sorted(told.stdout.splitlines()), told.stderr) == (7, sorted(words), "")
