"""The route map of a deployment: what runs for every pair of query and sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...reference.routing import Batch, Deployment, Request, Rules
from .behaviour import LETTERS, behave
from .boundaries import boundaries


@dataclass(frozen=True, slots=True)
class RouteMap:
    """Letters by sequence length (rows; None: as long as the query, a pure prefill) and query length (columns)."""

    queries: tuple[int, ...]
    sequences: tuple[int | None, ...]
    rows: tuple[str, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """The letters that occur, in the order of the legend."""
        return tuple(letter for letter in LETTERS if letter != " " and any(letter in row for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "queries": self.queries,
            "sequences": self.sequences,
            "cells": self.rows,
            "legend": {letter: LETTERS[letter] for letter in self.used},
        }


def sweep(rules: Rules, deployment: Deployment, *, prefills: int = 1, columns: int | None = None) -> RouteMap:
    """The map over all boundary lengths, both sides of each, and powers of two between them.

    ``columns``: most query lengths; powers of two give way first, boundaries never.
    """
    most = deployment.max_model_len
    edges = boundaries(rules, deployment, prefills)
    exact = {each for last in edges.query for each in (last, last + 1)}
    # A pure prefill ends where its sequence does, so both kinds of boundary are columns.
    exact |= {each for last in edges.seq for each in (last, last + 1) if _pure_matters(rules, deployment, last)}
    queries = _lengths(exact, most, columns)
    between = set(edges.seq) | {last + 1 for last in edges.seq}
    shortest = min(edges.query)
    sequences: tuple[int | None, ...] = (None, *(each for each in _lengths(between, most, None) if each > shortest))
    rows = tuple("".join(_cell(rules, deployment, query, seq, prefills) for query in queries) for seq in sequences)
    return RouteMap(queries, sequences, rows)


def _pure_matters(rules: Rules, deployment: Deployment, length: int) -> bool:
    before, after = (behave(rules, deployment, Batch.of([(query, 0)])).letter for query in (max(length, 1), length + 1))
    return before != after


def _lengths(exact: set[int], most: int, columns: int | None) -> tuple[int, ...]:
    kept = {each for each in exact if 1 <= each <= most} | {1}
    powers = [1 << bits for bits in range(6, most.bit_length()) if 1 << bits <= most]
    for power in reversed(powers):
        if columns is None or len(kept) < columns:
            kept.add(power)
    return tuple(sorted(kept))


def _cell(rules: Rules, deployment: Deployment, query: int, seq: int | None, prefills: int) -> str:
    if seq is not None and seq <= query:
        return " "
    request = Request(query) if seq is None else Request.of_sequence(query, seq)
    return behave(rules, deployment, Batch((request,) * prefills)).letter
