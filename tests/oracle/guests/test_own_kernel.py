"""A wrong kernel of a user on its way through check, shrink, bundle, repro and diagnose: what is printed works."""

import json
import runpy
import shlex
import sys

import pytest

from attnoracle.oracle.bundle import write
from attnoracle.oracle.calling.place import place, without
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.signature import signature
from attnoracle.oracle.check import check
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.guests.external import external

CASE = "sparse_mqa:tiny:h4:q3,1:k20,9:top8:bf16:randn:contiguous:-:s0"
SMALL = "sparse_mqa:tiny:h2:q1:k6:top4:bf16:randn:contiguous:-:s0"
DECLARED = '[contract]\nprobabilities = "fp32"\n'
BROKEN = """
import torch
import triton
import triton.language as tl


@triton.jit
def _empty(out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, 0.0)


def launches(q, kv, indices, *, scale, value_dim):
    _empty[(1,)](torch.empty(8), 0)


def refuses(q, kv, indices, *, scale, value_dim):
    raise NotImplementedError("no such head count")
"""


@pytest.fixture
def own(home, attnoracle):
    """A command about a kernel of the folder's, its contract declared."""
    (home / "contract.toml").write_text(DECLARED)
    (home / "users_broken.py").write_text(BROKEN)

    def own(command, *words, impl="users_kernels:scaled", contract="contract.toml"):
        named = ["--impl", impl, *(["--contract", contract] if contract else [])]
        return attnoracle(command, *words, *named, "--device", "cpu")

    yield own
    sys.modules.pop("users_broken", None)


@pytest.mark.parametrize(
    ("name", "told"), [("launches", "i = tl.arange(0, N)"), ("refuses", 'raise NotImplementedError("no such head')]
)
def test_an_error_says_where_in_the_users_file(own, home, name, told):
    words = ["--operator", "sparse_mqa", "--case", CASE, "-j", "1", "--json", "o.json"]
    code, out, _ = own("check", *words, impl=f"users_broken:{name}")
    (verdict,) = json.loads((home / "o.json").read_text())["verdicts"]
    number = next(n for n, line in enumerate(BROKEN.splitlines(), 1) if told in line)
    assert code == 1 and verdict["reason"].partition(" [")[2].startswith(f"users_broken.py:{number}: {told}")
    assert f"[users_broken.py:{number}: " in " ".join(out.split())
    assert str(home) not in verdict["reason"]
    assert f"[users_broken.py:{number}: " in " ".join(own("repro", CASE, impl=f"users_broken:{name}")[1].split())


def test_a_line_that_moved_is_the_same_failure(make_verdict):
    reasons = [f"ValueError: no [a] {n}{where}" for n, where in enumerate((" [k.py:3: x = a[1]]", " [k.py:7: y]", ""))]
    seen = {signature(make_verdict("ERROR", reason=reason)) for reason in reasons}
    assert len(seen) == 1 and "no [a]" in str(*seen)
    assert without("ValueError: got [3]") == "ValueError: got [3]"


def test_what_a_library_raises_is_told_by_the_line_that_called_it():
    try:
        json.loads("{")
    except ValueError as error:
        assert place(error).startswith(f" [test_own_kernel.py:{error.__traceback__.tb_lineno}: json.loads")
    assert place(ValueError()) == ""


def _typed(line):
    """The words of a printed command, without the program's name."""
    return shlex.split(line.partition("attnoracle ")[2])


def test_what_shrink_says_comes_next_works(own, attnoracle, monkeypatch):
    def find(case, make, device, **options):
        raise BadInput(f"asked for {make().name} on {case.id} and {device}")

    monkeypatch.setattr("attnoracle.oracle.diagnose.diagnose", find)
    code, out, _ = own("shrink", SMALL, "--operator", "sparse_mqa")
    assert code == 0 and "fixtures/cases" not in out
    words = _typed(next(line for line in out.splitlines() if line.startswith("next ")))
    small = next(line.split()[1] for line in out.splitlines() if line.startswith("case "))
    assert words[:2] == ["diagnose", small] != ["diagnose", SMALL]
    assert f"asked for sparse_mqa/scaled on {small} and cpu" in attnoracle(*words)[2]


@pytest.mark.parametrize("command", ["shrink", "diagnose"])
def test_an_operator_that_is_not_of_the_case_is_refused(own, command):
    code, _, err = own(command, CASE, "--operator", "dense_mha")
    assert code == 2 and "--operator dense_mha: the case is one of sparse_mqa" in err


@pytest.fixture
def bundle(own, home):
    """A bundle of the wrong kernel, which is not known by name."""
    scaled = external("users_kernels:scaled", "sparse_mqa", contract="contract.toml").implementation()
    return write(home / "b1", check(Case.parse(SMALL), scaled), scaled)


@pytest.mark.parametrize("command", ["repro", "diagnose"])
def test_a_bundle_of_a_users_kernel_says_how_to_run_it(bundle, attnoracle, command):
    code, _, err = attnoracle(command, "b1")
    assert code == 2 and "a kernel of yours: add --impl users_kernels:scaled" in err
    words = _typed(err.splitlines()[-1])
    assert words == [command, "b1", "--impl", "users_kernels:scaled", "--device", "cpu"]


def test_that_command_takes_operator_and_contract_from_the_bundle(bundle, attnoracle):
    words = ["repro", "b1", "--impl", "users_kernels:scaled", "--device", "cpu"]
    code, out, err = attnoracle(*words)
    assert code == 1 and "the same failure" in out and "[contract]" not in err
    again = _typed(next(line for line in out.splitlines() if line.strip().startswith("repro ")))
    assert again[again.index("--contract") + 1] == str(bundle / "contract.json")
    code, out, err = attnoracle(*again)
    assert code == 1 and "1 fail" in out and "[contract]" not in err, "the same contract, without probing"
    assert "--operator dense_mha: the case is one of sparse_mqa" in attnoracle(*words, "--operator", "dense_mha")[2]


def test_the_script_of_the_bundle_says_the_same_without_a_traceback(bundle, capsys):
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(bundle / "repro.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "attnoracle repro b1 --impl users_kernels:scaled --device cpu" in capsys.readouterr().err


def test_a_bundle_that_names_something_else_than_a_kernel_is_refused(bundle, attnoracle):
    record = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(record | {"target": "x:y; rm"}))
    code, _, err = attnoracle("repro", "b1")
    assert code == 2 and "field 'target' names no kernel" in err
