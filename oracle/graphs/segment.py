"""What the captured part of a layer leaves for the part that is not captured."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...reference.layer import PreparedQuery, Query, Trace


@dataclass(slots=True, eq=False)
class Segment:
    """What the captured part of a layer leaves: memory of its graph."""

    kv_c: Tensor | None
    k_pe: Tensor | None
    prepared: PreparedQuery
    trace: Trace

    def first(self, count: int) -> PreparedQuery:
        """The first rows of what was prepared."""
        prepared, mqa = self.prepared, self.prepared.mqa
        return PreparedQuery(
            prepared.nope[:count],
            prepared.pe[:count],
            None if prepared.rotated is None else prepared.rotated[:count],
            None if mqa is None else Query(mqa.tensor[:count], mqa.form),
        )


def tensors_of(prepared: PreparedQuery) -> dict[str, Tensor]:
    """What was prepared, by name, but the absorbed query, whose last bit depends on how a product is blocked."""
    found = {"nope": prepared.nope, "pe": prepared.pe, "rotated": prepared.rotated}
    return {name: value for name, value in found.items() if value is not None}
