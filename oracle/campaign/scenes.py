"""Sequences of batches as cases: whole layers under their contract, and graphs held against eager steps.

A campaign plans cases, and a sequence is one: its operator is ``layer`` or ``graphs``, its geometry the model that it
runs on, its lengths are new tokens and open tokens of each step, and its options spell the steps in order::

    graphs:fused:h2:q20,6:k20,26:top8:fp32:randn:contiguous:00.piecewise.8.at.20+01.a20+02.eager.b6:s0
    layer:generic:h2:q5,1,7:k5,6,7:top4:fp32:randn:contiguous:00.seqs.4.force+01.a5+02.full.decode.a1+03.-a.b7:s0

``a20``: 20 new tokens of request a; ``-a``: its pages are taken away before; ``a8-b``: request b begins with the first
8 tokens of a, out of the prefix cache. ``00`` is what holds for all steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ..case import Case
from ..errors import BadInput, unknown

#: Operator of such a case, and what begins the name of what is tried: ``layer:fused``, ``graphs:fault:pr-52512``.
KINDS = ("layer", "graphs")
MODELS = {"layer": ("fused", "generic"), "graphs": ("fused", "generic", "packed", "triton")}
#: What a planted fault is named by.
_FAULT = "fault:"
#: Tokens of one request, tokens of one step, open requests, steps: what both kinds can hold.
LONGEST, MOST, OPEN, STEPS = 48, 48, 5, 6
#: Tokens of a page of the small installation: a hit of the prefix cache is whole pages.
PAGE = 4
_TOPK = {"layer": (4, 16), "graphs": (8,)}
#: New tokens of a prompt: up to the decode threshold (2), up to and past top-k, masked MHA beyond.
_PROMPTS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 20)
_CAPTURED = ((4,), (8,), (1, 4), (4, 8), (8, 16), (8, 24))
_FLAGS = {"layer": ("full", "piecewise", "decode"), "graphs": ("eager", "force")}
_DTYPES = {"packed": "e4m3", "triton": "bf16"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One step."""

    queries: tuple[tuple[str, int], ...]
    preempted: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """``eager`` and ``force`` of graphs; the graph mode and ``decode`` (no prefill is left to do) of a layer."""
    adopted: tuple[tuple[str, int, str], ...] = ()
    """Of a layer: whose first tokens, how many, and the request that begins with them."""

    @property
    def words(self) -> list[str]:
        new = [f"{name}{count}" for name, count in self.queries]
        hits = [f"{donor}{count}-{name}" for donor, count, name in self.adopted]
        return [*self.flags, *(f"-{name}" for name in self.preempted), *hits, *new]

    def before(self, known: Mapping[str, int]) -> dict[str, int]:
        """Cached tokens of the requests that are open when the turn is taken, from those after the turn before it."""
        kept = {name: count for name, count in known.items() if name not in self.preempted}
        return kept | {name: count for _, count, name in self.adopted}

    def after(self, known: Mapping[str, int]) -> dict[str, int]:
        """The same when it was taken."""
        found = self.before(known)
        for name, count in self.queries:
            found[name] = found.get(name, 0) + count
        return found


