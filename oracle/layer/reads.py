"""The rules of the layer contract about what is read: selections and cached rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...reference.chunks import chunk_elements, cut
from ...reference.layer import STAMPS, BufferRead, CacheRead, SkipDecided, Trace
from .evidence import Evidence, Violation


def topk_computed(evidence: Evidence) -> Iterator[Violation]:
    """Every row that sparse or masked attention reads was selected in this step, by the layer it shares with."""
    source = evidence.source
    name = source.layer if source else "no layer"
    said = f"the indexer of {name} {_did(source)}"
    for read in evidence.events(BufferRead):
        fresh = (read.steps == evidence.step.step) & (read.stamps == STAMPS.index("topk"))
        if source is not None:
            fresh &= read.layers == source.position
        else:
            fresh &= False
        stale = (~fresh).nonzero().flatten()
        if len(stale):
            row = int(stale[0])
            stamp = STAMPS[int(read.stamps[row])]
            whence = f"last written ({stamp}) in step {int(read.steps[row])} by layer {int(read.layers[row])}"
            did = f"{read.reader} of {evidence.trace.layer} reads rows {whence}"
            yield evidence.violation("topk-computed", said, did, stale + read.tokens[0])


def _did(source: Trace | None) -> str:
    if source is None:
        return "did not run"
    for event in source.events:
        if isinstance(event, SkipDecided):
            reasons = "; ".join(event.decision.reasons)
            return f"{'skipped' if event.decision.value else 'scored'} ({reasons})"
    return "decided nothing"


def selection_valid(evidence: Evidence) -> Iterator[Violation]:
    """A fresh row holds min(length, k) distinct positions of its own past; -1 stands only where those run out."""
    _, positions = evidence.owners()
    for read in evidence.events(BufferRead):
        seen = positions[slice(*read.tokens)].to(read.indices.device) + 1
        indices, topk = _held(read.indices), read.indices.shape[1]
        fresh = (read.stamps == STAMPS.index("topk")).to(indices.device)
        said = {
            "minus-one": f"min(length, {topk}) selections are not -1",
            "selection": "selections are positions that the query may see",
            "duplicate": "selections are distinct",
        }
        blocks = [_wrong(indices[rows], seen[rows], topk) for rows in _blocks(indices)]
        for rule, broken in zip(said, map(torch.cat, zip(*blocks, strict=True)), strict=True):
            rows = (broken & fresh).nonzero().flatten()
            if len(rows):
                row = int(rows[0])
                did = f"row {row + read.tokens[0]} of length {int(seen[row])} holds {_spell(read.indices[row])}"
                yield evidence.violation(rule, said[rule], did, rows.cpu() + read.tokens[0])


def _blocks(table: Tensor) -> Iterator[slice]:
    """Rows in pieces that a cache holds; one at least."""
    return cut(slice(0, max(1, len(table))), table.shape[1], chunk_elements(table.device))


def _wrong(indices: Tensor, seen: Tensor, topk: int) -> tuple[Tensor, Tensor, Tensor]:
    """bool [x] each: a row has too few or too many selections, names what it may not see, names something twice."""
    valid = indices >= 0
    return (
        valid.sum(1) != seen.clamp_max(topk),
        ((indices >= seen[:, None]) | (indices < -1)).any(1),
        _repeats(indices, valid),
    )


def _held(indices: Tensor) -> Tensor:
    """Without the columns behind the last in which a row holds anything; the first stays."""
    held = (indices != -1).any(0).nonzero().flatten()
    return indices[:, : int(held[-1]) + 1 if len(held) else 1]


def _repeats(indices: Tensor, valid: Tensor) -> Tensor:
    """bool [s]: some position of a row stands twice; positions are marked, or sorted where they reach far."""
    width = int(indices.max()) + 1 if indices.numel() else 0
    if width <= 4 * indices.shape[1]:
        marked = torch.zeros(len(indices), width + 1, dtype=torch.bool, device=indices.device)
        marked.scatter_(1, torch.where(valid, indices, width).long(), True)
        return marked[:, :width].sum(1) != valid.sum(1)
    ordered = indices.sort(1).values
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)


def _spell(row: Tensor) -> str:
    head: list[int] = row[:6].tolist()
    return f"{head}{' …' if len(row) > 6 else ''} with {int((row == -1).sum())} times -1"


def rows_own(evidence: Evidence) -> Iterator[Violation]:
    """Nothing is read that belongs to another request: neither a selection nor a cached row."""
    owner, positions = evidence.owners()
    for read in evidence.events(BufferRead):
        mine = read.requests.cpu() == owner[slice(*read.tokens)]
        foreign = (~mine & (read.requests.cpu() >= 0)).nonzero().flatten()
        if len(foreign):
            row = int(foreign[0])
            said = f"row {row + read.tokens[0]} belongs to request {int(owner[row + read.tokens[0]])}"
            did = f"{read.reader} reads a selection made for request {int(read.requests[row])}"
            yield evidence.violation("foreign-row", said, did, foreign + read.tokens[0])
    selections = {(read.reader, read.tokens): read.indices for read in evidence.events(BufferRead)}
    for cached in evidence.events(CacheRead):
        if cached.slots.dim() == 2:
            selected = selections.get((cached.reader, cached.tokens))
            yield from _selected_rows(evidence, cached, owner, positions, selected)


def _selected_rows(
    evidence: Evidence, read: CacheRead, owner: Tensor, positions: Tensor, selected: Tensor | None
) -> Iterator[Violation]:
    """Rows [s, k] of a sparse reader: the query's own request, its past, and the position that was selected."""
    device, rows = read.slots.device, slice(*read.tokens)
    named = read.slots >= 0 if selected is None else (read.slots >= 0) | (selected >= 0)
    columns = named.any(0).nonzero().flatten()
    width = int(columns[-1]) + 1 if len(columns) else 0  # nobody reads behind it
    asked = read.slots if selected is None else selected
    tables = [x[:, :width] for x in (read.slots, read.requests, read.positions, asked)]
    own, past = (x[rows].to(device)[:, None] for x in (owner, positions))
    own = evidence.step.writers(own, tables[2])
    blocks = [_strays(*(x[block] for x in (*tables, own, past))) for block in _blocks(tables[0])]
    foreign, future, other = map(torch.cat, zip(*blocks, strict=True))
    checks = [
        (
            "foreign-row",
            foreign,
            "a query reads cache rows of its own request",
            "it reads rows of another or of nobody",
        ),
        ("causal", future, "a query reads its own past", "it reads rows of later tokens"),
    ]
    if selected is not None:
        checks.append(("index-space", other, "the row of the selected position is read", "it reads another row"))
    for rule, broken, said, did in checks:
        bad = broken.nonzero().flatten().cpu()
        if len(bad):
            yield evidence.violation(rule, said, f"{read.reader}: {did}", bad + read.tokens[0])


