"""Random batches, rich in what changes a route: lengths at an edge, uneven decodes, chunks, full workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ...reference.routing import (
    Batch,
    Deployment,
    MaskWorkspace,
    Mode,
    Request,
    Rules,
    classify,
    context_rows,
    decode_threshold,
    mask_shape,
)

#: Where a table, a tile, a word of a mask, top-k, a threshold or the guard changes its mind.
EDGES = (
    1, 2, 4, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 6144, 8192, 10240, 12288, 16384, 20480, 24576, 28672, 32768,
    34816, 36864, 40960, 49152, 57344, 65536, 73728, 81920, 114688,
)  # fmt: skip


def draw_batch(
    random: Random, rules: Rules, deployment: Deployment, edges: Sequence[int] = EDGES, *, flags: bool = True
) -> Batch:
    """An arranged batch: of any lengths, of decodes, of contexts in several chunks, or at the edge of the masks.

    ``edges``: lengths to stay near. ``flags``: short queries may be said to be the end of a prompt, or drafts.
    """
    threshold = decode_threshold(rules, deployment).value
    sort = random.random()
    if sort < 0.18:
        requests = _decodes(random, threshold, edges)
    elif sort < 0.26:
        requests = _chunked(random, context_rows(rules, deployment).value, edges)
    elif sort < 0.34:
        requests = _apart(random, threshold, edges)
    elif sort < 0.42 and rules.mask_workspace is not None:
        rows = context_rows(rules, deployment).value
        requests = _at_the_guard(random, rules.mask_workspace, rows)
    else:
        requests = [_request(random, threshold, edges) for _ in range(random.choice((1, 1, 1, 2, 3, 6)))]
    if flags:
        requests = [_flagged(random, one, threshold) for one in requests]
    return Batch(tuple(requests)).arranged(threshold)[0]


def draw_padding(random: Random, rules: Rules, deployment: Deployment, batch: Batch, mode: Mode) -> int:
    """Requests of no token behind a batch; engines pad so only what a full graph of decodes takes."""
    some = random.choice((0, 1, 3))
    return some if mode == "FULL" and not classify(rules, deployment, batch)[1].value.prefills else 0


def _decodes(random: Random, threshold: int, edges: Sequence[int]) -> list[Request]:
    """Decodes, alike or of several lengths; one may be the end of a prompt, or longer than a decode."""
    longest = random.choice((1, 1, 2, 4, threshold, threshold))
    alike = random.random() < 0.5
    found = []
    for _ in range(random.choice((1, 2, 3, 6))):
        query = longest if alike else random.randint(1, longest)
        found.append(Request(query, random.choice((0, 1, 1, 1)) * _length(random, edges)))
    if random.random() < 0.2:
        found.append(Request(threshold + random.choice((0, 1)), _length(random, edges)))
    return found


def _apart(random: Random, threshold: int, edges: Sequence[int]) -> list[Request]:
    """The longest query and the longest sequence in different requests, both at an edge; others beside them."""
    seq, short = random.choice(edges), threshold + random.choice((1, 1, 100))
    found = [Request(random.choice(edges), 0), Request(short, max(0, seq - short - random.choice((0, 0, 1, 64, 500))))]
    others = random.choice((0, 1, 1, 2, 6))
    found += [Request(short, random.choice((0, 64))) for _ in range(others)]
    return random.sample(found, len(found))


def _chunked(random: Random, rows: int, edges: Sequence[int]) -> list[Request]:
    """Several contexts, short and long in turn, that fill a workspace of ``rows`` rows more than once."""
    sizes = (64, rows // 3, rows // 2, rows - 64, rows, rows + 64, 2 * rows + 1)
    near = [random.choice(sizes) + random.choice((-1, 0, 0, 1)) for _ in range(random.choice((2, 3, 4)))]
    return [Request(max(1, _length(random, edges) // 4), max(0, random.choice((size, size, 0)))) for size in near]


def _at_the_guard(random: Random, workspace: MaskWorkspace, rows: int) -> list[Request]:
    """Requests whose masks fill the workspace, to a tile; a context in chunks may need more than the queries do."""
    count = random.choice((1, 2, 4, 5, 8))
    keys = random.choice((4096, rows // 2, rows - 64, rows))
    words = mask_shape(workspace, count, 1, keys)[2]
    query = max(1, min(keys, workspace.max_bytes // (4 * count * words)) + random.choice((-256, -1, 0, 1, 256)))
    short, long = Request(query, random.choice((0, 64, rows // 4))), Request(query, keys + random.choice((0, 64, rows)))
    return [random.choice((short, long)) if n else random.choice((short, short, long)) for n in range(count)]


def _flagged(random: Random, request: Request, threshold: int) -> Request:
    """What a scheduler may say of a short query: the end of a prompt, or drafts to be verified."""
    if request.query_len > threshold or not request.context_len:
        return request
    return replace(request, prefilling=random.choice((None, None, False, True)))


def _request(random: Random, threshold: int, edges: Sequence[int]) -> Request:
    query = max(1, _length(random, (*edges, threshold)))
    context = random.choice((0, 0, 1)) * _length(random, edges)
    if random.random() < 0.3:  # a whole length at an edge
        context = max(0, _length(random, edges) - query)
    return Request(query, context)


def _length(random: Random, edges: Sequence[int]) -> int:
    near = random.choice(edges) + random.choice((-1, 0, 0, 0, 1))
    return near if random.random() < 0.7 else int(2 ** (random.random() * 17))