@dataclass(frozen=True, slots=True)
class Scene:
    """A sequence on a model."""

    kind: str
    model: str
    topk: int
    setting: tuple[str, ...]
    """What holds for all steps: of graphs mode, captured sizes and length; of a layer ``seqs.4`` and ``force``."""
    turns: tuple[Turn, ...]

    def case(self) -> Case:
        """The case that stands for it."""
        known: dict[str, int] = {}
        q_lens, k_lens = [], []
        for turn in self.turns:
            known = turn.after(known)
            q_lens.append(sum(count for _, count in turn.queries))
            k_lens.append(sum(known.values()))
        lines = [list(self.setting), *(turn.words for turn in self.turns)]
        return Case(
            operator=self.kind,
            geometry=self.model,
            heads=2,
            q_lens=tuple(q_lens),
            k_lens=tuple(k_lens),
            topk=self.topk,
            dtype=_DTYPES.get(self.model, "fp32"),
            options=tuple(".".join([f"{number:02d}", *words]) for number, words in enumerate(lines) if words),
        )

    @classmethod
    def of(cls, case: Case) -> Scene:
        """The inverse of ``case``. Raises BadInput for what is none."""
        if case.operator not in KINDS or case.geometry not in MODELS[case.operator]:
            raise BadInput(f"case {case.id!r}: expected a sequence of layer or graphs on one of their models")
        setting: tuple[str, ...] = ()
        turns = []
        for option in case.options:
            number, *words = option.split(".")
            if number == "00":
                setting = tuple(words)
            else:
                turns.append(_turn(case, words))
        found = cls(case.operator, case.geometry, case.topk, setting, tuple(turns))
        if not turns or found.case() != replace(case, seed=0) or not legal(found):
            raise BadInput(f"case {case.id!r}: its steps do not follow from each other")
        return found

    @property
    def line(self) -> str:
        """A sequence of graphs as ``attnoracle graphs --sequence`` takes it."""
        mode, *rest = self.setting
        sizes, _, at = " ".join(rest).partition(" at ")
        captured = f" {sizes.replace(' ', ',')} at {at}" if sizes else ""
        return f"{mode.upper()}{captured}: {'; '.join(' '.join(turn.words) for turn in self.turns)}"


def _turn(case: Case, words: Sequence[str]) -> Turn:
    queries, preempted, flags, adopted = [], [], [], []
    for word in words:
        if word in _FLAGS[case.operator]:
            flags.append(word)
        elif re.fullmatch(r"-[a-z]", word):
            preempted.append(word[1])
        elif case.operator == "layer" and re.fullmatch(r"[a-z]\d{1,3}-[a-z]", word):
            adopted.append((word[0], int(word[1:-2]), word[-1]))
        elif re.fullmatch(r"[a-z]\d{1,3}", word):
            queries.append((word[0], int(word[1:])))
        else:
            raise BadInput(f"case {case.id!r}: expected a6, -a or {', '.join(_FLAGS[case.operator])}, got {word!r}")
    return Turn(tuple(queries), tuple(preempted), tuple(flags), tuple(adopted))


def is_scene(name: str) -> bool:
    """Whether a campaign's subject plays sequences."""
    return name.partition(":")[0] in KINDS


def is_own(name: str) -> bool:
    """Whether a subject is a layer of the user's: ``layer:my_pkg.layers:make``, where ``make(parts)`` makes one."""
    kind, _, rest = name.partition(":")
    return kind == "layer" and ":" in rest and not rest.startswith(_FAULT)


def names(planted: bool = False) -> tuple[str, ...]:
    """Subjects that play sequences; the planted faults instead."""
    if not planted:
        return tuple(f"{kind}:{model}" for kind in KINDS for model in MODELS[kind])
    from ..graphs.faults import GRAPH_FAULTS
    from ..layer.faults import LAYER_FAULTS

    of_layers, of_graphs = ([one.name for one in faults] for faults in (LAYER_FAULTS, GRAPH_FAULTS))
    return (*(f"layer:{_FAULT}{one}" for one in of_layers), *(f"graphs:{_FAULT}{one}" for one in of_graphs))


def planted_in(name: str) -> Any | None:
    """What stands in for the right layer or engine; None for a right one. Raises BadInput for an unknown subject."""
    kind, _, rest = name.partition(":")
    if is_own(name):
        from ..guests.target import resolve
        from ..layer.fault import LayerFault

        return LayerFault(name=rest, source="a layer of the user's", rules=(), make=resolve(rest))
    if rest.startswith(_FAULT):
        if kind == "layer":
            from ..layer.faults import layer_fault

            return layer_fault(rest.removeprefix(_FAULT))
        from ..graphs.faults import graph_fault

        return graph_fault(rest.removeprefix(_FAULT))
    if name not in names():
        raise unknown("subject of a campaign", name, names())
    return None


