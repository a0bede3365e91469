"""Plays a sequence of batches and judges it, by the layer contract or as graphs against eager steps; shrinks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..case import Case
from ..cause.signature import Signature, signature
from ..verdict import Finding, Verdict
from .scenes import Scene, Turn, legal, planted_in

#: What both kinds of violation say: which check, and in words where and what.
Broken = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Told:
    """One step: what its prefills ran as by the rules (of graphs the capture has none), and what it broke."""

    route: str
    broken: list[Broken]


def play(case: Case, name: str, device: str = "cpu") -> Verdict:
    """The verdict on a sequence: FAIL with what the first broken step broke. ERROR where a layer raised."""
    started = time.monotonic()
    verdict = Verdict(case=case, implementation=name, status="PASS", device=device)
    try:
        broken = next((told.broken for told in steps(case, name, device) if told.broken), [])
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return replace(verdict, status="ERROR", reason=reason, seconds=time.monotonic() - started)
    if broken:
        # One finding a check: the words are where it was, which is no part of the failure's signature.
        told = dict(reversed(broken))
        findings = tuple(
            Finding(check, "", True, where=told[check].removeprefix(f"{check}: ")) for check in dict(broken)
        )
        verdict = replace(verdict, status="FAIL", reason=broken[0][1], findings=findings)
    return replace(verdict, seconds=time.monotonic() - started)


def steps(case: Case, name: str, device: str = "cpu") -> Iterator[Told]:
    """Every step in turn; of graphs the capture comes first."""
    scene, fault = Scene.of(case), planted_in(name)
    yield from (_layer if scene.kind == "layer" else _graphs)(scene, fault, device)


def _layer(scene: Scene, fault: Any, device: str) -> Iterator[Told]:
    from ...reference.layer import MissingMetadata, SparseMLALayer
    from ...reference.routing import decide_route
    from ..layer.expected import wrong_numbers
    from ..layer.rig import Rig

    rules, deployment, sizes = installed(scene, device)
    rig = Rig(rules, deployment, sizes, make=fault.make if fault else SparseMLALayer)
    alter = {"alter": fault.alter()} if fault else {}
    for turn in scene.turns:
        for request in turn.preempted:
            rig.preempt(_number(request))
        for donor, tokens, request in turn.adopted:
            rig.adopt(_number(request), _number(donor), tokens)
        mode = next((flag.upper() for flag in turn.flags if flag != "decode"), "NONE")
        queries = [(_number(request), count) for request, count in turn.queries]
        try:
            decoding = "decode" in turn.flags
            result = rig.step(queries, mode=mode, decoding=decoding, **alter)  # type: ignore[arg-type]
            # Where a rule was broken wrong numbers follow, and say no more about which failure it is.
            violations = result.violations or wrong_numbers(rig, result)
        except MissingMetadata:
            violations = rig.monitor.end()
        except (RuntimeError, IndexError, ValueError):
            violations = rig.monitor.end()
            if not violations:
                raise
        route = decide_route(rules, deployment, rig.scheduled.batch).route.value if rig.scheduled else ""
        yield Told(route, [(violation.rule, str(violation)) for violation in violations])


def _number(request: str) -> int:
    return ord(request) - ord("a")


def installed(scene: Scene, device: str) -> tuple[Any, Any, Any]:
    """Rules, deployment and sizes of the model."""
    if scene.kind == "layer":
        from ..layer.play import SIZES
        from ..layer.small import DEPLOYMENT, small_rules

        deployment = replace(
            DEPLOYMENT,
            wrapper=scene.model,  # type: ignore[arg-type]
            index_topk=scene.topk,
            force_mqa="force" in scene.setting,
            max_num_seqs=4 if "seqs" in scene.setting else 1,
        )
        return small_rules(), deployment, replace(SIZES, device=device)
    from ..graphs.setup import setup

    given = setup(scene.model, device)
    return given.rules, given.deployment, given.sizes


def _graphs(scene: Scene, fault: Any, device: str) -> Iterator[Told]:
    from ..graphs.engine import Engine
    from ..graphs.makers import maker
    from ..graphs.run import run_sequence
    from ..graphs.sequences import parse
    from ..graphs.setup import setup

    version, truth = (fault.version, fault.truth) if fault else ("attnoracle", "attnoracle")
    seen = run_sequence(
        parse(scene.line),
        setup(scene.model, device, version),
        maker(device),
        fault.engine if fault else Engine,
        setup(scene.model, device, truth),
    )
    for step in seen:
        yield Told(" and ".join(step.routes), [(violation.check, str(violation)) for violation in step.violations])


def shrunk(case: Case, run: Callable[[Case], Verdict], seconds: float) -> tuple[Verdict | None, int]:
    """The smallest sequence that fails in the same way, and the runs it took; None where it did not fail again.

    Drops steps, then requests of a step, then settings, and shortens prompts, until nothing more can go.
    """
    until = time.monotonic() + seconds
    best, runs = run(case), 1
    if not best.bad:
        return None, runs
    sought: Signature = signature(best)
    going = True
    while going:
        going = False
        for smaller in _smaller(Scene.of(best.case)):
            if time.monotonic() > until:
                return best, runs
            found = run(smaller.case())
            runs += 1
            if found.bad and sought.same(signature(found)):
                best, going = found, True
                break
    return best, runs


def _smaller(scene: Scene) -> Iterator[Scene]:
    for changed in _changed(scene):
        if legal(changed):
            yield changed


def _changed(scene: Scene) -> Iterator[Scene]:
    turns = scene.turns
    for place in reversed(range(len(turns))):
        yield replace(scene, turns=_without(turns, place))
    for place, turn in enumerate(turns):
        for name, _ in turn.queries:
            rest = tuple(query for query in turn.queries if query[0] != name)
            yield replace(scene, turns=(*turns[:place], replace(turn, queries=rest), *turns[place + 1 :]))
        if turn.adopted:
            yield replace(scene, turns=(*turns[:place], replace(turn, adopted=()), *turns[place + 1 :]))
        if turn.flags and "decode" not in turn.flags:
            yield replace(scene, turns=(*turns[:place], replace(turn, flags=()), *turns[place + 1 :]))
    if scene.kind == "layer" and scene.setting:
        yield replace(scene, setting=())
    for place, turn in enumerate(turns):
        for at, (name, count) in enumerate(turn.queries):
            for less in dict.fromkeys((1, count // 2, count - 1)):
                if 0 < less < count:
                    queries = (*turn.queries[:at], (name, less), *turn.queries[at + 1 :])
                    yield replace(scene, turns=(*turns[:place], replace(turn, queries=queries), *turns[place + 1 :]))
    renamed = _renamed(turns)
    if renamed != turns:
        yield replace(scene, turns=renamed)


def _renamed(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Requests called a, b, c in the order in which they come."""
    every = dict.fromkeys(name for turn in turns for name, _ in turn.queries)
    names = {name: chr(ord("a") + place) for place, name in enumerate(every)}
    return tuple(
        replace(
            turn,
            queries=tuple((names[name], count) for name, count in turn.queries),
            preempted=tuple(names[name] for name in turn.preempted),
            adopted=tuple((names[donor], count, names[name]) for donor, count, name in turn.adopted),
        )
        for turn in turns
    )


def _without(turns: tuple[Turn, ...], place: int) -> tuple[Turn, ...]:
    """The other steps, without requests taken away that no step has begun any more."""
    known: set[str] = set()
    left = []
    for turn in (*turns[:place], *turns[place + 1 :]):
        adopted = tuple(hit for hit in turn.adopted if hit[0] in known)
        kept = replace(turn, preempted=tuple(name for name in turn.preempted if name in known), adopted=adopted)
        known |= {name for name, _ in turn.queries}
        left.append(kept)
    return tuple(left)
