"""Our references beside vLLM's own small operators, on generated inputs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor

from ...optimized.implementation import Implementation
from ...reference.build_mask import build_mask
from ...reference.convert_indices import convert_indices
from ..case import Case
from ..check import check
from .agreement import Comparison
from .vllm_operators import VllmOperators

_WIDTH = 128


def compare_operators(engine: VllmOperators, count: int, seed: int) -> Iterator[Comparison]:
    """``count`` cases an operator; a fifth of it where the interpreter runs many programs, and for probes."""
    few = max(1, count // 5)
    as_torch, as_triton = engine.merges()
    yield _merges(as_torch, count, seed)
    yield _merges(as_triton, few, seed)
    yield _merges(as_torch, few, seed, empties=True)
    yield _merges(as_triton, few, seed, empties=True)
    yield _masks(engine, count, seed)
    yield _conversions(engine, count, seed, compact=False)
    yield _conversions(engine, count, seed, compact=True)
    yield _ranks(engine, count, seed)
    yield _unheld(engine, few, seed)


def _merges(implementation: Implementation, count: int, seed: int, *, empties: bool = False) -> Comparison:
    """The verdict of ``check`` on merge cases; ``empties`` are those whose empty side holds NaN in its output."""
    name = implementation.name.partition("/")[2]
    what = "merge with NaN in the output of an empty side" if empties else "merge of two partial results"
    found, random = Comparison(f"{name}{'-empties' if empties else ''}", what, probe=empties), Random(seed)
    for number in range(count):
        queries, heads = random.randint(1, 24), random.choice((1, 2, 4))
        kind = "empties" if empties else random.choice(("randn", "wide"))
        dtype, layout = random.choice(("bf16", "fp16", "fp32")), random.choice(("contiguous", "strided", "offset"))
        case = Case.parse(f"merge_lse:glm-5:h{heads}:q{queries}:k{queries}:{dtype}:{kind}:{layout}:-:s{seed + number}")
        verdict = check(case, implementation)
        found.note(lambda case=case: case.id, "PASS", verdict.status if verdict.status != "WEAK" else "PASS")  # type: ignore[misc]
        if verdict.status not in ("PASS", "WEAK") and found.examples:
            found.examples[-1].setdefault("reason", verdict.reason)
    return found


def _masks(engine: VllmOperators, count: int, seed: int) -> Comparison:
    found, random = Comparison("mask-bits", "bits of a mask, in the words that hold keys"), Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        lengths = [random.randint(1, 5) for _ in range(random.randint(1, 3))]
        keys, topk = random.choice((1, 31, 32, 33, 64, 100, 257)), random.choice((1, 7, 16))
        indices = torch.randint(-1, keys, (sum(lengths), topk), generator=generator, dtype=torch.int32)
        mask = engine.build_mask(indices, lengths, keys)
        words = -(-keys // 32)
        cu = torch.tensor([0, *lengths]).cumsum(0).int()
        starts, spans = torch.zeros(len(lengths), dtype=torch.int32), torch.full((len(lengths),), keys).int()
        (ours,) = build_mask(indices, cu, starts, spans, rows=mask.shape[1], words=words)
        same = torch.equal(ours, mask[..., :words])
        found.note(lambda q=lengths, k=keys, t=topk: {"queries": q, "keys": k, "topk": t}, True, same)  # type: ignore[misc]
    return found


class _Drawn:
    """A paged batch: each request holds pages for its length and no more; unheld entries of the table are -1."""

    def __init__(self, random: Random, generator: torch.Generator, ranks: int = 1, interleave: int = 1) -> None:
        self.block_size = random.choice((4, 16, 64))
        self.page_rows = self.block_size * random.choice((1, 1, 3))
        self.lengths = [random.randint(1, 300) for _ in range(random.randint(1, 3))]
        local = [-(-length // (ranks * interleave)) * interleave for length in self.lengths]
        held = [-(-length // self.block_size) for length in local]
        pages = torch.randperm(2 * sum(held), generator=generator).int().tolist()
        self.blocks = 2 * sum(held)
        rows = [[pages.pop() for _ in range(count)] + [-1] * (max(held) - count) for count in held]
        self.table = torch.tensor(rows, dtype=torch.int32)
        tokens = random.randint(1, 4)
        self.requests = torch.tensor([random.randrange(len(self.lengths)) for _ in range(tokens)], dtype=torch.int32)
        most = torch.tensor(self.lengths)[self.requests.long()]
        drawn = torch.rand(tokens, _WIDTH, generator=generator) * (most[:, None] + 1) - 1
        self.indices = drawn.floor().int().clamp_min(-1)

    def spell(self) -> dict[str, object]:
        return {
            "block_size": self.block_size,
            "page_rows": self.page_rows,
            "lengths": self.lengths,
            "requests": self.requests.tolist(),
        }

    def ours(self, indices: Tensor) -> Tensor:
        rows, _ = convert_indices(
            indices,
            self.requests,
            self.table,
            block_size=self.block_size,
            blocks=self.blocks,
            page_rows=self.page_rows,
        )
        return rows


def _conversions(engine: VllmOperators, count: int, seed: int, *, compact: bool) -> Comparison:
    what = "rows of selected positions" + (", valid ones in front, in any order" if compact else "")
    found, random = Comparison("convert-compact" if compact else "convert", what), Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        drawn = _Drawn(random, generator)
        rows, counts = engine.convert(
            drawn.indices,
            drawn.requests,
            drawn.table,
            block_size=drawn.block_size,
            page_rows=drawn.page_rows,
            compact=compact,
        )
        ours = drawn.ours(drawn.indices)
        same = torch.equal(counts.long(), (ours >= 0).sum(1))
        if compact:
            same &= bool(((rows >= 0) == (torch.arange(_WIDTH) < counts[:, None])).all())
            rows, ours = rows.sort(1).values, ours.sort(1).values
        found.note(drawn.spell, True, same and torch.equal(ours, rows))
    return found


def _ranks(engine: VllmOperators, count: int, seed: int) -> Comparison:
    """Positions that a context-parallel rank keeps, looked up in its own table."""
    found, random = Comparison("convert-ranks", "rows that one of several ranks keeps"), Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ranks, interleave = random.choice((2, 4)), random.choice((1, 2, 16))
        rank, drawn = random.randrange(ranks), _Drawn(random, generator, ranks, interleave)
        rows, _ = engine.convert(
            drawn.indices,
            drawn.requests,
            drawn.table,
            block_size=drawn.block_size,
            page_rows=drawn.page_rows,
            dcp=ranks,
            rank=rank,
            interleave=interleave,
        )
        run = drawn.indices.div(interleave, rounding_mode="floor")
        kept = (drawn.indices >= 0) & (run % ranks == rank)
        local = run.div(ranks, rounding_mode="floor") * interleave + drawn.indices % interleave
        ours = drawn.ours(torch.where(kept, local, -1).int())
        found.note(
            lambda d=drawn, r=ranks, i=interleave: {**d.spell(), "ranks": r, "interleave": i},  # type: ignore[misc]
            True,
            torch.equal(ours, rows),
        )
    return found


def _unheld(engine: VllmOperators, count: int, seed: int) -> Comparison:
    """Positions past the pages of a request, where the table holds -1: ours are -1 again."""
    what = "positions past a request's pages, where the block table holds -1"
    found, random = Comparison("convert-unheld", what, probe=True), Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        drawn = _Drawn(random, generator)
        whole = drawn.table.shape[1] * drawn.block_size
        positions = torch.randint(0, whole, drawn.indices.shape, generator=generator, dtype=torch.int32)
        rows, _ = engine.convert(
            positions, drawn.requests, drawn.table, block_size=drawn.block_size, page_rows=drawn.page_rows
        )
        found.note(drawn.spell, True, torch.equal(drawn.ours(positions), rows))
    return found