def legal(scene: Scene) -> bool:
    """Whether each step follows from those before."""
    known: dict[str, int] = {}
    for turn in scene.turns:
        if not turn.queries or sum(count for _, count in turn.queries) > MOST:
            return False
        for name in turn.preempted:
            if known.pop(name, None) is None:
                return False
        for donor, count, name in turn.adopted:
            if name in known or count % PAGE or not 0 < count <= known.get(donor, 0):
                return False
            known[name] = count
        for name, count in turn.queries:
            if "decode" in turn.flags and name not in known:
                return False
            known[name] = known.get(name, 0) + count
            if count < 1 or known[name] > LONGEST:
                return False
        if len(known) > OPEN:
            return False
    return bool(scene.turns)


def drawn(name: str, rng: Random) -> Case:
    """A random sequence for a subject."""
    kind, _, model = name.partition(":")
    fault = planted_in(name)
    if fault is not None:
        model = fault.subject if kind == "graphs" else rng.choice(MODELS["layer"])
    setting = _setting(kind, rng)
    known: dict[str, int] = {}
    turns: list[Turn] = []
    for _ in range(rng.randint(1, STEPS)):
        turn = rng.choice(list(_turns(kind, known, rng)))
        known = turn.after(known)
        turns.append(turn)
    return Scene(kind, model, rng.choice(_TOPK[kind]), setting, tuple(turns)).case()


def _setting(kind: str, rng: Random) -> tuple[str, ...]:
    if kind == "layer":
        return (*rng.choice(((), ("seqs", "4"))), *rng.choice(((), (), ("force",))))
    mode = rng.choice(("none", "piecewise", "piecewise", "full", "full_and_piecewise"))
    if mode == "none":
        return (mode,)
    return (mode, *map(str, rng.choice(_CAPTURED)), "at", str(rng.choice((2, 6, 9, 20))))


def _turns(kind: str, known: dict[str, int], rng: Random) -> Iterator[Turn]:
    """One turn of each sort that can follow: prefill, extend, decode, prefill beside decodes, start over."""
    flags: tuple[str, ...] = ()
    if kind == "graphs":
        flags = rng.choice(((), (), ("eager",), ("force",)))
    fresh = next(letter for letter in "abcdefgh" if letter not in known)
    room = [name for name, length in known.items() if length < LONGEST]

    def of(queries: list[tuple[str, int]], preempted: tuple[str, ...] = (), decoding: bool = False) -> Turn:
        if kind == "graphs":
            return Turn(tuple(queries), preempted, flags)
        mode = rng.choice(("", "full") if decoding else ("", "piecewise"))
        return Turn(tuple(queries), preempted, (*filter(None, [mode]), *(("decode",) if decoding else ())))

    if len(known) < OPEN:
        yield of([(fresh, rng.choice(_PROMPTS))])
        yield of([*((name, 1) for name in room), (fresh, rng.choice(_PROMPTS))])
        donors = [name for name, length in known.items() if length >= PAGE]
        if kind == "layer" and donors:
            donor = rng.choice(donors)
            hit = PAGE * rng.randint(1, min(known[donor], 24) // PAGE)
            beside = rng.choice(([], [(name, 1) for name in room]))
            yield replace(of([*beside, (fresh, rng.choice(_PROMPTS))]), adopted=((donor, hit, fresh),))
    if len(known) + 2 <= OPEN:
        second = next(letter for letter in "abcdefgh" if letter not in known and letter != fresh)
        yield of([(fresh, rng.choice(_PROMPTS)), (second, rng.choice(_PROMPTS))])
    for tokens in (1, 2):
        decoded = [name for name in room if known[name] + tokens <= LONGEST]
        if decoded and (tokens == 1 or kind == "layer"):
            yield of([(name, tokens) for name in decoded], decoding=True)
    count = rng.randint(3, 12)
    longer = [name for name in room if known[name] + count <= LONGEST]
    if longer:
        name = rng.choice(longer)
        yield of([(name, count), *((other, 1) for other in room if other != name)])
    if known:
        name = rng.choice(list(known))
        yield of([(name, rng.choice(_PROMPTS))], (name,))


def repro(case: Case, name: str) -> str:
    """The command that plays it again."""
    return f"attnoracle repro '{case.id}' --implementation {name}"
