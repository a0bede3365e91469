"""The engine on Ray against a made-up Ray in this process: batches, losses, limits, and what is refused at once.

The real one is tested in ``test_ray_cluster.py``, where it is installed.
"""

import sys
from types import SimpleNamespace

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.cli.judging import joined
from attnoracle.oracle.errors import BadInput, Unsupported
from attnoracle.oracle.fleet.choose import Place
from attnoracle.oracle.fleet.cluster import MOST, RayEngine, connect, device_of
from attnoracle.oracle.fleet.feed import drive
from attnoracle.oracle.reports.summary import Summary
from attnoracle.oracle.verdict import Verdict

CASE = Case(operator="merge_lse", geometry="tiny", heads=1, q_lens=(2,), k_lens=(2,))


class ActorGone(Exception):
    pass


class FakeRay:
    """Runs a call when it is waited for; an actor whose call raises SystemExit is gone, with all it was sent."""

    exceptions = SimpleNamespace(RayActorError=ActorGone)

    def __init__(self, **resources):
        self.resources, self.started, self.gone, self.asked, self.turn = resources, [], set(), [], 0

    def cluster_resources(self):
        return self.resources

    def put(self, value):
        return value

    def kill(self, actor):
        self.gone.add(id(actor))

    def remote(self, kind):
        def start(*arguments):
            actor = object.__new__(kind)
            actor._judge, actor._device = arguments[:2]
            names = {name: SimpleNamespace(remote=self._caller(actor, name)) for name in ("ready", "run")}
            handle = SimpleNamespace(**names)
            self.started.append(handle)
            actor.handle = handle
            return handle

        return SimpleNamespace(options=lambda **needs: self._noting(needs, start))

    def _noting(self, needs, start):
        self.needs = needs
        return SimpleNamespace(remote=start)

    def _caller(self, actor, name):
        def call(*arguments):
            reference = object()
            self.asked.append((reference, actor, name, arguments))
            return reference

        return call

    def wait(self, references, num_returns, timeout):
        self.turn += 1
        chosen = references[self.turn % len(references)]
        return [chosen], [one for one in references if one is not chosen]

    def get(self, reference):
        _, actor, name, arguments = next(one for one in self.asked if one[0] is reference)
        if id(actor.handle) in self.gone:
            raise ActorGone("The actor died unexpectedly before finishing this task.")
        try:
            return getattr(actor, name)(*arguments)
        except SystemExit:
            self.gone.add(id(actor.handle))
            raise ActorGone("The actor died unexpectedly before finishing this task.") from None


def judge(case, name, device):
    if name.endswith("crash"):
        raise SystemExit
    if name.endswith("raise"):
        raise ZeroDivisionError("of the check itself")
    return Verdict(case=case, implementation=name, status="PASS", device=device)


def pairs(count, crash=()):
    return [(CASE.with_seed(i), "merge_lse/crash" if i in crash else "merge_lse/mine") for i in range(count)]


def engine(ray, **options):
    return RayEngine(ray, judge=judge, **{"device": "cpu", **options})


def test_every_job_is_answered_once_in_batches_that_grow():
    ray = FakeRay(CPU=2)
    with engine(ray) as workers:
        assert workers.slots == 2
        done = []
        verdicts = drive(workers, pairs(300), on_result=lambda i, v: None, on_done=done.append)
        assert workers.depth > 100, "jobs that take no time go out in large batches"
    assert len(done) == 300 and {verdict.status for verdict in verdicts} == {"PASS"}
    sizes = [len(arguments[0]) for _, _, name, arguments in ray.asked if name == "run"]
    assert sum(sizes) == 300 and sizes[0] == 1 and 10 < max(sizes) <= MOST


def test_a_kernel_that_ends_three_workers_is_an_error_and_those_in_its_batch_are_not():
    ray = FakeRay(CPU=2)
    with engine(ray) as workers:
        drive(workers, pairs(100), on_result=lambda i, v: None)  # so that batches are large
        before = len(ray.started)
        done = []
        verdicts = drive(workers, pairs(60, crash=(30,)), on_result=lambda i, v: None, on_done=done.append)
    assert [i for i, verdict in enumerate(verdicts) if verdict.status != "PASS"] == [30]
    assert verdicts[30].status == "ERROR" and "died unexpectedly" in verdicts[30].reason
    assert "(3 times)" in verdicts[30].reason and len(done) == 60
    assert len(ray.started) == before + 4, "once in its batch, three times alone"


def test_a_node_that_goes_away_costs_no_verdict():
    ray = FakeRay(CPU=3)
    with engine(ray) as workers:

        def done(verdict):
            if verdict.case.seed == 20:
                ray.gone.update(id(worker.actor) for worker in workers._workers[1:])

        verdicts = drive(workers, pairs(80), on_result=lambda i, v: None, on_done=done)
    assert [verdict.status for verdict in verdicts] == ["PASS"] * 80 and len(ray.started) == 5