def _strays(
    slots: Tensor, requests: Tensor, places: Tensor, selected: Tensor, own: Tensor, past: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """bool [x] each: a row reads what belongs to others, what is later, or not what it selected.

    ``past`` [x, 1]; ``own``, who is to have written each position: [x, 1], or [x, k] where a prefix is shared.
    """
    used, mine = slots >= 0, requests == own
    unlike = (selected >= 0) & (selected <= past) & ((places != selected) | ~used) & (mine | ~used)
    return (used & ~mine).any(1), (used & mine & (places > past)).any(1), unlike.any(1)


def gathered_whole(evidence: Evidence) -> Iterator[Violation]:
    """Keys gathered for whole requests are theirs, each exactly once: all for the indexer, the context for MHA."""
    requests = list(zip(evidence.step.ids, evidence.step.batch.requests, strict=True))
    decodes = len(evidence.route.split.value.decodes)
    wanted = {
        "indexer_scores": {number: request.seq_len for number, request in requests},
        "context": {number: request.context_len for number, request in requests[decodes:]},
    }
    for reader, lengths in wanted.items():
        reads = [read for read in evidence.events(CacheRead) if read.reader == reader]
        if not reads and (reader == "indexer_scores" or not evidence.calls("dense_mha", "masked_mha")):
            continue
        # A full graph gathers as many rows as the longest sequence has: those that are no row were not read.
        nothing = torch.empty(0, dtype=torch.int32)
        owners = torch.cat([read.requests[read.slots >= 0].cpu() for read in reads] or [nothing])
        positions = torch.cat([read.positions[read.slots >= 0].cpu() for read in reads] or [nothing])
        due: dict[int, list[Tensor]] = {}
        for number, length in lengths.items():
            places = torch.arange(length)
            writers = evidence.step.writers(torch.tensor(number), places).expand(length)
            for writer in {number, *torch.unique(writers).tolist()}:
                due.setdefault(writer, []).append(places[writers == writer])
        foreign = ~torch.isin(owners, torch.tensor(list(due), dtype=owners.dtype))
        if bool(foreign.any()):
            did = f"{reader} gathers {int(foreign.sum())} rows of others or of nobody"
            yield evidence.violation("foreign-row", "keys of the requests in question are gathered", did)
        for writer, wanted_places in due.items():
            wanted_now = torch.cat(wanted_places).sort().values
            found = positions[owners == writer].sort().values
            if not torch.equal(found.long(), wanted_now):
                said = f"{len(wanted_now)} keys of request {writer} are gathered, each once"
                yield evidence.violation("gather", said, f"{reader} gathers {len(found)}")
