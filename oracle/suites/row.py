"""One line of a suite's table, and the cases that lines become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..case import LAYOUTS, Case


@dataclass(frozen=True, slots=True)
class Row:
    """One batch of one operator, for any geometry; ``heads=0`` takes what the table says for the operator."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    kind: str = "randn"
    options: tuple[str, ...] = ()
    topk: int = 0
    heads: int = 0
    dtype: str = "bf16"

    def case(self, operator: str, geometry: str, heads: int, seed: int, layout: str = "contiguous") -> Case:
        """The row on a geometry; ``heads`` where the row names none."""
        return Case(
            operator=operator,
            geometry=geometry,
            heads=self.heads or heads,
            q_lens=self.q,
            k_lens=self.k,
            topk=self.topk,
            dtype=self.dtype,
            kind=self.kind,
            layout=layout,
            options=tuple(sorted(self.options)),
            seed=seed,
        )


def cases(geometry: str, operator: str, rows: Sequence[Row], heads: int, seed: int) -> Iterator[Case]:
    """A table as cases: layouts in turn, and a seed each, so that no two draw the same values."""
    for place, row in enumerate(rows):
        yield row.case(operator, geometry, heads, seed + place, LAYOUTS[place % len(LAYOUTS)])


def ragged(*pairs: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query and key lengths of requests given as pairs."""
    return tuple(q for q, _ in pairs), tuple(k for _, k in pairs)
