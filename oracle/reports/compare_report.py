"""A comparison for people: how often who is off, the cases where they differ, and the largest ratios."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..compare import OUTCOMES, Pair
from .plain import line, plural

#: Cases that are spelt out.
_SHOWN = 8
_SAID = {
    "neither": "neither is off",
    "a": "only A is off",
    "b": "only B is off",
    "both": "both are off",
    "unjudged": "not judged on both sides",
}


def summary(names: Sequence[str], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Counts of outcomes and the largest ratio of each side over the judged cases."""
    seen = Counter(pair.outcome for pair in pairs)
    judged = [pair.ratios for pair in pairs if pair.outcome != "unjudged"]
    worst = [max((side for side in sides if not math.isnan(side)), default=None) for sides in zip(*judged, strict=True)]
    return {
        "a": names[0],
        "b": names[1],
        "cases": len(pairs),
        **{outcome: seen[outcome] for outcome in OUTCOMES},
        "same_failure": sum(pair.same_failure for pair in pairs),
        "worst_ratio": worst or [None, None],
    }


def record(pair: Pair) -> dict[str, Any]:
    """An entry of ``ratios[]``."""
    return {
        "case": pair.case,
        "outcome": pair.outcome,
        "same_failure": pair.same_failure,
        "a": {"status": pair.a["status"], "ratio": pair.ratios[0], "reason": pair.a["reason"]},
        "b": {"status": pair.b["status"], "ratio": pair.ratios[1], "reason": pair.b["reason"]},
    }


def report(console: Console, names: Sequence[str], pairs: Sequence[Pair]) -> None:
    """Print a comparison; differing cases first."""
    told = summary(names, pairs)
    console.print(Text(f"A  {names[0]}\nB  {names[1]}", "bold"), soft_wrap=True)
    for outcome in OUTCOMES:
        if told[outcome]:
            style = "" if outcome in ("neither", "unjudged") else "bold red"
            console.print(Text(f"  {told[outcome]:>4}  {_SAID[outcome]}", style))
    if told["same_failure"]:
        console.print(f"        {told['same_failure']} of them alike, at the same worst element")
    a, b = told["worst_ratio"]
    if a is not None and b is not None:
        console.print(f"  largest error over budget: A {a:.3g}, B {b:.3g}")
    off = [pair for pair in pairs if pair.outcome in ("a", "b", "both")]
    for pair in off[:_SHOWN]:
        console.print()
        console.print(Text(pair.case), soft_wrap=True)
        for name, side in (("A", pair.a), ("B", pair.b)):
            where = next((finding["where"] for finding in side["findings"] if finding["where"]), "")
            text = Text.assemble(f"{name}  {side['status']} {line(side['reason'])}", f"; {where}" if where else "")
            console.print(Padding(text, (0, 0, 0, 2), expand=False))
    if len(off) > _SHOWN:
        console.print(f"\n{plural(len(off) - _SHOWN, 'more case')} where one is off; --json FILE has them all")
