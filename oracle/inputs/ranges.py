"""What drawn cases are made of, by operator: for Hypothesis (``oracle/strategies.py``) and for campaigns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .options import EXCLUSIVE, OPTIONS
from .patterns import INDEX_PATTERNS, MASK_PATTERNS

#: Lengths around the tiles of 16, 32, 64 and 128 that kernels work in, and the smallest ones.
EDGES = (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129)
#: Top-k around the same tiles.
TOPKS = (1, 2, 15, 16, 17, 33, 63, 64, 65, 100)
HEADS = (1, 2, 3, 5, 8, 16)
#: Operators that need a top-k.
SELECTING = ("sparse_mqa", "topk_select", "masked_mha", "convert_indices", "build_mask")
#: Options about the bytes of a quantised cache.
QUANTISED = ("ds-mla", "pages", "pow2-scales", "wide-scales", "zero-tiles")
#: Needs over 4 GiB of device memory.
_TOO_LARGE = "hugerows"
_DTYPES: dict[str, tuple[str, ...]] = {
    "indexer_scores": ("bf16", "fp16", "fp32", "e4m3"),
    "paged_indexer_scores": ("e4m3",),
    "topk_select": ("bf16",),
}
_PATTERNS = {
    "masked_mha": tuple(MASK_PATTERNS),
    **dict.fromkeys(("sparse_mqa", "convert_indices", "build_mask"), tuple(INDEX_PATTERNS)),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of which a case takes at most ``most``."""

    names: tuple[str, ...]
    most: int


def dtypes(operator: str) -> tuple[str, ...]:
    """Dtypes that a case of this operator may have, whatever its options."""
    return _DTYPES.get(operator, ("bf16", "fp16", "fp32"))


def choices(operator: str) -> tuple[Choice, ...]:
    """At most one pattern, at most one poison, any two of the others."""
    known = OPTIONS[operator]
    patterns = tuple(name for name in _PATTERNS.get(operator, ()) if name in known)
    poisons = tuple(name for name in known if name.startswith("poison-"))
    free = tuple(name for name in known if name not in (*patterns, *poisons, _TOO_LARGE))
    # NaN where only a weight of 0 reaches it is more than these kernels promise; see ``inputs/dense.py``.
    if operator in ("dense_mha", "masked_mha"):
        poisons = tuple(name for name in poisons if name != "poison-nan")
    return Choice(patterns, 1), Choice(poisons, 1), Choice(free, 2)


def compatible(names: Iterable[str]) -> tuple[str, ...]:
    """The names, sorted, without those that an earlier one excludes."""
    kept: list[str] = []
    for name in names:
        rivals = {rival for group in EXCLUSIVE if name in group for rival in group}
        if not rivals & set(kept):
            kept.append(name)
    return tuple(sorted(kept))


def settled(operator: str, options: Sequence[str], dtype: str) -> tuple[tuple[str, ...], str]:
    """Options and dtype that go together: the bytes of a quantised cache are those of the format that has them all."""
    if operator == "sparse_mqa" and set(options) & set(QUANTISED):
        return tuple(sorted({*options, "ds-mla"})), "bf16"
    return tuple(options), dtype
