"""Two callers at once, 47 and 48: what one implementation does for one of them must not show in the other's answer.

A workspace, a plan or an output buffer that all calls share is right as long as calls come one after the other, each
used before the next is made. An engine does not call like that: it plans two batches and then runs them, and it runs
on several threads or CUDA streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...optimized.implementation import Run
from ..calling.call import Raised, called, plain, told
from ..operators import operator
from .call import Answer, Call, alike, copied
from .claim import Broken, Claim, DoesNotApply, same

#: Calls of each of two callers; DeepGEMM's own tests repeat a launch as often to see a race.
ROUNDS = {"cpu": 3, "cuda": 20}
#: Seconds after which a thread has hung.
PATIENCE = 120.0
#: Distance between the seeds of the two callers.
OTHER = 77_003


def two_callers(call: Call) -> Iterator[Claim]:
    """Two calls planned before either is run, and two threads calling at once, have the answers that they have alone.

    Bit for bit where runs are declared repeatable. The first answer must also stay what it was when the second came.
    """
    (a, answer), (b, other) = call.plain(), _other(call)
    yield from _interleaved(call, (a, b), (answer, other))
    _threads_apply(call)
    yield from _threaded(call, (a, b), (answer, other))


def two_streams(call: Call) -> Iterator[Claim]:
    """Two CUDA streams that call at once have the answers that they have alone, twenty times over."""
    if not call.device.startswith("cuda"):
        raise DoesNotApply("two streams need a CUDA device")
    (a, answer), (b, other) = call.plain(), _other(call)
    device = torch.device(call.device)
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    results: list[list[tuple[Tensor, ...]]] = [[], []]
    given = [copied(a), copied(b)]
    torch.cuda.synchronize(device)
    for _ in range(ROUNDS["cuda"]):
        for which, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[which].append(_outputs(call, given[which], partial(_run, call, given[which])))
    torch.cuda.synchronize(device)
    for which, expected in enumerate((answer, other)):
        for outputs in results[which]:
            yield from _as_alone(call, f"of stream {which + 1} of two", given[which], outputs, expected)


def _other(call: Call) -> tuple[dict[str, Any], Answer]:
    """A second call of the same sizes on other values."""
    twin = Call(call.case.with_seed(call.case.seed + OTHER), call.implementation, call.device)
    return call.remembered("other", twin.given)


def _run(call: Call, a: dict[str, Any]) -> Any:
    return plain(call.implementation.prepare(**a)())


def _finished(run: Run) -> Any:
    return plain(run())


def _outputs(call: Call, a: dict[str, Any], run: Callable[[], Any]) -> tuple[Tensor, ...]:
    try:
        outputs = run()
    except Raised as raised:
        raise Broken(f"raised {raised}") from raised
    except Exception as error:
        raise Broken(f"raised {told(error, call.implementation)}") from error
    op = operator(call.name)
    return tuple(a[name] for name in op.writes) if op.writes else outputs


def _interleaved(call: Call, given: tuple[Any, Any], alone: tuple[Answer, Answer]) -> Iterator[Claim]:
    """Both are planned, then run in turn; outputs are looked at when all are there."""
    inputs = [copied(one) for one in given]
    try:
        runs = [call.implementation.prepare(**one) for one in inputs]
    except Exception as error:
        raise Broken(f"raised {told(error, call.implementation)}") from error
    results = [_outputs(call, one, partial(_finished, run)) for one, run in zip(inputs, runs, strict=True)]
    for which, outputs in enumerate(results):
        what = f"of the {('first', 'second')[which]} of two planned calls"
        yield from _as_alone(call, what, given[which], outputs, alone[which])


def _threads_apply(call: Call) -> None:
    if call.device.startswith("cuda"):
        return  # both threads launch on one stream: two_streams looks for the race
    if call.interpreted:
        raise DoesNotApply("Triton's interpreter keeps a launch in globals: two threads need compiled kernels")


def _threaded(call: Call, given: tuple[Any, Any], alone: tuple[Answer, Answer]) -> Iterator[Claim]:
    start = threading.Barrier(2)
    results: list[list[Any]] = [[], []]
    device = torch.device(call.device)
    op = operator(call.name)

    def work(which: int) -> None:
        for _ in range(ROUNDS["cpu"]):
            inputs = copied(given[which])
            start.wait(PATIENCE)
            try:
                outputs = called(call.implementation, device, inputs)
            except Raised as raised:
                results[which].append(raised)
                continue
            written = tuple(inputs[name] for name in op.writes)
            results[which].append(tuple(x.clone() for x in (written if op.writes else outputs)))

    threads = [threading.Thread(target=work, args=(which,), daemon=True) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if any(thread.is_alive() for thread in threads):
        raise Broken(f"two threads did not come back within {PATIENCE:.0f} seconds")
    for which, expected in enumerate(alone):
        for outputs in results[which]:
            if isinstance(outputs, Raised):
                raise Broken(f"in one of two threads: raised {outputs}")
            yield from _as_alone(call, f"of thread {which + 1} of two", given[which], outputs, expected)


def _as_alone(call: Call, what: str, a: dict[str, Any], outputs: Any, expected: Answer) -> list[Claim]:
    op = operator(call.name)
    names = op.outputs
    if call.repeats:
        outputs = op.settle(a, outputs, call.contract)  # what nobody promises may differ
        return [same(f"{name} {what}", x, y) for name, x, y in zip(names, outputs, expected.raw, strict=False)]
    return alike(what, call.read(a, outputs), expected)
