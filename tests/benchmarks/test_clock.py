"""The device's time and the host's, told apart on a device that is simulated: every figure is known."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from attnoracle.benchmarks.bench.ceilings import Ceilings
from attnoracle.benchmarks.bench.clock import MOST, Call, DeviceClock
from attnoracle.benchmarks.bench.measure import Result
from attnoracle.benchmarks.bench.report import as_csv, print_report
from attnoracle.benchmarks.bench.timing import Timing, in_turn
from attnoracle.oracle.case import Case

US = 1e-6
SMALL = Case.parse("dense_mha:glm-5:h2:q20,5:k40,5:bf16:randn:contiguous:-:s0")


class Simulated:
    """A host and a device, in seconds since both began; a flush takes the device 65 us and a launch the host 5."""

    def __init__(self):
        self.host = self.device = 0.0

    def now(self):
        return self.host

    def works(self, seconds):
        self.host += seconds

    def launch(self, seconds):
        self.works(5 * US)
        self.device = max(self.device, self.host) + seconds

    def flush(self):
        self.launch(65 * US)

    def synchronize(self):
        self.host = max(self.host, self.device)

    def event(self):
        return Recorded(self)

    def kernel(self, host, device):
        """A function that works on the host and then launches."""

        def call():
            self.works(host)
            self.launch(device)

        return call

    def waiting(self, host, device):
        """The same, with a look at what the device found, and host work on it."""

        def call():
            self.kernel(host / 2, device)()
            self.synchronize()
            self.works(host / 2)

        return call


class Recorded:
    def __init__(self, machine):
        self.machine = machine

    def record(self):
        self.at = self.machine.device = max(self.machine.device, self.machine.host)

    def query(self):
        return self.at <= self.machine.host

    def synchronize(self):
        self.machine.host = max(self.machine.host, self.at)

    def elapsed_time(self, end):
        return 1000 * (end.at - self.at)


def timed(machine, *functions):
    return in_turn(DeviceClock(machine, functions), seconds=0.0, least=8)


def test_a_short_kernel_is_not_timed_as_its_launch():
    machine = Simulated()
    short, long = timed(machine, machine.kernel(145 * US, 60 * US), machine.kernel(20 * US, 3000 * US))
    assert short.median == pytest.approx(60 * US) and short.host_seconds == pytest.approx(150 * US)
    assert short.host_work == "hidden" and short.host_bound
    assert long.median == pytest.approx(3000 * US) and not long.host_bound


def test_one_flush_does_not_hide_a_slow_launch():
    """What the queue is for: after a single flush the same kernel takes what its host does beyond that flush."""
    machine = Simulated()
    kernel = machine.kernel(145 * US, 60 * US)
    clock = DeviceClock(machine, [kernel])
    assert clock.call(kernel, 1) == Call(pytest.approx((150 - 65 + 60) * US), pytest.approx(150 * US), False)
    assert clock(0) == Call(pytest.approx(60 * US), pytest.approx(150 * US), True)


def test_all_get_the_queue_of_the_slowest_host():
    machine = Simulated()
    quick, slow = machine.kernel(10 * US, 60 * US), machine.kernel(1000 * US, 60 * US)
    assert DeviceClock(machine, [quick, slow]).queue == DeviceClock(machine, [slow]).queue > 1000 / 65


def test_slow_moments_of_the_host_are_no_wait():
    """Both calls behind the first queue take the host longer than that queue lasts; nothing waits."""
    machine = Simulated()
    slow = iter([0.0, 0.0, 900 * US, 900 * US])

    def kernel():
        machine.kernel(50 * US + next(slow, 0.0), 3000 * US)()

    assert DeviceClock(machine, [kernel]).host_work == ["hidden"]


@pytest.mark.parametrize("kernel", [60 * US, 20_000 * US])
def test_a_function_that_waits_is_found_and_has_no_queue_in_its_figures(kernel):
    machine = Simulated()
    waiting, plain = timed(machine, machine.waiting(100 * US, kernel), machine.kernel(100 * US, kernel))
    assert waiting.host_work == "waits" and plain.host_work == "hidden"
    assert waiting.host_seconds == pytest.approx(105 * US + kernel)
    assert waiting.median == pytest.approx(105 * US + kernel) and plain.median == pytest.approx(kernel)


def test_a_host_too_slow_to_hide_is_said():
    machine = Simulated()
    slow, quick = timed(machine, machine.kernel(3 * MOST * 65 * US, 60 * US), machine.kernel(20 * US, 60 * US))
    assert slow.host_work == "exposed" and slow.host_bound and quick.host_work == "hidden"


def test_calls_that_were_not_hidden_are_not_called_so():
    calls = [Call(1.0, 0.5, True), Call(1.0, 0.5, True), Call(2.0, 2.5, False)]
    assert Timing.of_calls(calls, "hidden").host_work == "exposed"
    assert Timing.of_calls(calls[:2], "hidden").host_work == "hidden"
    assert Timing.of_calls(calls, "").host_seconds is None


def test_both_times_stand_in_table_json_and_csv():
    def result(name, *timing):
        return Result(SMALL, f"dense_mha/{name}", "timed", timing=Timing(*timing))

    results = [
        result("hopper", 6e-5, 6e-5, 6e-5, 9, 1.5e-4, "hidden"),
        result("eager", 9e-4, 9e-4, 9e-4, 9, 1e-3, "waits"),
        result("sdpa-cudnn", 1e-4, 1e-4, 1e-4, 9, 2e-5, "hidden"),
    ]
    rows = [json.loads(json.dumps(one.as_dict())) for one in results]
    assert [(row["host_seconds"], row["host_bound"], row["host_work"]) for row in rows] == [
        (1.5e-4, True, "hidden"),
        (1e-3, True, "waits"),
        (2e-5, False, "hidden"),
    ]
    lines = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert [float(line["host_ms"]) for line in lines] == pytest.approx([0.15, 1.0, 0.02])
    assert [line["host_work"] for line in lines] == ["hidden", "waits", "hidden"]
    console = Console(file=io.StringIO(), width=80)
    print_report(console, results, Ceilings(1e12, {"bf16": 1e14}, {}), measured_on="a GPU")
    said = console.file.getvalue()
    assert "0.15 ms*" in said and "20 us " in said and "* host bound" in said
    assert "eager waits for the device" in said and max(map(len, said.splitlines())) <= 80
