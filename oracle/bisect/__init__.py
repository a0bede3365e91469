"""Bisection: from two ends that differ to the boundary between them, over commits, versions, sizes, knobs or stages.

    ends verified, same failure  ->  search (certain or noisy)  ->  boundary, evidence, two commands

``search`` and ``noisy`` find a boundary on a line, ``delta`` a smallest set of differences; they know nothing of what
is bisected. An axis (``commits``, ``packages``, ``sizes``) says which points there are and looks at one of them. Every
look is a line of a journal, so an interrupted bisection goes on.
"""
