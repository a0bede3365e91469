"""The command line: selection, exit codes, documents, and what goes wrong; run in this process on made-up kernels."""

import io
import json
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.verdict import Finding, Verdict, Worst

TINY = {"geometry": "tiny", "heads": 4, "q_lens": (2,), "k_lens": (8,)}
CASES = (
    Case(operator="dense_mha", **TINY),
    Case(operator="sparse_mqa", topk=4, **TINY),
    Case(operator="sparse_mqa", topk=4, **(TINY | {"geometry": "glm-5"})),
)
FIXTURE = Case(operator="sparse_mqa", topk=4, kind="needle", **TINY)


@pytest.fixture
def outcomes():
    """Implementation -> what its check does; the rest pass."""
    return {"sparse_mqa/flashinfer": {"status": "UNSUPPORTED", "reason": "flashinfer is not installed"}}


@pytest.fixture(autouse=True)
def world(monkeypatch, make_implementation, outcomes):
    """A suite, a catalogue and a check in place of the real ones; the log says what they were asked."""
    log = {"suites": [], "checks": []}

    def suite(name, seed):
        log["suites"].append((name, seed))
        return CASES

    def check(case, implementation, *, device="cpu"):
        log["checks"].append((case, implementation.name, device))
        outcome = outcomes.get(implementation.name, {"status": "PASS", "measures": {"element": 0.25}})
        if isinstance(outcome, BaseException):
            raise outcome
        if callable(outcome):
            outcome = outcome()
        return Verdict(case=case, implementation=implementation.name, device=device, seconds=0.01, **outcome)

    catalogue = ("dense_mha/sdpa-math", "sparse_mqa/triton", "sparse_mqa/gather", "sparse_mqa/flashinfer")
    modules = {
        "attnoracle.oracle.suites": {"suite": suite, "fixture_cases": lambda: (FIXTURE, CASES[1])},
        "attnoracle.oracle.check": {"check": check},
        "attnoracle.optimized.catalogue": {"IMPLEMENTATIONS": tuple(map(make_implementation, catalogue))},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("COLUMNS", "80")
    # On any machine the CPU is at hand, and settling for it must leave no trace in this process.
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return log


@pytest.fixture
def attnoracle(capsys):
    """Exit code, stdout and stderr of one command."""

    def attnoracle(*arguments):
        code = main(arguments)
        return code, *capsys.readouterr()

    return attnoracle


@pytest.fixture
def check(attnoracle):
    return lambda *arguments: attnoracle("check", "--device", "cpu", "--jobs", "1", *arguments)


def test_check_runs_every_case_with_every_implementation_of_its_operator(check, world):
    code, out, err = check()
    assert code == 0
    assert world["suites"] == [("quick", 0)]
    assert [(case.id, name) for case, name, _ in world["checks"]] == [
        (CASES[0].id, "dense_mha/sdpa-math"),
        *[
            (case.id, f"sparse_mqa/{backend}")
            for case in (CASES[1], CASES[2], FIXTURE)
            for backend in ("triton", "gather", "flashinfer")
        ],
    ]
    assert {device for *_, device in world["checks"]} == {"cpu"}
    assert "sparse_mqa" in out and "gather" in out
    assert "3 x flashinfer is not installed" in out
    assert out.splitlines()[-1].startswith("10 verdicts in ")
    assert out.splitlines()[-1].endswith(": 7 pass, 3 unsupported")
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--operator", "dense_mha"], 1),
        (["--operator", "*_mha", "--operator", "sparse*"], 10),
        (["--implementation", "*/triton"], 3),
        (["-i", "sparse_mqa/gather", "-i", "dense*"], 4),
        (["--geometry", "glm-*"], 3),
        (["--geometry", "tiny", "--operator", "sparse_mqa", "-i", "*/gather"], 2),
        (["--case", CASES[1].id], 3),
        (["--case", CASES[1].id, "--case", CASES[0].id, "--case", CASES[1].id], 4),
        (["--case", "merge"], None),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else str(value),
)
def test_filters(check, world, arguments, count):
    code, *_ = check(*arguments)
    assert (code, len(world["checks"])) == ((0, count) if count else (2, 0))


def test_suite_and_seed_are_handed_on(check, world):
    assert check("--suite", "production", "--seed", "7")[0] == 0
    assert world["suites"] == [("production", 7)]


def test_list_prints_ids_only_and_runs_nothing(attnoracle, world):
    code, out, err = attnoracle("check", "--list", "--operator", "sparse_mqa")
    assert (code, err) == (0, "")
    assert out.splitlines() == [CASES[1].id, CASES[2].id, FIXTURE.id]
    assert world["checks"] == []


def test_a_failure_ends_in_a_block_and_exit_1(check, outcomes):
    outcomes["sparse_mqa/gather"] = {
        "status": "FAIL",
        "findings": (Finding("element", "3 of 16 elements outside", True, None, "heads 3"),),
        "worst": (Worst("out", (1, 3, 5), 2.0, 1.0, 0.5),),
    }
    code, out, _ = check("--case", CASES[1].id)
    assert code == 1
    assert "FAIL  sparse_mqa/gather" in out
    assert "3 of 16 elements outside (proved)" in out
    assert "at heads 3" in out
    assert f"attnoracle repro '{CASES[1].id}' --implementation sparse_mqa/gather --device cpu\n" in out


