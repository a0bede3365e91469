"""Hypotheses about the layout operators: the judge's readings, other rules of scales, other places, rows that moved.

Sites vary one step of the simulated kernel: what a scale is raised to, which tile's scale is read, which slot, page or
byte is meant. Where the answer itself says what happened (rows that hold what belongs to others, bytes of a row that
moved, places that nobody wrote) the parameters are read off it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.simulated.layouts import LAYOUT_SITES, largest
from .exact import task
from .hypothesis import Hypothesis
from .observation import Observation
from .stages import LAYOUT_STAGES

#: Its sites hold what was solved for.
SOLVED = "valid count"
SHIFTS = (-3, -2, -1, 1, 2, 3)
Sites = dict[str, Any]
#: (idea, words, sites)
Variant = tuple[str, str, Sites]
_QUANTISERS = ("quantize", "write_cache", "write_index")
_WRITERS = ("write_cache", "write_index")
_READERS = ("gather", "gather_index")


def readings(seen: Observation) -> Iterator[Hypothesis]:
    """The mistakes that the judge of the operator names."""
    right = tuple(seen.expected.exact.values())
    try:
        _, _, known = task(seen.operator, seen.arguments, seen.right_outputs, seen.contract)
    except (RuntimeError, IndexError, ValueError):
        return
    if not right:
        return
    for reading in known:
        words = f"As if {reading.name}."
        yield Hypothesis(
            reading.name, LAYOUT_STAGES[seen.operator], words, lambda answer=reading.answer, **a: answer(), 1
        )


def variants(seen: Observation) -> Iterator[Hypothesis]:
    """One step done otherwise."""
    for idea, words, sites in _variants(seen):
        kernel = simulated(seen.operator, **sites)
        yield Hypothesis(idea, LAYOUT_STAGES[seen.operator], words, kernel, 1, fixed=idea != SOLVED)


def _variants(seen: Observation) -> Iterator[Variant]:
    operator = seen.operator
    if operator in _QUANTISERS:
        yield from _quantised()
    if operator in _WRITERS:
        yield from _slots()
    if operator in (*_WRITERS, *_READERS):
        yield from _pages(seen)
    if operator in ("write_index", "gather_index"):
        yield from _planes()
    if operator in _READERS:
        yield from _read()
    if operator in (*_READERS, "convert_indices"):
        yield from _table()
    if operator == "convert_indices":
        yield from _converted(seen)
    if operator == "build_mask":
        yield from _masks()


def _fields(scale: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A scale [...] whose bits, int32, are changed."""
    return change(scale.contiguous().view(torch.int32)).view(torch.float32)


def _quantised() -> Iterator[Variant]:
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "go down to a power of two": lambda s: _fields(s, lambda b: b & -0x800000),
        "go to the power of two above, powers of two as well": lambda s: _fields(s, lambda b: b + 0x800000 & -0x800000),
        "are not raised": lambda s: s,
        "are raised twice": lambda s: LAYOUT_SITES.raise_scale(s) * 2.0,
    }
    for words, rule in rules.items():
        yield "rule of scales", f"Scales {words}.", {"raise_scale": rule}
    sizes: dict[str, Callable[[Tensor], Tensor]] = {
        "an infinity": lambda x: torch.where(x.isnan(), 0.0, x.abs()).amax(-1),
        "a NaN": lambda x: torch.where(x.isinf(), 0.0, x.abs()).amax(-1),
        "whatever is not finite": lambda x: x.abs().amax(-1),
    }
    for words, size in sizes.items():
        yield "maximum of a block", f"{words[:1].upper()}{words[1:]} counts for the maximum of a block.", {"amax": size}
    for shift in (21, 22, 24, 25):
        yield (
            "exponent byte",
            f"The exponent is the bits from {shift} on, not from 23.",
            {"exponent": lambda scale, n=shift: (scale.contiguous().view(torch.int32) >> n).to(torch.uint8)},
        )
    for shift in SHIFTS:
        yield (
            "exponent byte",
            f"Exponent bytes are off by {shift:+d}.",
            {"exponent": lambda scale, d=shift: ((scale.contiguous().view(torch.int32) >> 23) + d).to(torch.uint8)},
        )
    yield (
        "blocks misread",
        "Every block of a row is its first.",
        {
            "amax": lambda x: largest(x[..., :1, :].expand_as(x)),
            "quotient": lambda x, s: (x[..., :1, :].expand_as(x) if x.dim() > 2 else x) / s,
        },
    )
    for words, change in _TILE_SCALES.items():
        yield "scale of a tile", f"A tile stores the scale {words}.", {"stored": change}


#: Scales [n, tiles] as another tile's, or another number.
_TILE_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "of the first tile": lambda s: s[..., :1].expand_as(s).contiguous(),
    "of the last tile": lambda s: s[..., -1:].expand_as(s).contiguous(),
    "of the next tile": lambda s: s.roll(-1, -1),
    "of the tile before": lambda s: s.roll(1, -1),
    "of the row before": lambda s: s.roll(1, 0),
    "1": torch.ones_like,
    "squared": torch.square,
    "inverted": torch.reciprocal,
    "doubled": lambda s: s * 2.0,
    "halved": lambda s: s * 0.5,
}


