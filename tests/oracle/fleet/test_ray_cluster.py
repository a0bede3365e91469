"""A real Ray cluster of two nodes on this machine: the verdicts of the local engine, also when a node goes away."""

import os
import time
from collections import Counter

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.again import judge
from attnoracle.oracle.fleet.cluster import RayAside, RayEngine, connect
from attnoracle.oracle.fleet.feed import drive
from attnoracle.oracle.pool import Pool

ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'attnoracle[ray]'")
pytestmark = [
    pytest.mark.slow,  # two nodes, and workers that import torch
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the end of the process
]

CASE = Case(operator="merge_lse", geometry="tiny", heads=2, q_lens=(9, 20), k_lens=(9, 20))
NAMES = ("merge_lse/torch", "fault:merge-lse-is-max")
PAIRS = [(CASE.with_seed(seed), name) for seed in range(20) for name in NAMES]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    with pytest.MonkeyPatch.context() as patch:
        import sys

        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Cluster(initialize_head=True, head_node_args=small)
        made.second = made.add_node(**small)
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
    aside = RayAside(connected, "cpu")
    assert aside.call(os.getpid).result(timeout=120) != os.getpid()
    aside.close()


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
