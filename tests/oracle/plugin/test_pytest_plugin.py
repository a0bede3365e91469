"""The plugin in a pytest of its own: inert until used, ordered ids, failures with their command."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnoracle.optimized import triton_runtime
from attnoracle.oracle.case import Case
from attnoracle.oracle.errors import BadInput, Unsupported
from attnoracle.oracle.pytest_plugin import pytest_generate_tests
from attnoracle.oracle.testing import assert_matches_reference, cases
from attnoracle.reference import merge_lse

KERNEL = """
import pytest
from attnoracle.reference import merge_lse

def mine(out_a, lse_a, out_b, lse_b):
    out, lse = merge_lse(out_a, lse_a, out_b, lse_b)
    return out.to(out_a.dtype), lse.float()

def wrong(out_a, lse_a, out_b, lse_b):
    out, lse = mine(out_a, lse_a, out_b, lse_b)
    return out * 1.01, lse
"""
TESTS = """
import pytest
from users_merge import mine, wrong
from attnoracle.oracle.testing import assert_matches_reference

@pytest.mark.differential(operator="merge_lse", geometry="tiny")
def test_right(case):
    assert_matches_reference(mine, case=case)

@pytest.mark.differential(operator="merge_lse", geometry="tiny", dtype="fp32")
def test_wrong(case):
    assert_matches_reference(wrong, case=case)
"""

#: A right kernel of a user's in Triton, whose output Triton's own interpreter truncates to bf16 instead of rounding it.
IN_TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def _merge(a_ptr, x_ptr, b_ptr, y_ptr, out_ptr, lse_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    live = column < WIDTH
    x, y = tl.load(x_ptr + row), tl.load(y_ptr + row)
    top = tl.maximum(x, y)
    top = tl.where(top == float("-inf"), 0.0, top)
    wx, wy = tl.exp(x - top), tl.exp(y - top)
    total = wx + wy
    a = tl.load(a_ptr + row * WIDTH + column, mask=live & (wx > 0), other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * WIDTH + column, mask=live & (wy > 0), other=0.0).to(tl.float32)
    out = (a * wx + b * wy) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * WIDTH + column, out.to(out_ptr.dtype.element_ty), mask=live)
    tl.store(lse_ptr + row, top + tl.log(total))

def mine(out_a, lse_a, out_b, lse_b):
    out_a, lse_a, out_b, lse_b = (x.contiguous() for x in (out_a, lse_a, out_b, lse_b))
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    width = out_a.shape[-1]
    if lse.numel():
        _merge[(lse.numel(),)](out_a, lse_a, out_b, lse_b, out, lse, width, triton.next_power_of_2(width))
    return out, lse
"""


@pytest.fixture
def pytest_in(plugin_words, request):
    def run(folder, *arguments, fresh=False):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), *sys.path])), "COLUMNS": "120"}
        env.pop("TRITON_INTERPRET", None)
        start = [sys.executable, "-m"] if fresh else request.getfixturevalue("served")
        words = [*start, "pytest", "-p", "no:randomly", *plugin_words]
        return subprocess.run([*words, *arguments], env=env, cwd=folder, capture_output=True, text=True)

    return run


def test_marked_tests_expand_fail_as_the_command_does_and_run_under_xdist(tmp_path, pytest_in):
    (tmp_path / "users_merge.py").write_text(KERNEL)
    (tmp_path / "test_users.py").write_text(TESTS)
    (tmp_path / "reference.py").write_text("raise RuntimeError('this is the reference of the user')\n")
    told = pytest_in(tmp_path, "-q", "-n", "2", "-rA", "--strict-markers").stdout
    assert "test_users.py::test_right[tiny:h4:q33:k33:bf16:randn:contiguous:-:s0] " in told.replace("\n", " ")
    assert "2 failed, 7 passed" in told
    assert "FAIL  merge_lse/wrong" in told and "  repro      attnoracle repro 'merge_lse:tiny:h8:" in told
    assert "--impl users_merge:wrong --operator merge_lse" in told


def test_it_imports_nothing_of_ours_until_a_test_is_marked(tmp_path, pytest_in):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\n\ndef test_plain():\n"
        "    found = {n for n in sys.modules if n.startswith('attnoracle.')} - {'attnoracle.oracle'}\n"
        "    assert found == {'attnoracle.oracle.pytest_plugin'} and 'torch' not in sys.modules\n"
    )
    told = pytest_in(tmp_path, "-q", fresh=True)
    assert told.returncode == 0, told.stdout


