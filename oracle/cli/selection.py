"""From the names on the command line to pairs of a case and an implementation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from ...optimized.implementation import Implementation
from ..case import Case
from ..config import names
from ..errors import BadInput, unknown
from ..fleet.worker import Pair
from ..guests import known


def implementations(
    patterns: Sequence[str], operators: Sequence[str] = (), *, but: Sequence[str] = ()
) -> tuple[Implementation, ...]:
    """Those known by name that match any of the patterns and belong to these operators.

    Without a pattern all of them, except those named in ``but``.
    """
    wanted = _matching("implementation", patterns, known.names())
    if not patterns:
        wanted -= set(but)
    of = _matching("operator", operators, sorted({name.partition("/")[0] for name in known.names()}))
    return known.every([name for name in wanted if name.partition("/")[0] in of])


def suite_cases(suite: str, seed: int, geometries: Sequence[str]) -> tuple[Case, ...]:
    """Cases of a suite and the shipped failing cases, each once, in order, of the matching geometries.

    A geometry that is named in full and that the suite leaves out gets the suite's batches of its own.
    """
    from ..suites import fixture_cases
    from ..suites import suite as make

    own = make(suite, seed)
    extra = [name for name in dict.fromkeys(geometries) if name in names() and all(c.geometry != name for c in own)]
    if extra:
        from ..suites import geometry_cases

        own += tuple(case for name in extra for case in geometry_cases(suite, name, seed))
    return among(tuple(dict.fromkeys((*own, *fixture_cases()))), geometries)


def among(cases: Iterable[Case], geometries: Sequence[str]) -> tuple[Case, ...]:
    """The cases of the matching geometries."""
    wanted = _matching("geometry", geometries, names())
    return tuple(case for case in cases if case.geometry in wanted)


def among_all(cases: Iterable[Case], geometries: Sequence[str]) -> tuple[Case, ...]:
    """Cases that were named, each of one of the geometries. Raises BadInput for one that is of none."""
    given = tuple(cases)
    left = [case for case in given if case not in among(given, geometries)]
    if left:
        raise BadInput(
            f"--geometry {' --geometry '.join(geometries)}: the case {left[0].id} is one of {left[0].geometry}; leave "
            "the option out, or name a case of that geometry"
        )
    return given


def named_cases(ids: Iterable[str], *, suggestions: Callable[[], Sequence[Case]]) -> tuple[Case, ...]:
    """The cases of these ids. Raises BadInput with the nearest ids among the suggestions, or the nearest names."""
    return tuple(dict.fromkeys(_named(text, suggestions) for text in ids))


def pair(cases: Iterable[Case], candidates: Sequence[Implementation]) -> list[Pair]:
    """Every case with every implementation of its operator, case by case."""
    pairs = [(case, one.name) for case in cases for one in candidates if one.operator == case.operator]
    if not pairs:
        wanted = sorted({one.operator for one in candidates})
        told = "the chosen operators and implementations have nothing in common"
        if wanted:
            there = ", ".join(_geometries(wanted)) or "no geometry"
            told = f"no case of {', '.join(wanted)} among the chosen; suite quick has those of {there}"
        raise BadInput(
            f"nothing to judge: {told}; attnoracle check --list shows the cases, attnoracle doctor the implementations"
        )
    return pairs


def _geometries(operators: Sequence[str]) -> list[str]:
    """Geometries of the quick suite's cases of these operators."""
    return sorted({case.geometry for case in suite_cases("quick", 0, ()) if case.operator in operators})


def _named(text: str, suggestions: Callable[[], Sequence[Case]]) -> Case:
    try:
        case = Case.parse(text)
    except BadInput as error:
        if str(error).startswith("case field"):
            raise  # it says what the field may be
        near = difflib.get_close_matches(text, [case.id for case in suggestions()], n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else "; attnoracle check --list shows ids"
        raise BadInput(f"{error}{hint}") from None
    operators = {name.partition("/")[0] for name in known.names()}
    if case.operator not in operators:
        raise unknown("operator", case.operator, operators)
    if case.geometry not in names():
        raise unknown("geometry", case.geometry, names())
    return case


def _matching(what: str, patterns: Sequence[str], known: Sequence[str]) -> set[str]:
    """Names that match any of the patterns; each pattern has to match something."""
    if not patterns:
        return set(known)
    found: set[str] = set()
    for pattern in patterns:
        if what == "implementation" and ":" in pattern:
            raise BadInput(
                f"implementation {pattern!r}: a callable of yours is given by --impl {pattern} --operator NAME"
            )
        matches = {name for name in known if fnmatchcase(name, pattern)}
        if not matches:
            raise unknown(what, pattern, known)
        found |= matches
    return found
