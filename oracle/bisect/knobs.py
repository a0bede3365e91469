"""Knobs: single values in which a good and a bad configuration differ, and which of them matter.

Of an incident, two variants of an engine are compared: a dated version of the rules and a few switches, taken apart.
Otherwise knobs are environment variables of a run. Two smallest sets are looked for by delta debugging: the knobs that
break the good configuration when they alone are turned, and those that cure the bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...reference.routing import Rules
from ..cause.signature import part_of
from ..errors import BadInput
from ..policies import load_rules
from ..replay.incident import Variant
from .delta import smallest
from .look import Label, Look
from .mixture import Mixture

#: What names a version or a variant and decides nothing.
_NAMES = ("name", "date", "source", "what", "faulty", "rules")


@dataclass(frozen=True, slots=True)
class Knob:
    """One value in which the two configurations differ; None: it is not set."""

    name: str
    good: Any
    bad: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What was found: knobs by name, and every set that was looked at."""

    knobs: tuple[Knob, ...]
    breaks: tuple[str, ...]
    """Turned to bad in the good configuration, they alone bring the failure."""
    cures: tuple[str, ...]
    """Turned to good in the bad configuration, they alone take it away."""
    signature: str
    looks: tuple[tuple[str, Look], ...]


def facts(variant: Variant) -> dict[str, Any]:
    """Rules and switches of a variant as single values."""
    found: dict[str, Any] = {}
    for record in (load_rules(variant.rules), variant):
        found |= {field.name: getattr(record, field.name) for field in fields(record) if field.name not in _NAMES}
    if found["runs_mha"] is None:
        # The layer does as its rules say: one knob, not two.
        found["runs_mha"] = found["wrapper"] == "generic" or found["fused_runs_mha"]
    del found["fused_runs_mha"]
    return found


def variant_knobs(good: Variant, bad: Variant) -> tuple[Knob, ...]:
    """Values that differ, in the order of the rules. Raises BadInput where none does."""
    one, other = facts(good), facts(bad)
    found = tuple(Knob(name, one[name], other[name]) for name in one if one[name] != other[name])
    if not found:
        raise BadInput(f"bisect knobs: {good.name} and {bad.name} differ in no rule and no switch")
    return found


def look_with(mixture: Mixture, good: Variant, values: Mapping[str, Any], length: int) -> Look:
    """One prompt length with these values in place of the good variant's."""
    merged = {**facts(good), **values}
    of_rules = {field.name for field in fields(Rules)} - {"fused_runs_mha"}
    switches = {field.name for field in fields(Variant)} - {*_NAMES}
    return mixture.look(
        good,
        length,
        rules=replace(load_rules(good.rules), **{name: value for name, value in merged.items() if name in of_rules}),
        **{name: value for name, value in merged.items() if name in switches},
    )


def isolate(
    differing: Sequence[Knob],
    run: Callable[[Mapping[str, Any]], Look],
    on_look: Callable[[str, Look], None] = lambda name, look: None,
) -> Culprit:
    """The knobs that matter, by looks with every knob at its good or its bad value.

    Raises BadInput where all good fails or all bad passes.
    """
    looks: list[tuple[str, Look]] = []

    def look(turned: frozenset[str]) -> Look:
        found = run({knob.name: knob.bad if knob.name in turned else knob.good for knob in differing})
        name = ", ".join(knob.name for knob in differing if knob.name in turned) or "none"
        looks.append((name, found))
        on_look(name, found)
        return found

    every = frozenset(knob.name for knob in differing)
    whole = look(every)
    none = look(frozenset())
    if (none.label, whole.label) != ("good", "bad"):
        told = [
            f"with all {name} values {one.label} {one.signature or one.detail}".rstrip()
            for name, one in (("good", none), ("bad", whole))
        ]
        raise BadInput(f"bisect knobs: expected all good to pass and all bad to fail, got {', '.join(told)}")

    def broken(turned: frozenset[str]) -> Label:
        found = look(turned)
        other = found.label == "bad" and not part_of(found.signature, whole.signature)
        return "skip" if other else found.label

    def cured(turned_back: frozenset[str]) -> Label:
        return "bad" if look(every - turned_back).label == "good" else "good"

    names = [knob.name for knob in differing]
    return Culprit(
        knobs=tuple(differing),
        breaks=smallest(names, broken),
        cures=smallest(names, cured),
        signature=whole.signature,
        looks=tuple(looks),
    )


def environment_knobs(good: Sequence[str], bad: Sequence[str]) -> tuple[Knob, ...]:
    """Environment variables that differ between two lists of ``NAME=VALUE``; one that is missing on a side is unset.

    Raises BadInput for anything else, or where nothing differs.
    """
    one, other = (_assignments(texts) for texts in (good, bad))
    names = dict.fromkeys((*one, *other))
    found = tuple(Knob(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name))
    if not found:
        raise BadInput("bisect knobs: expected --good NAME=VALUE and --bad NAME=VALUE that differ, got none that do")
    return found


def with_values(environment: Mapping[str, str], values: Mapping[str, str | None]) -> dict[str, str]:
    """An environment with these variables set, or unset where the value is None."""
    merged = {**environment, **values}
    return {name: value for name, value in merged.items() if value is not None}


def _assignments(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"bisect knobs: expected NAME=VALUE, got {text!r}")
        found[name] = value
    return found
