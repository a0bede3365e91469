"""The shortest rule that names a set of places: residues, ranges, tails, distances from the diagonal."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Tile and page sizes whose edges are looked for.
MODULI = (2, 4, 8, 16, 32, 64, 128, 256)
#: A rule fits if it names the set up to this share of its members.
FITS = 0.97


def fits(rule: Tensor, wanted: Tensor) -> bool:
    """Whether two sets of places agree nearly everywhere (Jaccard index)."""
    union = int((rule | wanted).sum())
    return union > 0 and int((rule & wanted).sum()) >= FITS * union


def residue(places: Tensor, wanted: Tensor, among: Tensor) -> tuple[int, int] | None:
    """(r, m) such that ``wanted`` is what of ``among`` is r mod m; places int64, masks bool, all of one shape."""
    found = places[wanted]
    if found.numel() < 2:
        return None
    for modulus in MODULI:
        r = int(found[0]) % modulus
        rule = (places % modulus == r) & among
        if fits(rule, wanted) and not fits(among, wanted):
            return r, modulus
    return None


def span(places: Tensor, wanted: Tensor, among: Tensor) -> tuple[int, int] | None:
    """(first, last) such that ``wanted`` is what of ``among`` lies between them."""
    found = places[wanted]
    if not found.numel():
        return None
    first, last = int(found.min()), int(found.max())
    return (first, last) if fits((places >= first) & (places <= last) & among, wanted) else None


def described(places: Tensor, wanted: Tensor, among: Tensor, length: Tensor | int, what: str) -> Iterator[str]:
    """Rules in words for ``wanted`` among the places 0, 1, … ``length`` - 1 (a length for each place, or for all)."""
    size = torch.as_tensor(length).expand(places.shape)
    if fits(among, wanted):
        yield f"all {what}s"
        return
    found = span(places, wanted, among)
    if found and found[0] == 0:
        yield f"the first {found[1] + 1} {what}s" if found[1] else f"the first {what}"
    tail = span(size - 1 - places, wanted, among)
    if tail and tail[0] == 0:
        yield f"the last {tail[1] + 1} {what}s" if tail[1] else f"the last {what}"
    for modulus in MODULI[3:]:
        partial = (places >= size // modulus * modulus) & among
        if bool(partial.any()) and fits(partial, wanted):
            yield f"{what}s of the last partial tile of {modulus}"
            break
    period = residue(places, wanted, among)
    if period:
        yield f"{what}s = {period[0]} mod {period[1]}"
    if found and found[0]:
        yield f"{what}s {found[0]} to {found[1]}" if found[0] < found[1] else f"{what} {found[0]}"