def _slots() -> Iterator[Variant]:
    for shift in SHIFTS:
        yield "slot moved", f"Slots are off by {shift:+d}.", {"slots": lambda slots, rows, d=shift: (slots + d) % rows}


def _pages(seen: Observation) -> Iterator[Variant]:
    cache = seen.arguments["cache" if "cache" in seen.arguments else "pages"]
    stride = max(1, cache.stride(0))
    for bits in (31, 32):
        yield (
            "offset that wraps",
            f"Page times stride keeps {bits} bits.",
            {"page": lambda page, blocks, m=(1 << bits) - 1: ((page.long() * stride & m) // stride) % blocks},
        )
    for shift in SHIFTS:
        yield "page moved", f"Pages are off by {shift:+d}.", {"page": lambda page, n, d=shift: (page + d) % n}


def _planes() -> Iterator[Variant]:
    """Where codes and scales of a place begin in a page of the indexer."""
    codes: dict[str, Callable[[Tensor, int, int], Tensor]] = {
        "as if a scale followed each token": lambda place, size, e: place * (e + 4),
        "behind the scales": lambda place, size, e: 4 * size + place * e,
    }
    scales: dict[str, Callable[[Tensor, int, int], Tensor]] = {
        "behind its codes, side by side": lambda place, size, e: place * (e + 4) + e,
        "behind its codes, where the next codes are": lambda place, size, e: (place + 1) * e,
        "before the codes": lambda place, size, e: 4 * place,
        "one byte apart": lambda place, size, e: size * e + place,
        "at the first place": lambda place, size, e: size * e + 0 * place,
    }

    def guarded(at: Callable[[Tensor, int, int], Tensor], width: int) -> Callable[[Tensor, int, int], Tensor]:
        """Inside the page: a stray access of a hypothesis stays in it."""
        return lambda place, size, e: at(place, size, e).clamp(max=size * (e + 4) - (width or e))

    for words, at in codes.items():
        yield "bytes of a page", f"Codes lie {words}.", {"code_at": guarded(at, 0)}
    for words, at in scales.items():
        yield "bytes of a page", f"The scale of a token is taken {words}.", {"scale_at": guarded(at, 4)}


def _read() -> Iterator[Variant]:
    for words, change in _TILE_SCALES.items():
        yield "scale of a tile", f"A tile is multiplied by the scale {words}.", {"scale": change}
    yield "rows not written", "Rows without a page are never written.", {"missing": torch.empty_like}
    for words, found in (
        ("the first token of a request counts to the one before", lambda cu, token: torch.searchsorted(cu[1:], token)),
        ("every token belongs to the first", lambda cu, token: torch.zeros_like(token)),
    ):
        yield "request of a token", f"{words[:1].upper()}{words[1:]}.", {"request": found}


def _table() -> Iterator[Variant]:
    nearest: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], Tensor]]] = {
        "the nearest page": (lambda page, n: page == page, lambda page, n: page.clamp(0, n - 1)),
        "page 0": (lambda page, n: page == page, lambda page, n: torch.where((page < 0) | (page >= n), 0, page)),
        "the page modulo the cache": (lambda page, n: page == page, lambda page, n: page % n),
    }
    for words, (held, page) in nearest.items():
        yield "missing page", f"A page outside the cache is {words}.", {"held": held, "page": page}
    for shift in SHIFTS:
        yield (
            "position moved",
            f"Positions are off by {shift:+d}.",
            {"position": lambda offset, start, d=shift: (offset + start + d).clamp(min=0)},
        )
    yield "start of a chunk", "Every chunk begins at position 0.", {"position": lambda offset, start: offset}
    yield (
        "row of the block table",
        "All requests use the first row of the block table.",
        {"entry": lambda table, request, column: table[torch.zeros_like(request), column]},
    )


def _converted(seen: Observation) -> Iterator[Variant]:
    counts = seen.answer.get("counts")
    if counts is not None and counts.numel():
        most = int(counts.max())
        yield "valid count", f"The count stops at {most}.", {"count": lambda valid: valid.sum(1).clamp(max=most)}
    for shift in (-1, 1):
        yield "valid count", f"The count is off by {shift:+d}.", {"count": lambda valid, d=shift: valid.sum(1) + d}
        yield (
            "rows of a page",
            f"Rows are off by {shift:+d}.",
            {"row_number": lambda page, rows, place, d=shift: page * rows + place + d},
        )
    for value in (0, -2, 2**31 - 1):
        yield "invalid entry", f"Invalid entries become {value}.", {"invalid": value}


def _masks() -> Iterator[Variant]:
    yield (
        "position before a chunk",
        "Positions before a chunk set its first bit.",
        {"local": lambda positions, start: (positions - start).clamp(min=0)},
    )
    yield (
        "position before a chunk",
        "Positions are taken modulo the chunk.",
        {"in_span": lambda local, length: local < length},
    )
    yield "bits of a word", "Bits run from the highest to the lowest.", {"bit": lambda bit: 31 - (bit & 31)}
    yield "bits of a word", "Bits run from the highest to the lowest in each byte.", {"bit": lambda bit: bit & 31 ^ 7}
    for shift in (-1, 1):
        yield "bits of a word", f"Positions are off by {shift:+d}.", {"local": lambda p, start, d=shift: p - start + d}
