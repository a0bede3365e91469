"""The smallest set of differences that turns a good configuration into a bad one: delta debugging.

Source: Zeller & Hildebrandt (2002), *Simplifying and isolating failure-inducing input*, algorithm ddmin. The result is
1-minimal: without any one of its differences the failure is gone, or could not be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .look import Label


def smallest(differences: Sequence[str], look: Callable[[frozenset[str]], Label]) -> tuple[str, ...]:
    """The differences, in their order, that are needed for ``bad``; each set is looked at once.

    The whole set must be bad, which is the caller's to verify. A ``skip`` counts as not bad.
    """
    seen: dict[frozenset[str], bool] = {frozenset(differences): True, frozenset(): False}

    def bad(names: Sequence[str]) -> bool:
        key = frozenset(names)
        if key not in seen:
            seen[key] = look(key) == "bad"
        return seen[key]

    left, parts = list(differences), 2
    while len(left) >= 2:
        size = -(-len(left) // parts)
        chunks = [left[start : start + size] for start in range(0, len(left), size)]
        rests = [[name for name in left if name not in chunk] for chunk in chunks]
        smaller = next((chunk for chunk in chunks if bad(chunk)), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        rest = next((rest for rest in rests if bad(rest)), None) if len(chunks) > 2 else None
        if rest is not None:
            left, parts = rest, max(len(chunks) - 1, 2)
        elif len(chunks) < len(left):
            parts = min(len(left), 2 * len(chunks))
        else:
            break
    return tuple(left)
