"""One sequence on one subject: the graph engine, its eager shadow and the truth, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...reference.layer import need
from . import checks
from .backend import Maker
from .engine import Engine, Outcome
from .makers import EagerMaker
from .sequences import GraphMode, Sequence, Step
from .setup import Setup
from .violation import CaptureFailed, Violation


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One judged step; step 0 is the capture."""

    number: int
    step: str
    mode: str
    size: int
    tokens: int
    routes: tuple[str, ...]
    violations: tuple[Violation, ...]


def run_sequence(
    sequence: Sequence, setup: Setup, maker: Maker, engine: type[Engine] = Engine, truth: Setup | None = None
) -> list[StepSeen]:
    """Every step with what it violates; ends early where a step raises or the capture fails.

    ``truth``: what the right layers are set up with, where that is not ``setup``.
    """
    trial = Trial(sequence.mode, sequence.sizes, sequence.captured_at, setup, maker, engine, truth)
    seen = [trial.opening] if trial.opening is not None else []
    for step in sequence.steps:
        if trial.ended:
            break
        seen.append(trial.take(step))
    return seen


class Trial:
    """The three engines side by side: captured by the constructor (``opening``), then fed step by step."""

    def __init__(
        self,
        mode: GraphMode,
        sizes: tuple[int, ...],
        captured_at: int,
        setup: Setup,
        maker: Maker,
        engine: type[Engine] = Engine,
        truth: Setup | None = None,
    ) -> None:
        self.graphed = engine(setup, maker, mode, sizes)
        self.shadow = engine(setup, EagerMaker(), mode, sizes)
        self.truth = Engine(truth or setup, EagerMaker(), "NONE", ())
        self.known: dict[str, int] = {}
        self.history: list[Outcome] = []
        self.last: tuple[Outcome, list[Tensor]] | None = None
        self.ended = False
        """A step raised, or the capture failed."""
        self.opening: StepSeen | None = None
        if sizes:
            found = tuple(self._capture(captured_at))
            self.opening = StepSeen(0, f"at {captured_at}", mode, 0, 0, (), found)
            self.ended = any(violation.check == "illegal-call" for violation in found)

    def take(self, step: Step) -> StepSeen:
        """Run one step on all three and judge it."""
        number = len(self.history) + 1
        truth = self.truth.play(self.truth.prepare(step, number))
        self.history.append(truth)
        shadow: Outcome | None
        try:
            shadow = self.shadow.play(self.shadow.prepare(step, number))
        except Exception:
            shadow = None  # a faulty engine that raises does so in its graphs too, where it is reported
        routes = tuple(dict.fromkeys(route for _, route in truth.decisions))
        try:
            got, replayed = self._replays(self.graphed.prepare(step, number))
        except Exception as error:
            self.ended = True
            mode, size = ("NONE", 0) if step.eager else self.graphed.choose(truth.metadata, truth.tokens)
            broken = (_raised(error, number, mode),)
            return StepSeen(number, str(step), mode, size, truth.tokens, routes, broken)
        seen = checks.Seen(self.graphed, self.shadow, got, shadow, truth)
        found = (*self._judged(seen), *replayed)
        return StepSeen(number, str(step), got.mode, got.size, got.tokens, routes, found)

    def _capture(self, length: int) -> Iterator[Violation]:
        caches = self.graphed.caches()
        generator = torch.Generator().manual_seed(1)
        for cache in caches.values():
            # Canaries: a capture must not touch what live requests hold.
            cache.copy_(torch.randn(cache.shape, generator=generator).to(cache.dtype))
        before = {name: cache.clone() for name, cache in caches.items()}
        try:
            self.graphed.capture(length)
            self.shadow.capture(length)
        except CaptureFailed as error:
            yield Violation("illegal-call", 0, f"{error.what}: {error.call or error.told}", "the capture fails")
            return
        block = self.graphed.deployment.block_size
        for name, row in _first_of_each(checks.changed_rows(before, caches, torch.empty(0, dtype=torch.int64))):
            whose = "the null block" if row < block else "a live block"
            yield Violation(
                "live-blocks", 0, f"the dummy batch wrote row {row} of the {name}", f"it belongs to {whose}"
            )
        for cache in caches.values():
            cache.zero_()
            cache[:block] = torch.nan
        self.known = {name: tensor.data_ptr() for name, tensor in self.graphed.buffers().items()}
        yield from checks.captured(self.graphed)

    def _replays(self, prepared: Outcome) -> tuple[Outcome, list[Violation]]:
        """The step, and the same again: twice, with other padding, after an eager step."""
        engine, number = self.graphed, prepared.number
        if prepared.mode == "NONE":
            got = engine.play(prepared)
            return got, list(self._kept(got))
        found = list(checks.addresses(self.known, engine.buffers(), number))
        padded = prepared.size > prepared.tokens
        if padded:
            engine.static.pad(prepared.tokens, prepared.size, torch.nan)
        caches = {name: cache.clone() for name, cache in engine.caches().items()}
        got = engine.play(prepared)
        found += checks.addresses(self.known, engine.buffers(), number) if not found else []
        slots = need(self.history[-1].metadata, "slots")
        for name, row in _first_of_each(checks.changed_rows(caches, engine.caches(), slots)):
            told = f"row {row} of the {name} changed"
            found.append(Violation("padding-out", number, told, "it is the row of no token of this step"))
        found += self._kept(got)
        found += self._compare(got, "replay-twice", "a replay on the same memory")
        engine.eager(_copy(got))
        found += self._compare(got, "after-eager", "a replay after an eager step of the same batch")
        if padded:
            engine.static.pad(prepared.tokens, prepared.size, 0.0)
            found += self._compare(got, "padding-in", "a replay with zeros instead of NaN in the padded rows")
        if not all(bool(output.isfinite().all()) for output in got.outputs):
            found += self._without_null_block(got)
        return got, found

    def _compare(self, got: Outcome, check: str, what: str) -> Iterator[Violation]:
        again = self.graphed.play(got)
        difference = checks.differ(got, again)
        if difference is not None:
            yield Violation(check, got.number, what, difference)

    def _without_null_block(self, got: Outcome) -> Iterator[Violation]:
        block = self.graphed.deployment.block_size
        for cache in self.graphed.caches().values():
            cache[:block] = 0
        if all(bool(output.isfinite().all()) for output in self.graphed.play(got).outputs):
            yield Violation(
                "null-block", got.number, "the null block holds NaN", "the output is NaN, and not without it"
            )
        for cache in self.graphed.caches().values():
            cache[:block] = torch.nan

    def _kept(self, got: Outcome) -> Iterator[Violation]:
        """What the step before handed out, after this one ran."""
        if self.last is not None:
            outcome, copies = self.last
            for place, (now, then) in enumerate(zip(outcome.outputs, copies, strict=True)):
                if not torch.equal(now.nan_to_num(), then.nan_to_num()):
                    frozen = f"step {outcome.number} handed out memory of its graph for layer {place}"
                    yield Violation("outputs-stable", got.number, frozen, "this step wrote over it")
        self.last = (got, [output.clone() for output in got.outputs])

    def _judged(self, seen: checks.Seen) -> Iterator[Violation]:
        if seen.got.mode != "NONE":
            yield from checks.metadata_current(seen)
            yield from checks.frozen_host(seen)
            yield from checks.full_scores(seen)
            yield from checks.static_inputs(seen)
        yield from checks.prepare_dispatch(seen)
        yield from checks.route_trace(seen)
        yield from checks.contract(seen)
        yield from checks.outputs(seen, self.history)


def _raised(error: Exception, number: int, mode: str) -> Violation:
    told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if "expected a prepared MQA query" in told:
        check = "superset" if mode == "PIECEWISE" else "prepare-dispatch"
        return Violation(check, number, "no MQA query was prepared", told)
    return Violation("raised", number, f"under {mode}", told)


def _first_of_each(found: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    names: set[str] = set()
    for name, row in found:
        if name not in names:
            names.add(name)
            yield name, row


def _copy(outcome: Outcome) -> Outcome:
    return replace(outcome, outputs=[], traces=[], handed=[], decisions=[])
