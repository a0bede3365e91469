"""The exact lengths at which rules change their mind, computed from the rules and not guessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...reference.routing import Deployment, Rules, TableRow, decode_threshold, workspace_guard


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The last length on the near side of every change, sorted: a test probes each of them and one token more."""

    query: tuple[int, ...]
    seq: tuple[int, ...]

    def probes(self, most: int) -> tuple[int, ...]:
        """Both sides of every boundary of either kind, within 1 to ``most``."""
        near = {*self.query, *self.seq}
        return tuple(sorted({each for last in near for each in (last, last + 1) if 1 <= each <= most}))


def table_row(rules: Rules, deployment: Deployment) -> TableRow | None:
    """The row of the policy table that a deployment reads."""
    backend = rules.table_backend(deployment.backend)
    dims = deployment.qk_head_dim, deployment.v_head_dim
    return rules.tables.get((*dims, backend, deployment.tensor_parallel))


def boundaries(rules: Rules, deployment: Deployment, prefills: int = 1) -> Boundaries:
    """Threshold, top-k, every interval of the table row, and the limit of the mask workspace for so many prefills."""
    threshold = decode_threshold(rules, deployment).value
    return edges(table_row(rules, deployment), threshold, topk=deployment.index_topk, limit=pure_limit(rules, prefills))


def edges(row: TableRow | None, threshold: int | None, *, topk: int, limit: int | None) -> Boundaries:
    """The boundaries of one table row under a decode threshold, a top-k and a limit of pure prompts.

    A limit beyond every interval changes nothing and is no boundary.
    """
    intervals = () if row is None else (*row.pure, *(row.context or ()))
    felt = limit if limit is not None and limit < max((longest for longest, _ in intervals), default=0) else None
    query = {threshold, felt} | {shortest - 1 for _, shortest in intervals}
    return Boundaries(
        tuple(sorted(each for each in query if each is not None and each > 0)),
        tuple(sorted({topk, *(longest for longest, _ in intervals)})),
    )


def pure_limit(rules: Rules, prefills: int) -> int | None:
    """Longest prompt, in tokens, whose mask the guard lets through for so many prefills without context.

    None: the guard never says no. 0: it always does.
    """
    workspace = rules.mask_workspace
    if workspace is None:
        return 0
    if not workspace.guarded:
        return None
    # The mask of one query has at least one bit a key, so no longer one fits.
    return last_true(lambda length: workspace_guard(rules, prefills, length).value, 1, 8 * workspace.max_bytes)


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number in [low, high] for which a condition holds that never holds again; ``low - 1`` if none does."""
    low -= 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
