"""The suites: which cases ``attnoracle check`` runs. Literal tables; a row is one batch, its kind and its options.

Where a new case goes::

    quick.py        an everyday batch of an attention operator, the indexer or top-k; every check pays for it
    layouts.py      a format, page size, floor or sentinel of an operator that moves bytes, for all three suites
    full.py         a kind, head count or dtype that is to meet every tile edge on every geometry
    reach.py        one number (requests, rows, heads, keys, slots) past what kernels are cut for, or a far address
    sizes.py        exactly a size that engines use, or one request, row or token alone; ``reach`` takes it in
    pairs.py        an option or dtype that is to meet every other one once
    production.py   a shape that engines run, for a GPU
    fixtures/cases  a case that once failed, by its id, with the reason as a comment

A case's seed is the suite's seed plus its place in the table, so that no two draw the same values. A new row goes to
the end of its table: before others it would change the seeds, and so the ids, of all behind it.
"""

from .choose import SUITES, fixture_cases, geometry_cases, suite

__all__ = ("SUITES", "fixture_cases", "geometry_cases", "suite")
