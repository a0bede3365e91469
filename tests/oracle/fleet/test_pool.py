"""The worker pool: order, crashes, hangs, exceptions and Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from attnoracle.oracle.environment import cpu_count
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.fleet.choose import Place
from attnoracle.oracle.fleet.pool import Pool, cost, default_jobs, run
from attnoracle.oracle.fleet.worker import _ending, portable


class Stubborn(Exception):
    """Cannot be unpickled: it has to be made with two arguments and hands on one."""

    def __init__(self, one, two):
        super().__init__(one)


# Workers import the judge by name, so it has to lie in a module that they can find.
JUDGES = """
import os, signal, time
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.verdict import Verdict

def judge(case, implementation, device):
    backend = implementation.partition("/")[2]
    if backend == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if backend == "hang":
        time.sleep(60)
    if backend == "refuse":
        raise BadInput("no such kind")
    if backend == "print":
        print("noise on stdout", flush=True)
    status = "PASS"
    if backend == "poison":
        from attnoracle.oracle.calling import call as calling
        calling.usable = lambda device: False
    if backend in ("poison", "raise"):
        status = "ERROR"
    import torch
    measures = {"pid": os.getpid(), "threads": torch.get_num_threads(), "at": time.monotonic()}
    return Verdict(case=case, implementation=implementation, status=status, device=device, measures=measures)
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    name = f"judges_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__(name).judge
    sys.modules.pop(name)


@pytest.fixture
def go(judge):
    def go(pairs, *, jobs=2, **options):
        seen = []
        verdicts = run(
            pairs, jobs=jobs, device="cpu", judge=judge, on_result=lambda i, v: seen.append((i, v)), **options
        )
        assert seen == list(enumerate(verdicts))
        assert [(v.case, v.implementation) for v in verdicts] == list(pairs)
        return verdicts

    return go


def test_one_job_runs_in_this_process(go, make_case):
    verdicts = go([(make_case(seed=i), "sparse_mqa/x") for i in range(3)], jobs=1)
    assert {v.measures["pid"] for v in verdicts} == {os.getpid()}


def test_nothing_to_do_starts_nothing(go):
    assert go([]) == []


def test_the_longest_start_first_and_the_order_is_that_of_the_input(go, make_case, capfd):
    lengths = (1, 8, 512, 64, 1024, 2)
    pairs = [(make_case(q_lens=(q,), k_lens=(2048,)), "sparse_mqa/print") for q in lengths]
    verdicts = go(pairs, jobs=1, timeout=60)
    assert {v.measures["threads"] for v in verdicts} == {cpu_count()}
    assert sorted(range(6), key=lambda i: verdicts[i].measures["at"]) == [4, 2, 3, 1, 5, 0]
    out, err = capfd.readouterr()
    assert (out, err.count("noise on stdout")) == ("", 6), "what a worker prints must not get into a report"


def test_a_worker_that_dies_costs_its_own_job_only(go, make_case):
    backends = ["x", "crash", "x", "x"]
    verdicts = go([(make_case(seed=i), f"sparse_mqa/{name}") for i, name in enumerate(backends)])
    assert [v.status for v in verdicts] == ["PASS", "ERROR", "PASS", "PASS"]
    assert verdicts[1].reason == "worker died: signal 11 (SIGSEGV)"
    assert verdicts[1].device == "cpu"
    assert {v.measures["threads"] for v in verdicts if v.status == "PASS"} == {max(1, cpu_count() // 2)}


def test_a_worker_that_has_lost_its_device_gives_its_verdict_and_no_other(go, make_case):
    backends = ["raise", "poison", "x", "x"]
    verdicts = go([(make_case(seed=i), f"sparse_mqa/{name}") for i, name in enumerate(backends)], jobs=1, timeout=60)
    assert [v.status for v in verdicts] == ["ERROR", "ERROR", "PASS", "PASS"]
    first, poisoned, *fresh = (v.measures["pid"] for v in verdicts)
    assert first == poisoned, "an exception costs no process"
    assert {poisoned} != set(fresh) and len(set(fresh)) == 1


@pytest.mark.parametrize("apart", [True, False])
def test_one_job_at_a_time_may_have_a_process_of_its_own(judge, make_case, apart):
    with Pool(jobs=1, device="cpu", judge=judge, apart=apart) as pool:
        backends = ["crash", "x"] if apart else ["x"]
        pairs = [(make_case(seed=i), f"sparse_mqa/{name}") for i, name in enumerate(backends)]
        verdicts = pool.run(pairs, on_result=lambda i, v: None)
    assert [v.status for v in verdicts] == (["ERROR", "PASS"] if apart else ["PASS"])
    assert (verdicts[-1].measures["pid"] == os.getpid()) is not apart


@pytest.mark.parametrize(("jobs", "here"), [(None, False), (1, True)])
def test_no_kernel_runs_in_the_command_itself_unless_asked(judge, make_case, monkeypatch, jobs, here):
    monkeypatch.setattr("attnoracle.oracle.fleet.pool.default_jobs", lambda device: 1)  # as on CUDA
    with Place.of("local", None, "cpu").engine(judge, jobs=jobs) as pool:
        (verdict,) = pool.run([(make_case(), "sparse_mqa/x")], on_result=lambda i, v: None)
    assert (verdict.measures["pid"] == os.getpid()) is here


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (7, "exit code 7"), (-9, "signal 9 (SIGKILL)"), (-50, "signal 50")]
)
def test_how_a_worker_ended(code, words):
    assert _ending(code) == words


