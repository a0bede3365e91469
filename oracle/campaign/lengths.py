"""Lengths of the requests of a batch: anything, or near what kernels treat apart."""

from __future__ import annotations

from random import Random

from ..inputs.ranges import EDGES

#: Sizes of tiles and pages.
TILES = (16, 32, 64, 128)

Lengths = tuple[tuple[int, int], ...]


def uniform(operator: str, topk: int, largest: int, requests: int, rng: Random) -> Lengths:
    """Every length from 0 to ``largest`` as likely as every other."""
    return fitted(operator, [(rng.randint(0, largest), rng.randint(0, largest)) for _ in range(requests)], largest)


def edged(operator: str, topk: int, largest: int, requests: int, rng: Random) -> Lengths:
    """Lengths beside tile edges, and pairs that stand in a relation: q = k, k = top-k, one more, one less."""
    return fitted(operator, [_request(topk, largest, rng) for _ in range(requests)], largest)


def _request(topk: int, largest: int, rng: Random) -> tuple[int, int]:
    k = _length(largest, rng)
    if topk and rng.random() < 0.3:
        k = topk + rng.randint(-1, 1)
    relation = rng.randrange(8)
    if relation == 0:
        q = k
    elif relation == 1:
        q = k + rng.choice((-1, 1))
    elif relation in (2, 3):
        q = 1
    elif relation == 4:
        q = rng.randint(0, 5)
    else:
        q = _length(largest, rng)
    return max(0, min(q, largest)), max(0, min(k, largest))


def _length(largest: int, rng: Random) -> int:
    """Beside a multiple of a tile half the time; otherwise anything, small lengths as often as large ones."""
    way = rng.randrange(4)
    if way == 0:
        return min(largest, rng.choice(EDGES))
    if way == 1:
        tile = rng.choice(TILES)
        return max(0, min(largest, tile * rng.randint(0, max(1, largest // tile)) + rng.randint(-1, 1)))
    if way == 2:
        return min(largest, int(2.0 ** rng.uniform(0.0, max(1, largest).bit_length())) - 1)
    return rng.randint(0, largest)


def fitted(operator: str, pairs: list[tuple[int, int]], largest: int) -> Lengths:
    """What the operator asks of its lengths: equal ones in a merge, as many queries everywhere in paged decoding."""
    if operator == "merge_lse":
        return tuple((k, k) for _, k in pairs)
    if operator == "paged_indexer_scores":
        queries = 1 + pairs[0][0] % 4
        return tuple((queries, k) for _, k in pairs)
    return tuple(pairs)
