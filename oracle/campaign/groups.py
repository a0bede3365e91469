"""The groups that what is covered falls into, of single cases (``classes``) and of sequences (``scene_classes``)."""

from __future__ import annotations

GROUPS = ("lengths", "meets", "batch", "values", "contract", "route", "config", "pairs")

#: One thing that is covered, or two that meet.
Class = str | tuple[str, str]
Classes = dict[str, frozenset[Class]]


def several(count: int) -> str:
    """A count by powers of two: 0, 1, 2, 3-4, 5-8 …"""
    if count <= 2:
        return str(count)
    top = 1 << (count - 1).bit_length()
    return f"{top // 2 + 1}-{top}"