@pytest.mark.parametrize(
    ("status", "code"), [("PASS", 0), ("FAIL", 1), ("ERROR", 1), ("WEAK", 2), ("UNSUPPORTED", 2), ("SUSPECT", 0)]
)
def test_exit_codes(check, outcomes, status, code):
    outcomes["dense_mha/sdpa-math"] = {"status": status, "reason": "so it is"}
    assert check("--operator", "dense_mha")[0] == code


def test_nothing_in_common_is_exit_2(check):
    code, out, err = check("--operator", "dense_mha", "-i", "sparse_mqa/*")
    assert (code, out) == (2, "")
    assert err.startswith("attnoracle: nothing to judge: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--operator", "dense_mah"], "unknown operator 'dense_mah'; nearest: dense_mha"),
        (["-i", "sparse_mqa/tritn"], "unknown implementation 'sparse_mqa/tritn'; nearest: sparse_mqa/triton"),
        (["-i", "mine.py:kernel"], "a callable of yours is given by --impl mine.py:kernel --operator NAME"),
        (["--geometry", "glm5"], "unknown geometry 'glm5'; nearest: glm-5"),
        (["--case", CASES[1].id.replace(":s0", "")], f"nearest: {CASES[1].id}"),
        (["--case", "nonsense"], "got 1 parts; attnoracle check --list shows ids"),
        (["--case", CASES[0].id.replace("dense", "danse")], "unknown operator 'danse_mha'; nearest: dense_mha"),
        (["--case", CASES[0].id.replace("tiny", "tony")], "unknown geometry 'tony'; nearest: tiny"),
        (["--case", CASES[0].id.replace("h4", "h0")], "case field 'heads': expected at least 1, got 0"),
        (["--case", CASES[0].id.replace("bf16", "bf17")], "fp32, e4m3, got 'bf17'; nearest: bf16, fp16\n"),
        (["--case", CASES[0].id, "--geometry", "glm-*"], "--geometry glm-*: the case dense_mha:tiny:"),
        (["--json", "-", "--junit", "-"], "stdout takes one document"),
        (["--json", "/no/such/folder/x.json"], "no folder /no/such/folder; make it first"),
        (["--junit", "."], "expected a file name, got a folder"),
        (["--list", "--json", "x.json"], "--list: does not go with --json; it only prints ids"),
        (["--impl", "m:f", "--operator", "*"], "--impl m:f: expected the name of one operator beside it, got '*'"),
    ],
    ids=lambda value: value[1][:30] if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_requests_are_exit_2_with_what_to_do(check, world, arguments, words):
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("attnoracle: ") and "Traceback" not in err
    assert world["checks"] == []


