"""An axis made up of labels, and what it was asked."""

from __future__ import annotations

import pytest

from attnoracle.oracle.bisect.look import Look


class Line:
    name = "points"

    def __init__(self, labels, signatures=None):
        self.labels, self.signatures = labels, signatures or {}
        self.points = [f"p{n}" for n in range(len(labels))]
        self.asked = []

    def look(self, point, log):
        self.asked.append(point)
        label = self.labels[int(point[1:])]
        label = label(len(self.asked)) if callable(label) else label
        sign = self.signatures.get(point, "FAIL element out") if label == "bad" else ""
        return Look(label, sign, detail="no compiler" if label == "skip" else "")

    def command(self, point):
        return f"show {point}"


@pytest.fixture
def line():
    return Line