def test_a_batch_that_takes_too_long_ends_its_worker():
    ray = FakeRay(CPU=1)
    ray.wait = lambda references, num_returns, timeout: (
        (references, []) if any(one[2] == "ready" and one[0] in references for one in ray.asked) else ([], references)
    )
    with engine(ray, timeout=0.01) as workers:
        (verdict,) = drive(workers, pairs(1), on_result=lambda i, v: None)
    assert verdict.status == "ERROR" and verdict.reason == "no answer after 0.01 s; worker stopped"
    assert len(ray.started) == 2


def test_what_the_check_itself_raises_ends_the_run():
    with engine(FakeRay(CPU=1)) as workers, pytest.raises(ZeroDivisionError, match="of the check itself"):
        drive(workers, [(CASE, "merge_lse/raise")], on_result=lambda i, v: None)


def test_workers_are_gpus_where_there_are_some():
    ray = FakeRay(CPU=64, GPU=8)
    assert device_of(ray, "auto") == device_of(ray, "cuda") == "cuda" and device_of(ray, "cpu") == "cpu"
    with engine(ray, device="cuda", workers=3) as workers:
        assert workers.slots == 3 and ray.needs["num_gpus"] == 0.9, "the rest is for looking into failures"
    with pytest.raises(Unsupported, match="device cuda, but no node of the cluster has a GPU"):
        device_of(FakeRay(CPU=4), "cuda")
    with pytest.raises(Unsupported, match="the cluster has no CPU to work on"):
        engine(FakeRay())


# Kinds of devices.


def two_kinds():
    ray = FakeRay(GPU=3)
    nodes = (("A100", 2, True), ("H200", 1, True), ("B200", 8, False))
    ray.nodes = lambda: [
        {"Alive": alive, "Resources": {f"accelerator_type:{kind}": 1.0, "GPU": gpus}} for kind, gpus, alive in nodes
    ]
    return ray


def test_workers_of_one_kind_are_asked_for_where_it_is():
    ray = two_kinds()
    place = Place("ray", "cuda", ray)
    assert place.kinds() == ("A100", "H200")
    with place.engine(judge, kind="A100") as workers:
        assert workers.slots == 2 and ray.needs["resources"] == {"accelerator_type:A100": 0.001}
    ray.nodes = list
    with pytest.raises(BadInput, match="expected a cluster with several kinds of devices, got none named"):
        place.kinds()
    with pytest.raises(BadInput, match="--per-device: goes with --engine ray"):
        Place("local", "cpu").kinds()


def test_an_outcome_that_depends_on_the_device_makes_the_run_fail():
    def run(*statuses, device):
        verdicts = [
            Verdict(case=case, implementation=name, status=status, device=device)
            for (case, name), status in zip(pairs(len(statuses)), statuses, strict=True)
        ]
        return verdicts, Summary.of(verdicts, 1.0)

    same = joined([run("PASS", "WEAK", device="A100"), run("PASS", "PASS", device="H200")])
    assert same[1].exit_code == 0 and len(same[0]) == 4 and same[1].problems == ()
    _, summary = joined([run("PASS", "PASS", device="A100"), run("PASS", "FAIL", device="H200")])
    (problem,) = summary.problems
    assert summary.exit_code == 1 and problem.endswith("PASS on A100, FAIL on H200")
    assert pairs(2)[1][0].id in problem and summary.counts["PASS"] == 3


# What is refused at once.


def test_without_ray_it_says_what_to_install(monkeypatch, attnoracle):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=r"Ray is not installed; pip install 'attnoracle\[ray\]'"):
        connect(None)
    for command in (["check"], ["campaign", "--cases", "1"]):
        code, out, err = attnoracle(*command, "--engine", "ray")
        assert (code, out) == (2, "") and "Ray is not installed" in err


@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1:1", "no cluster at 127.0.0.1:1: Connection refused"), ("somewhere", "expected HOST:PORT, ray://")],
)
def test_an_address_without_a_cluster_is_bad_input(monkeypatch, address, message):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(BadInput, match=message):
        connect(address)


def test_a_cluster_that_does_not_answer_is_bad_input(monkeypatch):
    def init(**options):
        raise ConnectionError("Could not find any running Ray instance.\nMore words.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(BadInput, match=r"no cluster at this machine: Could not find any running Ray instance\.; start"):
        connect(None)


def test_options_of_the_other_engine_are_refused():
    with pytest.raises(BadInput, match=r"--address 10\.0\.0\.1:6379: goes with --engine ray"):
        Place.of("local", "10.0.0.1:6379", "cpu")
    place = Place("ray", "cpu", FakeRay(CPU=1))
    with (
        pytest.raises(BadInput, match="--isolate: goes with --engine local"),
        place.engine(judge, confinement=object()),
    ):
        pass