def test_a_mark_that_cannot_be_ends_the_run(tmp_path, pytest_in):
    (tmp_path / "test_users.py").write_text(
        "import pytest\n\n\n@pytest.mark.differential()\ndef test_it(case):\n    pass\n"
    )
    told = pytest_in(tmp_path, "-q")
    assert told.returncode != 0 and "no operator" in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"operator": "merge_lsd"}, "nearest: merge_lse"),
        ((), {"operator": "merge_lse", "sweet": 1}, "got ['sweet']"),
        (("merge_lse",), {}, "got ('merge_lse',)"),
        ((), {"operator": "merge_lse", "geometry": "glm-6"}, "nearest: glm-5"),
    ],
    ids=["operator", "keyword", "position", "geometry"],
)
def test_a_mark_that_cannot_be(args, kwargs, words):
    mark = SimpleNamespace(args=args, kwargs=kwargs)
    definition = SimpleNamespace(get_closest_marker=lambda name: mark, nodeid="test_users.py::test_it")
    with pytest.raises(pytest.UsageError) as told:
        pytest_generate_tests(SimpleNamespace(definition=definition, fixturenames=["case"]))
    assert str(told.value).startswith("test_users.py::test_it: ") and words in str(told.value)


def mine(out_a, lse_a, out_b, lse_b):
    out, lse = merge_lse(out_a, lse_a, out_b, lse_b)
    return out.to(out_a.dtype), lse.float()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_cases_are_those_of_the_suite_in_order():
    found = cases("merge_lse", "deepseek-v3.2")
    assert [case.seed for case in found] == sorted(case.seed for case in found) and len(found) >= 7
    assert {case.operator for case in found} == {"merge_lse"}
    with pytest.raises(BadInput, match="no case of suite"):
        cases("merge_lse", "tiny", dtype="e4m3")


def test_the_assertion_returns_verdicts_and_says_what_cannot_be():
    case = "merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s0"
    assert len(assert_matches_reference(mine, case=case)) == 1
    with pytest.raises(AssertionError, match="FAIL  merge_lse/<lambda>"):
        assert_matches_reference(lambda **inputs: tuple(2 * x for x in mine(**inputs)), case=Case.parse(case))
    with pytest.raises(BadInput, match="expected an operator or a case"):
        assert_matches_reference(mine)
    with pytest.raises(BadInput, match="but the case is one of merge_lse"):
        assert_matches_reference(mine, operator="dense_mha", case=case)


def test_a_case_that_is_not_supported_skips(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text('[supports]\ndtypes = ["fp16"]\n')
    case = "merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s0"
    with pytest.raises(pytest.skip.Exception, match="takes dtypes fp16"):
        assert_matches_reference(mine, case=case, contract=tmp_path / "c.toml")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(Unsupported, match="takes dtypes fp16"):
        assert_matches_reference(mine, case=case, contract=str(tmp_path / "c.toml"))


def test_a_right_kernel_in_triton_passes_though_it_is_imported_first(tmp_path, pytest_in):
    if triton_runtime.availability() is not None:
        pytest.skip(f"no Triton here: {triton_runtime.availability()}")
    (tmp_path / "users_merge.py").write_text(IN_TRITON)
    (tmp_path / "test_users.py").write_text(
        "from users_merge import mine\n"
        "import pytest\n"
        "from attnoracle.oracle.testing import assert_matches_reference\n\n"
        '@pytest.mark.differential(operator="merge_lse", geometry="tiny", dtype="bf16")\n'
        "def test_right(case):\n    assert_matches_reference(mine, case=case)\n"
    )
    told = pytest_in(tmp_path, "-q", "-x", fresh=True).stdout
    assert " passed" in told and "failed" not in told and "error" not in told, told


def test_the_interpreter_is_mended_before_a_kernel_of_a_users_is_called(tmp_path):
    if triton_runtime.availability() is not None:
        pytest.skip(f"no Triton here: {triton_runtime.availability()}")
    (tmp_path / "users_merge.py").write_text(IN_TRITON)
    (tmp_path / "judge.py").write_text(
        "from users_merge import mine\n"
        "from attnoracle.optimized.contract import Contract\n"
        "from attnoracle.optimized.implementation import Implementation\n"
        "from attnoracle.oracle.case import Case\n"
        "from attnoracle.oracle.check import check\n"
        "case = Case.parse('merge_lse:tiny:h4:q33:k33:bf16:randn:contiguous:-:s0')\n"
        "one = Implementation('merge_lse/mine', Contract(probabilities='fp32'), lambda facts: None, lambda: mine)\n"
        "print(check(case, one, device='cpu').status)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "TRITON_INTERPRET": "1"}
    told = subprocess.run([sys.executable, "judge.py"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout == "PASS\n", told.stdout + told.stderr
