"""What the rest of the chain leaves of one interval of a policy table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...reference.routing import Interval, Rules, TableKey, TableRow, interval_fault, workspace_guard
from .boundaries import last_true
from .grammar import length_text

#: ``any``: the row has no list for cached context, so the interval decides with and without.
Which = Literal["pure", "context", "any"]


def group_name(key: TableKey) -> str:
    """A table row in findings, such as ``256/256 FLASHINFER_MLA_SPARSE TP8``."""
    qk, value, backend, parallel = key
    return f"{qk}/{value} {backend} TP{parallel}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One interval of a table row; ``low``: the first sequence length that reaches it in the scan."""

    key: TableKey
    which: Which
    interval: Interval
    low: int

    @property
    def group(self) -> str:
        return group_name(self.key)

    @property
    def row(self) -> str:
        """The name of the entry in findings, such as ``256/256 FLASHINFER_MLA_SPARSE TP8 context 56K:40K``."""
        return f"{self.group} {self.label}"

    @property
    def label(self) -> str:
        longest, shortest = (length_text(each).upper() for each in self.interval)
        return f"{self.which} {longest}:{shortest}"

    @property
    def fault(self) -> str | None:
        """What the entry contradicts: the intervals before it, or itself."""
        before = ((self.low - 1, 0),) if self.low > 1 else ()
        return interval_fault((*before, self.interval))

    def sequences(self, topk: int) -> tuple[int, int]:
        """Sequence lengths that the table gives to masked MHA: above the dense limit, long enough for the query."""
        longest, shortest = self.interval
        return max(self.low, topk + 1, shortest + (self.which == "context")), longest


@dataclass(frozen=True, slots=True)
class Reach:
    """Query lengths of an entry that the table wants (``wanted``) and that the guard lets through (``alive``).

    None: there are none. Nothing is wanted of an entry that another one, or dense MHA, decides before it.
    """

    wanted: tuple[int, int] | None
    alive: tuple[int, int] | None


def entries(key: TableKey, row: TableRow) -> Iterator[Entry]:
    """The intervals of a row in the order they are scanned."""
    lists: list[tuple[Which, tuple[Interval, ...]]] = [("any" if row.context is None else "pure", row.pure)]
    if row.context is not None:
        lists.append(("context", row.context))
    for which, intervals in lists:
        low = 1
        for interval in intervals:
            yield Entry(key, which, interval, low)
            low = max(low, interval[0] + 1)


def reach(rules: Rules, entry: Entry, prefills: int, *, topk: int, chunk: int) -> Reach:
    """What is left of an entry for so many prefills of equal length.

    ``chunk``: rows of the context workspace, the most context that one mask covers. The guard is asked with the least
    context that a query can have in this entry; what it asks for then grows with the query, tile by tile. Where context
    outweighs the query (in no shipped version) it dips within the last tile: a query less than 256 below the end of
    ``alive`` may not fit.
    """
    low, longest = entry.sequences(topk)
    after = int(entry.which == "context")
    first = low if entry.which == "pure" else max(1, entry.interval[1])
    last = longest - after
    if low > longest or first > last:
        return Reach(None, None)

    def fits(query: int) -> bool:
        seq = query if entry.which == "pure" else max(low, query + after)
        return workspace_guard(rules, prefills, query, min(seq - query, chunk)).value

    limit = last_true(fits, first, last)
    return Reach((first, last), (first, limit) if limit >= first else None)


def holes(row: list[Entry], topk: int) -> Iterator[tuple[int, int]]:
    """Sequence lengths between dense MHA and the end of a list at which no query, however long, is masked."""
    covered = topk
    for entry in row:
        low, longest = entry.sequences(topk)
        if low > longest:
            continue
        if low > covered + 1:
            yield covered + 1, low - 1
        covered = max(covered, longest)
