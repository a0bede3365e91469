"""Layout operators and quantised caches: known faults by name, others by an idea whose parameters were read off."""

import pytest
import torch

from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.diagnose import diagnose
from attnoracle.oracle.diagnose.observation import observe
from attnoracle.oracle.diagnose.ranking import rank
from attnoracle.oracle.faults import fault
from attnoracle.oracle.faults.simulated import SIMULATED, simulated
from attnoracle.oracle.faults.simulated.latent import LatentSites
from attnoracle.oracle.faults.simulated.layouts import row_of

QUANTIZE = "quantize:tiny:h1:q1:k9:bf16:randn:contiguous:-:s0"
WRITE = "write_cache:tiny:h1:q5,4:k21,9:bf16:randn:contiguous:fp8_ds_mla+page-16:s0"
WRITE_INDEX = "write_index:tiny:h1:q5,4:k21,9:bf16:randn:contiguous:page-16:s0"
GATHER = "gather:deepseek-v3.2:h1:q1,1:k20,9:bf16:randn:contiguous:fp8_ds_mla+page-16:s0"
GATHER_INDEX = "gather_index:tiny:h1:q1,1:k20,9:bf16:randn:contiguous:page-16:s0"
CONVERT = "convert_indices:tiny:h1:q5,3:k90,33:top24:bf16:randn:contiguous:interleaved+page-16:s0"
MASK = "build_mask:tiny:h1:q5,3:k90,33:top24:bf16:randn:contiguous:-:s0"
PAGED = "paged_indexer_scores:tiny:h4:q2x2:k70,30:e4m3:randn:contiguous:-:s0"
SPARSE = "sparse_mqa:tiny:h2:q3,2:k20,12:top8:bf16:randn:contiguous:ds-mla:s0"


def _rope_late(codes, scales, rope):
    return row_of(codes, scales, rope).roll(4, 1)


#: Answers of the hypotheses that depend on the inputs alone, by case: the next kernel on that case is spared them.
KNOWN = {}


def ranked(case, made):
    return rank(observe(case, made), KNOWN.setdefault(case.id, {}))


#: Case, sites, idea, words. None is in the catalogue.
HELD_OUT = [
    (QUANTIZE, {"raise_scale": lambda s: (s.view(torch.int32) & -0x800000).view(torch.float32)}, "rule of scales",
     "down to a power of two"),
    (QUANTIZE, {"stored": lambda s: s * 2}, "scale of a tile", "doubled"),
    (WRITE, {"row": _rope_late}, "bytes of a row", "hold what belongs at"),
    (WRITE, {"slots": lambda slots, rows: (slots + 2) % rows}, "slot moved", "+2"),
    (WRITE_INDEX, {"code_at": lambda place, size, e: 4 * size + place * e}, "bytes of a page", "behind the scales"),
    (GATHER, {"scale": lambda s: s.roll(1, -1)}, "scale of a tile", "of the tile before"),
    (GATHER, {"position": lambda offset, start: offset + start + 1}, "position moved", "+1"),
    (GATHER_INDEX, {"page": lambda page, n: (page - 1) % n}, "page moved", "-1"),
    (CONVERT, {"count": lambda valid: valid.sum(1).clamp(max=5)}, "valid count", "stops at 5"),
    (CONVERT, {"invalid": -2}, "invalid entry", "-2"),
    (MASK, {"bit": lambda bit: bit & 31 ^ 7}, "bits of a word", "in each byte"),
    (PAGED, {"end": lambda length, m, query: length - m + query + 3}, "end of a query", "2 keys too late"),
    (PAGED, {"queries": lambda q, request: q.flatten(0, 1)[request + torch.arange(2)]}, "rows of queries",
     "1 x request"),
    (SPARSE, {"latent": LatentSites(scale_row=lambda row, n: (row ^ 1) % n)}, "scales of a cache row", "neighbour"),
    (SPARSE, {"latent": LatentSites(value_tiles=lambda codes, scales: codes)}, "tile scale on one side", "Values"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "sites", "idea", "words"), HELD_OUT)
def test_a_fault_that_is_not_in_the_catalogue_is_explained(case, sites, idea, words):
    case = Case.parse(case)
    kernel = simulated(case.operator, **sites)
    made = Implementation(f"{case.operator}/held-out", SIMULATED, lambda facts: None, lambda: kernel)
    best = ranked(case, made)[0]
    names = {one.name: one.words for one in (best.hypothesis, *best.also)}
    assert best.fits and idea in names and words in names[idea], names


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("codes-truncated", QUANTIZE),
        ("row-scales-before-codes", WRITE),
        ("index-page-written-side-by-side", WRITE_INDEX),
        ("valid-count-of-the-row", CONVERT),
        ("mask-bits-from-the-top", MASK),
        ("page-scale-of-first-slot", PAGED),
        ("tile-scale-exponent-only", SPARSE),
    ],
)
def test_a_fault_of_the_catalogue_is_named(name, case):
    best = ranked(Case.parse(case), fault(name).implementation())[0]
    assert name in {best.hypothesis.name, *(other.name for other in best.also)} and best.fits


def test_the_map_has_the_axes_of_the_operator_and_the_stage_is_the_operator():
    found = diagnose(Case.parse(CONVERT), fault("invalid-index-becomes-0").implementation)
    (axes,) = ({axis.name for axis in one.axes} for one in found.maps)
    assert axes == {"queries", "slots"}
    assert found.ranked[0].hypothesis.stage == "index conversion" and "become 0" in found.conclusion


def test_rows_that_nobody_wrote_and_rows_of_others_are_read_off_the_answer():
    kernel = simulated("gather")

    def half(**a):
        (rows,) = kernel(**a)
        out = torch.empty_like(rows)
        out[:15] = rows[:15]
        return (out,)

    def turned(**a):
        return (kernel(**a)[0].roll(-4, 0),)

    for body, idea, words in ((half, "not written", "last 14 tokens"), (turned, "rows moved", "row 0 that of 4")):
        made = Implementation("gather/x", SIMULATED, lambda facts: None, lambda body=body: body)
        best = ranked(Case.parse(GATHER), made)[0].hypothesis
        assert best.name == idea and words in best.words, best


@pytest.mark.parametrize("case", [QUANTIZE, WRITE, GATHER, CONVERT, MASK, PAGED, SPARSE])
def test_a_right_kernel_needs_no_explanation(case):
    case = Case.parse(case)
    kernel = simulated(case.operator)
    made = Implementation(f"{case.operator}/x", SIMULATED, lambda facts: None, lambda: kernel)
    assert ranked(case, made) == []


def test_memory_that_nobody_wrote_is_told_by_two_fills():
    kernel = simulated("convert_indices")

    def unset(**a):
        physical, counts = kernel(**a)
        out = torch.empty_like(physical)
        out[:] = torch.where(physical < 0, out, physical)
        return out, counts

    made = Implementation("convert_indices/x", SIMULATED, lambda facts: None, lambda: unset)
    found = diagnose(Case.parse(CONVERT), lambda: made)
    assert found.marks[0].name == "not written" and "elements of physical" in found.conclusion