@pytest.mark.parametrize("text", ["b1", "none/b1"])
def test_what_is_neither_case_nor_folder_is_told_so(attnoracle, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    code, _, err = attnoracle("repro", text)
    assert code == 2 and f"'{text}': no such case and no such folder" in err


def test_repro_refuses_a_geometry_that_is_not_the_cases(attnoracle, world):
    code, _, err = attnoracle("repro", CASES[0].id, "--geometry", "glm-5", "--device", "cpu")
    assert code == 2 and "--geometry glm-5: the case dense_mha:tiny:" in err and world["checks"] == []


def test_a_run_that_went_on_says_how_many_verdicts_were_there(check, world, tmp_path):
    words = ["--operator", "sparse_mqa", "-i", "*/gather", "--resume", str(tmp_path / "state")]
    before = check(*words)[1].splitlines()[-1]
    asked = len(world["checks"])
    code, out, _ = check(*words, "--json", str(tmp_path / "o.json"))
    assert code == 0 and len(world["checks"]) == asked and "resume" not in before
    assert out.splitlines()[-1].endswith(f"; {asked} of them from the file of --resume")
    assert json.loads((tmp_path / "o.json").read_text())["summary"]["resumed"] == asked


def test_json_on_stdout_is_nothing_but_json(check, outcomes):
    outcomes["sparse_mqa/gather"] = lambda: print("a kernel prints") or {"status": "FAIL", "reason": "broken"}
    code, out, err = check("--json", "-", "--operator", "sparse_mqa")
    read = json.loads(out)
    assert code == read["summary"]["exit_code"] == 1
    assert read["schema"] == {"name": "attnoracle.check", "version": 1}
    assert read["command"] == [
        "attnoracle", "check", "--device", "cpu", "--jobs", "1", "--json", "-", "--operator", "sparse_mqa",
    ]  # fmt: skip
    assert len(read["verdicts"]) == 9
    assert {"python", "torch", "attnoracle", "device", "cpus", "git"} <= set(read["environment"])
    assert "a kernel prints" in err and "FAIL  sparse_mqa/gather" in err


def test_documents_go_to_files(check, tmp_path):
    code, out, _ = check("--json", str(tmp_path / "a.json"), "--junit", str(tmp_path / "a.xml"), "--quiet")
    assert code == 0
    assert len(json.loads((tmp_path / "a.json").read_text())["verdicts"]) == 10
    assert ElementTree.parse(tmp_path / "a.xml").getroot().get("tests") == "10"
    assert out.startswith("\n10 verdicts in ")


def test_a_failure_of_the_tool_is_exit_3_with_a_traceback(check, outcomes):
    outcomes["dense_mha/sdpa-math"] = ZeroDivisionError("of the verdict's own")
    code, out, err = check()
    assert (code, out) == (3, "")
    assert "Traceback" in err
    assert err.splitlines()[-1] == (
        "attnoracle: this is a failure of attnoracle itself, not of what it checks: "
        "ZeroDivisionError: of the verdict's own"
    )


def test_bad_input_found_while_checking_is_exit_2(check, outcomes):
    outcomes["dense_mha/sdpa-math"] = BadInput("unknown kind 'rand'; nearest: randn")
    code, _, err = check()
    assert (code, err) == (2, "attnoracle: unknown kind 'rand'; nearest: randn\n")


def test_ctrl_c_is_exit_130_and_says_what_is_kept(check, outcomes, tmp_path):
    outcomes["dense_mha/sdpa-math"] = KeyboardInterrupt()
    code, out, err = check("-i", "dense_mha/*")
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert "attnoracle: interrupted after 0 of" in err and err.endswith("with --resume FILE they would be kept\n")
    state = str(tmp_path / "state")
    err = check("-i", "sparse_mqa/gather", "-i", "dense_mha/*", "--resume", state)[2]
    assert err.endswith(f"{state} has them, and the same command goes on\n")


def test_a_closed_pipe_is_no_failure(check, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    for arguments in (
        "check --device cpu --jobs 1",
        "check --list",
        "check --device cpu --jobs 1 --json -",
        "--version",
    ):
        monkeypatch.setattr(sys, "stdout", Closed())
        assert main(arguments.split()) == 141, arguments


def test_text_that_stdout_cannot_encode_is_escaped(monkeypatch, outcomes, world):
    outcomes["dense_mha/sdpa-math"] = {"status": "FAIL", "reason": "größer als ½"}
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["check", "--device", "cpu", "--jobs", "1", "--operator", "dense_mha"]) == 1
    sys.stdout.flush()
    assert b"gr\\xf6\\xdfer als \\xbd" in raw.getvalue()


def test_repro_shows_measures_even_of_a_pass(attnoracle, world):
    code, out, _ = attnoracle("repro", CASES[1].id, "--device", "cpu")
    assert code == 0
    assert [name for _, name, _ in world["checks"]] == [
        "sparse_mqa/triton",
        "sparse_mqa/gather",
        "sparse_mqa/flashinfer",
    ]
    assert out.count("  case       " + CASES[1].id + "\n") == 3
    assert "measures   element = 0.25" in out
    assert "reason     flashinfer is not installed" in out
    assert "10ms on cpu" in out


def test_repro_of_one_implementation_as_the_block_prints_it(attnoracle, outcomes, world):
    outcomes["sparse_mqa/gather"] = {"status": "FAIL", "reason": "broken"}
    verdict = Verdict(case=CASES[1], implementation="sparse_mqa/gather", status="FAIL")
    arguments = verdict.repro.replace("'", "").split()[1:]
    code, out, _ = attnoracle(*arguments, "--json", "-")
    assert code == 1
    assert [record["implementation"] for record in json.loads(out)["verdicts"]] == ["sparse_mqa/gather"]


@pytest.mark.parametrize(("ran", "where"), [("cpu", "cpu"), ("NVIDIA H200", "cuda"), ("cuda", "cuda")])
def test_a_repro_line_names_the_device_as_the_option_takes_it(ran, where):
    verdict = Verdict(case=CASES[1], implementation="sparse_mqa/gather", status="FAIL", device=ran)
    assert verdict.repro.endswith(f"--implementation sparse_mqa/gather --device {where}")


def test_repro_refuses_other_operators_and_unknown_cases(attnoracle):
    code, _, err = attnoracle("repro", CASES[0].id, "-i", "sparse_mqa/*", "--device", "cpu")
    assert code == 2 and "nothing to judge" in err
    code, _, err = attnoracle("repro", "sparse_mqa:tiny", "--device", "cpu")
    assert code == 2 and "got 2 parts" in err


def test_cuda_that_is_not_there_is_exit_2(attnoracle, monkeypatch):
    monkeypatch.setattr("attnoracle.oracle.device._has_cuda", lambda: False)
    code, out, err = attnoracle("check", "--device", "cuda")
    assert (code, out) == (2, "")
    assert err == (
        "attnoracle: device cuda: torch sees no CUDA device here; use --device cpu, or see attnoracle doctor\n"
    )
