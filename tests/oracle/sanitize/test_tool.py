"""The command that is run, what counts as an end, and what is said without a GPU."""

import os

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import Unsupported
from attnoracle.oracle.sanitize import tool
from attnoracle.oracle.sanitize.target import DONE

CASE = "merge_lse:tiny:h2:q4,3:k4,3:bf16:randn:contiguous:-:s0"


def report(printed, seen=None, name="memcheck"):
    def runner(command, environment, seconds):
        if seen is not None:
            seen.update(command=command, environment=environment, seconds=seconds)
        return printed

    return tool.run("/cuda/compute-sanitizer", name, CASE, "merge_lse/triton", patience=9.0, runner=runner)


def test_the_target_runs_under_the_tool_with_memory_that_it_can_see(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    seen = {}
    found = report(f"{DONE}\n========= ERROR SUMMARY: 0 errors\n", seen)
    assert (found.errors, found.hazards) == (0, ())
    assert seen["command"][:3] == ["/cuda/compute-sanitizer", "--tool", "memcheck"]
    assert seen["command"][-3:] == ["attnoracle.oracle.sanitize.target", CASE, "merge_lse/triton"]
    assert seen["environment"]["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
    assert "TRITON_INTERPRET" not in seen["environment"], "kernels are compiled there"


def test_a_target_that_did_not_come_to_its_end_shows_nothing():
    early = report("RuntimeError: out of memory\n========= ERROR SUMMARY: 0 errors\n")
    assert not early.finished and early.trouble == "the kernel's process ended early: RuntimeError: out of memory"
    assert report(None).trouble == "did not come back within 9 seconds"
    assert "it printed nothing" in report("").trouble


def test_errors_count_though_they_ended_the_target():
    assert (
        report(
            "========= Program hit unspecified launch failure (error 719)\n========= ERROR SUMMARY: 1 error\n"
        ).errors
        == 1
    )


def test_a_tool_that_hangs_is_ended():
    assert tool._run(["sleep", "20"], dict(os.environ), 0.2) is None
    assert tool._run(["echo", "here"], dict(os.environ), 5.0) == "here\n"


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("attnoracle.oracle.device._has_cuda", lambda: False)
    assert main(["check", "--sanitize", "-i", "merge_lse/triton"]) == 2
    assert "compute-sanitizer needs a CUDA device" in capsys.readouterr().err


def test_without_the_tool_it_says_where_it_looked(monkeypatch):
    monkeypatch.setattr(tool.shutil, "which", lambda *names, **where: None)
    with pytest.raises(Unsupported, match=r"not on the path, in \$CUDA_HOME"):
        tool.sanitizer("cuda")


def test_what_does_not_go_with_it_is_refused(capsys):
    assert main(["check", "--sanitize", "--properties"]) == 2
    assert "--sanitize" in capsys.readouterr().err
    assert main(["check", "--sanitize", "--junit", "x.xml"]) == 2
    assert "--junit" in capsys.readouterr().err