def test_a_hang_is_an_error_and_the_run_goes_on(go, make_case):
    done = []
    pairs = [(make_case(seed=i), f"sparse_mqa/{name}") for i, name in enumerate(["hang", "x"])]
    verdicts = go(pairs, jobs=1, timeout=0.5, on_done=done.append)
    assert [v.status for v in verdicts] == ["ERROR", "PASS"]
    assert verdicts[0].reason == "no answer after 0.5 s; worker stopped"
    assert 0.5 <= verdicts[0].seconds < 20
    assert done == verdicts


def test_an_exception_of_the_check_itself_is_raised_here(go, make_case):
    with pytest.raises(BadInput, match="no such kind") as error:
        go([(make_case(), "sparse_mqa/refuse")], jobs=1, timeout=60)
    assert "while checking sparse_mqa:glm-5.2" in error.value.__notes__[0]


def test_an_exception_that_cannot_be_pickled_keeps_its_words():
    told = portable(Stubborn("one", "two"), "while checking")
    assert type(told) is RuntimeError
    assert str(told) == "Stubborn: one\nwhile checking"
    assert type(portable(BadInput("words"), "")) is BadInput


def test_workers_may_start_before_the_pairs_are_known(judge, make_case):
    with Pool(jobs=1, device="cpu", judge=judge, timeout=60) as pool:
        pool.start()
        (verdict,) = pool.run([(make_case(), "sparse_mqa/x")], on_result=lambda i, v: None)
    assert verdict.status == "PASS"


def test_a_worker_that_cannot_start_is_a_failure_of_the_tool(judge, make_case, tmp_path):
    for source in tmp_path.rglob("judges_*.py*"):
        source.unlink()
    with pytest.raises(RuntimeError, match="a worker process did not start: worker died: exit code 1"):
        run([(make_case(), "sparse_mqa/x")], jobs=1, device="cpu", timeout=60, judge=judge, on_result=lambda i, v: None)


@pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")
def test_ctrl_c_ends_workers_and_run(judge, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import signal\n"
        "from attnoracle.oracle.case import Case\n"
        "from attnoracle.oracle.fleet.pool import run\n"
        f"from {judge.__module__} import judge\n"
        "if __name__ == '__main__':\n"
        # A run in the background of a shell inherits that nobody interrupts it.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    case = Case(operator='sparse_mqa', geometry='tiny', heads=1, q_lens=(1,), k_lens=(1,))\n"
        "    pairs = [(case, 'sparse_mqa/x'), *[(case, 'sparse_mqa/hang')] * 2]\n"
        "    try:\n"
        "        run(pairs, jobs=2, device='cpu', judge=judge, on_result=lambda i, v: print('first', flush=True))\n"
        "    except KeyboardInterrupt:\n"
        "        print('stopped', flush=True)\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "first\n"
        os.killpg(process.pid, signal.SIGINT)
        # Two workers hang for ever: without the interrupt there would be no end. A busy machine is no failure.
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert (out, err) == ("stopped\n", "")


def test_defaults():
    assert default_jobs("cuda") == 1
    assert 1 <= default_jobs("cpu") <= 8


def test_cost_counts_only_selected_keys_of_the_sparse_operator(make_case):
    sparse = make_case(q_lens=(4,), k_lens=(4096,), topk=64)
    assert cost(sparse) == 16 * 4 * 64
    assert cost(make_case("dense_mha", q_lens=(4,), k_lens=(4096,))) == 16 * 4 * 4096
