"""Pages of a cache: which page each token of a request lies in, block tables, and slots of new tokens.

Pages of all requests are shuffled over the cache; page 0 and the last one belong to nobody, so that a sentinel read as
page 0 is seen. With ``packed`` they lie in order and fill the cache. Entries of a block table that no position reaches
are -1, far outside the cache, or another request's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..case import Case
from . import rng
from .batch import names_of
from .site import Site

PAGE_SIZES = {"page-1": 1, "page-16": 16}
PAGE_SIZE = 64
#: Pages that belong to nobody, page 0 and the last among them.
SPARE = 3


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of one case."""

    size: int
    """Tokens a page."""
    blocks: int
    first: int
    """Pages in front of those in use that nobody touches."""
    starts: Tensor
    """int64 [b]: first position of each request that the call is about."""
    table: Tensor
    """int64 [b, most pages]."""
    held: Tensor
    """bool [b, most pages]: whether the entry names a page of the request."""

    def slots(self, request: Tensor, position: Tensor) -> Tensor:
        """page * size + place, int64; -1 for negative positions and those whose page is not held."""
        column = position.div(self.size, rounding_mode="floor")
        inside = (position >= 0) & (column < self.table.shape[1])
        if not self.table.shape[1]:
            return torch.full_like(column, -1)
        column = torch.where(inside, column, 0)
        inside &= self.held[request, column]
        return torch.where(inside, self.table[request, column] * self.size + position % self.size, -1)


def page_size(case: Case) -> int:
    return next((PAGE_SIZES[option] for option in case.options if option in PAGE_SIZES), PAGE_SIZE)


def first_of_each(slots: Tensor) -> Tensor:
    """Places in ``slots`` [m] at which a slot stands for the first time: requests may share a page."""
    order = torch.argsort(slots, stable=True)
    ordered = slots[order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new].sort().values


def starts_of(site: Site, size: int) -> Tensor:
    """int64 [b]: 0, or with ``chunk`` a position of up to two pages and a bit, with ``late`` eight pages or more into
    the request; seldom on the edge of a page."""
    requests = torch.tensor(names_of(site.case), device=site.device)
    if "late" in site.case.options:
        return 8 * size + rng.integers(rng.key(site.case.seed, "starts"), 32 * size, requests)
    if "chunk" not in site.case.options:
        return torch.zeros_like(requests)
    return rng.integers(rng.key(site.case.seed, "starts"), 2 * size + 3, requests)


def pages_of(site: Site, row_bytes: int = 0) -> Pages:
    """The pages of ``starts + k_lens`` positions a request; ``row_bytes`` as a token has, for ``hugerows``."""
    case, device = site.case, site.device
    size = page_size(case)
    starts = starts_of(site, size)
    lengths = torch.tensor(case.k_lens, device=device)
    counts = torch.where(lengths > 0, -((-(starts + lengths)) // size), 0)
    most, total = int(counts.max()), int(counts.sum())
    first = 2**31 // (size * row_bytes) + 1 if "hugerows" in case.options else 0
    if "packed" in case.options:
        blocks, order = first + max(1, total), torch.arange(total, device=device) + first
    else:
        blocks = first + total + SPARE
        order = rng.permutation(rng.key(case.seed, "pages"), total + SPARE - 2, device=device)[:total] + 1 + first
    column = torch.arange(most, device=device)
    held = column < counts[:, None]
    number = (torch.cumsum(counts, 0) - counts)[:, None] + column
    own = order[number.clamp(max=max(0, total - 1))] if total else torch.zeros_like(number)
    if "shared" in case.options and most:
        own[:, 0] = torch.where(held[:, 0] & held[0, 0], own[0, 0], own[:, 0])
    request = torch.tensor(names_of(case), device=device)[:, None]
    outside = torch.tensor([-1, blocks, -(2**31), 2**31 - 1], device=device)
    stray = outside[rng.integers(rng.key(case.seed, "stray"), 4, request, column)]
    other = own[rng.integers(rng.key(case.seed, "other"), max(1, len(counts)), request, column), column]
    unused = torch.where(rng.integers(rng.key(case.seed, "unused"), 2, request, column) == 0, stray, other)
    if "holes" in case.options:
        hole = held & (rng.integers(rng.key(case.seed, "holes"), 3, request, column) == 0)
        own, held = torch.where(hole, stray, own), held & ~hole
        return Pages(size, blocks, first, starts, torch.where(held | hole, own, unused), held)
    return Pages(size, blocks, first, starts, torch.where(held, own, unused), held)


def new_slots(site: Site, pages: Pages) -> Tensor:
    """Slots int64 [s] of the new tokens, the last of each request's keys; distinct but for those that are ignored."""
    case, q = site.case, site.batch.q
    position = q.position + q.length - q.queries
    slots = pages.slots(q.request, torch.where(position >= 0, position + pages.starts[q.request], -1))
    drawn = rng.integers(rng.key(case.seed, "ignored"), 4, q.name, q.position)
    if "padding" in case.options:
        slots = torch.where(drawn == 0, -1, slots)
    if "reversed" in case.options:
        slots, drawn = slots.flip(0), drawn.flip(0)
    if "outside" in case.options:
        rows = pages.blocks * pages.size
        table = torch.tensor([rows, rows + 5, -rows, 2**40 + 1], device=slots.device)
        slots = torch.where(drawn == 1, table[rng.integers(rng.key(case.seed, "beyond"), 4, q.name, q.position)], slots)
    return slots
