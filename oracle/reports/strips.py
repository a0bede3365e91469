"""The errors of a run as strips: one implementation a row, one stroke a verdict, on a logarithmic scale of ratios."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..verdict import Verdict
from .plain import line, plural

#: Powers of ten that the scale spans; what lies beyond, infinite or NaN is drawn at its ends.
_LOW, _HIGH = -4, 6
DECADES = _HIGH - _LOW
#: Strokes are drawn in units of a hundredth of the width, so that equal ones are one.
_HEIGHT = 10


def plot(verdicts: Sequence[Verdict]) -> dict[str, Any] | None:
    """Rows of SVG paths, the line of the budget, and the labels of the scale; None where nothing was compared."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        ratio = verdict.worst_ratio
        if ratio is not None:
            ratios[verdict.implementation][verdict.status].append(ratio)
    if not ratios:
        return None
    rows = [
        {
            "name": line(name),
            "paths": [(status, _strokes(found)) for status, found in ratios[name].items()],
            "words": _words(line(name), [ratio for found in ratios[name].values() for ratio in found]),
        }
        for name in sorted(ratios)
    ]
    labels = [(place(10.0**power), f"{10.0**power:g}") for power in range(_LOW, _HIGH + 1, 2)]
    return {"rows": rows, "budget": f"M{place(1.0):g} -2V{_HEIGHT + 2}", "labels": labels}


def place(ratio: float) -> float:
    """Where a ratio lies, in hundredths of the width."""
    if math.isnan(ratio) or ratio == math.inf:
        return 100.0
    power = math.log10(ratio) if ratio > 0.0 else float(_LOW)
    return round(100.0 * min(1.0, max(0.0, (power - _LOW) / DECADES)), 1)


def _strokes(ratios: Sequence[float]) -> str:
    return "".join(f"M{where:g} 1v8" for where in sorted({place(ratio) for ratio in ratios}))


def _words(name: str, ratios: Sequence[float]) -> str:
    outside = sum(not ratio <= 1.0 for ratio in ratios)
    return f"{name}: {plural(len(ratios), 'verdict')}, {outside} beyond the budget, worst {max(ratios):.3g}"
