"""A real Ray cluster of two nodes on this machine: the verdicts of the local engine, also when a node goes away."""

import os
import subprocess
import time
from collections import Counter
from dataclasses import replace

import pytest

from attnoracle.oracle.audit.journal import Journal
from attnoracle.oracle.audit.plan import Settings, plan
from attnoracle.oracle.audit.run import run
from attnoracle.oracle.bisect.bisection import bisect
from attnoracle.oracle.bisect.commits import Commits
from attnoracle.oracle.bisect.journal import Journal as BisectJournal
from attnoracle.oracle.bisect.probe import Probe
from attnoracle.oracle.bisect.probe import run as run_command
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.again import judge
from attnoracle.oracle.fleet.choose import Place
from attnoracle.oracle.fleet.cluster import RayEngine, connect
from attnoracle.oracle.fleet.feed import drive
from attnoracle.oracle.fleet.pool import Pool
from attnoracle.oracle.fleet.ray_calls import RayCalls

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'attnoracle[ray]'")
pytestmark = [
    pytest.mark.slow,  # two nodes, and workers that import torch
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the end of the process
]

CASE = Case(operator="merge_lse", geometry="tiny", heads=2, q_lens=(9, 20), k_lens=(9, 20))
NAMES = ("merge_lse/torch", "fault:merge-lse-is-max")
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
PAIRS = [(CASE.with_seed(seed), name) for seed in range(20) for name in NAMES]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        import sys

        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Cluster(initialize_head=True, head_node_args=SMALL)
        made.second = made.add_node(**SMALL)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def connected(cluster):
    return connect(cluster.address)


def told(verdicts):
    return [(v.case.id, v.implementation, v.status, v.reason, v.measures, v.device) for v in verdicts]


def quiet(i, verdict):
    """Nobody watches."""


def test_the_verdicts_are_those_of_the_local_engine_and_what_it_costs(connected, record_property):
    with Pool(jobs=2, device="cpu", judge=judge) as pool:
        drive(pool, PAIRS[:4], on_result=quiet)  # workers are up
        started = time.monotonic()
        local = drive(pool, PAIRS, on_result=quiet)
        here = time.monotonic() - started
    with RayEngine(connected, device="cpu", judge=judge, timeout=120.0) as engine:
        assert engine.slots == 2
        drive(engine, PAIRS[:4], on_result=quiet)
        started = time.monotonic()
        spread = drive(engine, PAIRS, on_result=quiet)
        there = time.monotonic() - started
    assert told(spread) == told(local)
    record_property("seconds_local", round(here, 3))
    record_property("seconds_ray", round(there, 3))
    print(f"\nlocal {here:.2f} s, ray {there:.2f} s for {len(PAIRS)} verdicts")


def test_looking_into_a_failure_runs_in_the_cluster(connected):
    aside = RayCalls.aside(connected, "cpu")
    assert aside.call(os.getpid).result(timeout=120) != os.getpid()
    aside.close()


def test_an_audit_has_the_same_outcomes_here_and_in_the_cluster(connected):
    names = ("merge-lse-is-max", "merge-by-mean", "merge-lse-in-base-2")
    settings = Settings(faults=names, good_runs=4)
    planned = plan(settings)
    found = {}
    for place in (Place("local", "cpu"), Place("ray", "cpu", connected)):
        with Journal(None, settings) as journal:
            audit = run(planned, settings, journal, workers=2, place=place)
            found[place.name] = {key: replace(one, seconds=0.0) for key, one in journal.outcomes.items()}
            assert audit.exit_code == 0
    assert len(found["ray"]) == len(planned)
    assert found["ray"] == found["local"]


def test_a_bisection_finds_the_same_commit_in_the_cluster_and_a_lost_worker_costs_a_retry(connected, tmp_path):
    """A look that kills the worker that made it, once."""
    git = ["git", "-C", str(tmp_path / "repo"), "-c", "user.name=Ada", "-c", "user.email=a@b"]
    (tmp_path / "repo").mkdir()
    subprocess.run([*git, "init", "--quiet", "-b", "main"], check=True)
    for number in range(12):
        (tmp_path / "repo" / "answer").write_text(f"{int(number >= 7)} {number}")
        subprocess.run([*git, "add", "answer"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", f"change {number}"], check=True)
    lost = tmp_path / "lost"
    look = f"read answer n < answer; test $n = 6 && mkdir {lost} 2>/dev/null && kill -9 $PPID; exit $answer"
    found = {}
    for hands in (None, RayCalls.hands(connected, "cpu")):
        lost.mkdir(exist_ok=True) if hands is None else lost.rmdir()
        probe = Probe(command=look, timeout=60)
        axis = Commits(tmp_path / "repo", "main~11", "main", probe, workdir=tmp_path / "tree", build="echo built")
        folder = tmp_path / ("here" if hands is None else "there")
        found[hands is None] = bisect(axis, axis.good, axis.bad, BisectJournal(folder, {}), hands=hands)
        axis.close()
    here, there = found[True], found[False]
    assert lost.exists(), "a worker was lost"
    assert [(point, look.label) for point, look in there.evidence] == [
        (point, look.label) for point, look in here.evidence
    ]
    assert (there.last, there.first) == (here.last, here.first)
    told = subprocess.run([*git, "show", "--no-patch", "--format=%s", there.first], capture_output=True, text=True)
    assert told.stdout.strip() == "change 7"
    logs = [file.read_text() for file in (tmp_path / "there" / "logs").glob("*-build-*")]
    assert len(logs) >= there.looks and set(logs) == {"built\n"}


def test_a_look_that_nobody_waits_for_ends_with_what_it_started(connected, tmp_path):
    hands = RayCalls.hands(connected, "cpu")
    begun = tmp_path / "begun"
    options = {"cwd": tmp_path, "env": dict(os.environ), "timeout": 100.0, "log": ""}

    def look():
        return run_command(f"echo $$ > {begun}; sleep 90 & sleep 90", **options)

    call = hands.call(look)
    until = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.1)
    group = int(begun.read_text())
    hands.stop(call)
    assert call.exception(timeout=60) is not None
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(group, 0)
            time.sleep(0.1)
    hands.close()


def test_a_node_that_is_killed_costs_no_verdict_and_counts_nothing_twice(cluster, connected):
    done = []

    def on_done(verdict):
        done.append((verdict.case.seed, verdict.implementation))
        if len(done) == 10:
            cluster.remove_node(cluster.second)

    with RayEngine(connected, device="cpu", judge=judge, timeout=120.0) as engine:
        verdicts = drive(engine, PAIRS, on_result=quiet, on_done=on_done)
    assert Counter(done) == Counter(
        {(case.seed, verdict.implementation): 1 for (case, _), verdict in zip(PAIRS, verdicts, strict=True)}
    )
    assert Counter(verdict.status for verdict in verdicts) == {"PASS": 20, "FAIL": 20}
    cluster.second = cluster.add_node(**SMALL)  # the other tests count on two
    cluster.wait_for_nodes()
