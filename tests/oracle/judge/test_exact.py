"""The exact judge: bit equality, what kind of difference it names, what it leaves to the contract, and its power."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnoracle import reference
from attnoracle.optimized.contract import Contract
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.config import load
from attnoracle.oracle.faults import fault
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.inputs import make
from attnoracle.oracle.judge import exact, layouts
from attnoracle.reference.layouts import encode_e4m3

CONTRACT = Contract(lse_base=None)
QUANTIZE = "quantize:tiny:h1:q1:k9:bf16:{}:contiguous:{}:s1"
GATHER = "gather:tiny:h1:q1,1:k30,12:bf16:{}:contiguous:{}:s1"


def arguments(id_: str) -> dict:
    case = Case.parse(id_)
    return make(case, load(case.geometry)).kwargs()


def judged(id_: str, change, contract: Contract = CONTRACT):
    """The judgement on the reference's answer, changed."""
    a = arguments(id_)
    operator = id_.split(":")[0]
    right = getattr(reference, operator)(**a)
    return layouts.judge_of(operator)(a, change(*right), contract, True)


def message(judgement) -> str:
    (finding, *_) = judgement.findings
    assert finding.check == "exact" and finding.proved
    return finding.message


def test_the_right_answer_has_no_findings_and_power():
    judgement = judged(QUANTIZE.format("randn", "-"), lambda *right: right)
    assert judgement.findings == [] and judgement.survivors == () and judgement.measures["wrong_elements"] == 0


def test_any_nan_is_as_good_as_another_and_a_number_is_not():
    def flip(codes, scales):
        bits = codes.view(torch.uint8)
        return torch.where(bits & 127 == 127, bits ^ 128, bits).view(codes.dtype), scales

    assert judged(QUANTIZE.format("nonfinite", "-"), flip).findings == []

    def number(codes, scales):
        bits = codes.view(torch.uint8)
        return torch.where(bits & 127 == 127, 0x7E, bits).view(codes.dtype), scales

    assert judged(QUANTIZE.format("nonfinite", "-"), number).findings


def _stored(id_: str, change) -> list:
    """Findings on the reference's answer of a writer, its bytes changed."""
    case = Case.parse(id_)
    a, written = (make(case, load(case.geometry)).kwargs() for _ in range(2))
    getattr(reference, case.operator)(**written)
    name = "cache" if case.operator == "write_cache" else "pages"
    return layouts.judge_of(case.operator)(a, (change(written[name], a),), CONTRACT, False).findings


@pytest.mark.parametrize("fmt", ["fp8_ds_mla", "fp8_e4m3"])
def test_any_nan_among_the_bytes_of_a_row_is_as_good_as_another(fmt):
    id_ = f"write_cache:tiny:h1:q9,4:k30,4:fp32:nonfinite:contiguous:{fmt}+page-16+poison-huge:s2"
    codes = 64 if fmt == "fp8_ds_mla" else 80
    tail = codes + 4 if fmt == "fp8_ds_mla" else codes

    def other(cache, a):
        cache = cache.clone()
        head = cache[..., :codes]
        cache[..., :codes] = torch.where(head & 127 == 127, head ^ 128, head)
        rope = cache[..., tail:].contiguous().view(torch.bfloat16)
        bits = torch.where(rope.isnan(), 0x7FFF, rope.view(torch.int16)).to(torch.int16)
        cache[..., tail:] = bits.view(torch.uint8)
        return cache

    def number(cache, a):
        return torch.where(cache & 127 == 127, cache - 1, cache)

    assert _stored(id_, lambda cache, a: cache) == [] and _stored(id_, other) == []
    assert _stored(id_, number)


def test_any_nan_among_the_codes_of_a_page_is_as_good_as_another():
    id_ = "write_index:tiny:h1:q9,4:k30,4:fp32:nonfinite:contiguous:page-16+poison-huge:s2"

    def codes(pages, change):
        pages = pages.clone()
        head = pages[:, : 16 * 32]
        pages[:, : 16 * 32] = torch.where(head & 127 == 127, change(head), head)
        return pages

    assert _stored(id_, lambda pages, a: codes(pages, lambda head: head ^ 128)) == []
    assert _stored(id_, lambda pages, a: codes(pages, lambda head: head - 1))


def test_nan_among_bytes_that_nobody_writes_stays_as_it_is():
    id_ = "write_cache:tiny:h1:q9,4:k30,4:bf16:randn:contiguous:fp8_e4m3+page-16+poison-nan:s2"

    def touched(cache, a):
        cache = cache.clone()
        cache[0, 0] ^= 128  # page 0 belongs to nobody
        return cache

    assert _stored(id_, lambda cache, a: cache) == [] and _stored(id_, touched)


def test_one_wrong_bit_is_found_and_placed():
    def change(codes, scales):
        codes = codes.clone()
        codes.view(torch.uint8)[4, 7] ^= 1
        return codes, scales

    judgement = judged(QUANTIZE.format("randn", "-"), change)
    assert "codes: 1 of 576 elements" in message(judgement)
    assert judgement.findings[0].where == "1 of 576 elements; rows 4; columns 7"
    (worst,) = judgement.worst
    assert (worst.output, worst.index) == ("codes", (4, 7)) and worst.observed != worst.expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("codes-truncated", "each by one step of its format, toward zero, as if truncated"),
        ("code-ties-away-from-zero", "each by one step of its format, up or down"),
        ("codes-written-as-fnuz", "as if codes were those of the FNUZ format"),
        ("codes-read-as-fnuz", "all by the factor 2^-1, as if codes of the FNUZ and the FN format were mixed up"),
        ("quotient-by-reciprocal", "as if values were multiplied by 1 / scale"),
        ("scale-of-a-power-doubled", "as if scales were twice as large"),
        ("scale-not-raised-by-writer", "as if scales were not raised to a power of two"),
        ("scale-floor-on-amax", "as if the floor were 1e-4 on the largest value"),
        ("index-page-written-side-by-side", "as if codes and scale of a token lay side by side"),
        ("index-page-read-side-by-side", "as if codes and scale of a token lay side by side"),
        ("stored-scale-read-by-exponent", "as if stored scales were read by their exponent"),
        ("missing-page-read-as-page-0", "as if a missing page were page 0"),
        ("block-table-of-the-first-request", "as if every request had the pages of the first"),
        ("chunk-start-forgotten", "as if every chunk began at position 0"),
        ("slot-off-by-one", "as if every slot were the next one"),
        ("padding-written-to-the-last-slot", "as if padding were written to the last slot"),
        ("invalid-index-becomes-0", "as if -1 became 0"),
        ("entries-not-compacted", "as if entries were not compacted"),
        ("mask-bits-from-the-top", "as if bits ran from the highest to the lowest"),
    ],
)
def test_a_known_mistake_is_named(name, words):
    from attnoracle.oracle.audit.trial import candidates

    planted = fault(name)
    said = []
    for case in candidates(planted, 0):
        verdict = check(case, planted.implementation())
        said += [finding.message for finding in verdict.findings if verdict.status == "FAIL"]
        if any(words in text for text in said):
            return
        if len(said) > 4:
            break
    pytest.fail(f"expected {words!r} among {said}")


def test_rows_that_moved_are_named():
    judgement = judged(GATHER.format("randn", "fp8_ds_mla"), lambda rows: (torch.cat((rows[2:], rows[:2])),))
    assert message(judgement).endswith("each wrong row holds that of row +2")

    def one(rows):
        rows = rows.clone()
        rows[3] = rows[17]
        return (rows,)

    assert message(judged(GATHER.format("randn", "fp8_ds_mla"), one)).endswith("row 3 holds that of row 17")


def test_a_scale_off_by_a_power_of_two_is_named():
    judgement = judged(GATHER.format("pow2", "fp8_e4m3"), lambda rows: (rows * 4,))
    assert message(judgement).endswith("all by the factor 2^2")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (448 / 240, "all by the factor 1.86667, as if the largest number of the FNUZ format, 240, stood for 448"),
        (0.3, "all by the factor 0.3"),
        (torch.linspace(1.1, 1.2, 4), "by no pattern known here"),
    ],
    ids=["fnuz", "any", "many"],
)
def test_scales_off_by_one_factor_are_named(factor, words):
    id_ = QUANTIZE.format("randn", "fp32-scales").replace("tiny", "deepseek-v3.2")
    assert message(judged(id_, lambda codes, scales: (codes, scales * factor))).endswith(words)


@pytest.mark.parametrize(
    ("places", "words"),
    [((0, 1, 3, 2), "blocks 2,3 hold what belongs to 3,2"), ((0, 1, 2, 0), "blocks 3 hold what belongs to 0")],
    ids=str,
)
def test_places_of_a_row_that_were_exchanged_are_named(places, words):
    id_ = QUANTIZE.format("randn", "fp32-scales").replace("tiny", "deepseek-v3.2")
    assert message(judged(id_, lambda codes, scales: (codes, scales[:, list(places)]))).endswith(words)


def test_an_input_that_tells_nothing_is_weak():
    """Every page is missing: rows of zeros are right, and so is a kernel that reads nothing."""
    case = Case.parse("gather_index:deepseek-v3.2:h1:q1,1:k40,70:bf16:codes:strided:chunk+holes:s0")
    right = find("gather_index/torch")
    verdict = check(case, right)
    assert verdict.status == "WEAK" and "all were zero" in verdict.reason


# Conventions: what one contract declares, another may not do.


def reciprocal(x, *, block, scale_format="pow2", least_amax=0.0, least_scale=0.0):
    _, scales = reference.quantize(
        x, block=block, scale_format=scale_format, least_amax=least_amax, least_scale=least_scale
    )
    tiles = x.float().unflatten(1, (-1, block)) * (1.0 / scales)[..., None]
    return encode_e4m3(tiles).flatten(1).view(torch.float8_e4m3fn), scales


def test_a_declared_reciprocal_is_right_and_an_undeclared_one_wrong():
    a = arguments("quantize:deepseek-v3.2:h1:q1:k9:bf16:edges:contiguous:fp32-scales:s1")
    answer = reciprocal(**a)
    assert layouts.judge_of("quantize")(a, answer, CONTRACT, True).findings
    assert not layouts.judge_of("quantize")(a, answer, replace(CONTRACT, scale_quotient="reciprocal"), True).findings


def test_blocks_with_nan_may_be_left_open():
    def spread(codes, scales):
        return torch.zeros_like(codes.view(torch.uint8)).view(codes.dtype), scales

    a = arguments(QUANTIZE.format("nonfinite", "-"))
    codes, scales = reference.quantize(**a)
    spoilt = ~torch.isfinite(a["x"].float().unflatten(1, (-1, a["block"]))).all(-1)
    bits = torch.where(spoilt.repeat_interleave(a["block"], 1), 0x7F, codes.view(torch.uint8))
    answer = bits.view(codes.dtype), torch.where(spoilt, torch.nan, scales)
    assert layouts.judge_of("quantize")(a, answer, CONTRACT, False).findings
    assert not layouts.judge_of("quantize")(a, answer, replace(CONTRACT, nonfinite="undefined"), False).findings
    free = replace(CONTRACT, nonfinite="undefined")
    assert layouts.judge_of("quantize")(a, spread(codes, scales), free, False).findings


def test_a_reader_of_exponents_is_right_where_it_says_so():
    a = arguments(GATHER.format("randn", "fp8_ds_mla"))
    cut = reference.gather(**{**a, "cache": layouts.scales_cut(a, "cache")})
    assert layouts.judge_of("gather")(a, cut, CONTRACT, False).findings
    assert not layouts.judge_of("gather")(a, cut, replace(CONTRACT, scale_read="ue8m0"), False).findings


def test_rows_without_a_page_may_be_left_open():
    a = arguments(GATHER.format("randn", "fp8_ds_mla+holes+page-1"))
    (rows,) = reference.gather(**a)
    empty = (rows == 0).all(1)
    assert 0 < int(empty.sum()) < len(rows)
    answer = (torch.where(empty[:, None], 7.0, rows).to(rows.dtype),)
    assert layouts.judge_of("gather")(a, answer, CONTRACT, False).findings
    assert not layouts.judge_of("gather")(a, answer, replace(CONTRACT, invalid_index="undefined"), False).findings
    wrong = (torch.where(empty[:, None], 7.0, rows * 2).to(rows.dtype),)
    assert layouts.judge_of("gather")(a, wrong, replace(CONTRACT, invalid_index="undefined"), False).findings


def test_the_order_of_compacted_entries_may_be_left_open():
    a = arguments("convert_indices:tiny:h1:q5:k60:top20:bf16:randn:contiguous:compact+interleaved+page-16:s1")
    physical, counts = reference.convert_indices(**a)
    turned = torch.stack(
        [torch.cat((row[:n].flip(0), row[n:])) for row, n in zip(physical, counts.tolist(), strict=True)]
    )
    free = replace(CONTRACT, compaction="any")
    assert layouts.judge_of("convert_indices")(a, (turned, counts), CONTRACT, False).findings
    assert not layouts.judge_of("convert_indices")(a, (turned, counts), free, False).findings
    other = turned.clone()
    other[0, 0] += 1
    assert layouts.judge_of("convert_indices")(a, (other, counts), free, False).findings


def test_what_lies_behind_a_mask_may_be_left_open():
    a = arguments("build_mask:tiny:h1:q3,2:k40,9:top12:bf16:randn:contiguous:global:s1")
    (mask,) = reference.build_mask(**a)
    dirty = mask.clone()
    dirty[:, 5:] = -1
    free = replace(CONTRACT, mask_rest="undefined")
    assert layouts.judge_of("build_mask")(a, (dirty,), CONTRACT, False).findings
    assert not layouts.judge_of("build_mask")(a, (dirty,), free, False).findings
    dirty[0, 0, -1] = 0
    assert layouts.judge_of("build_mask")(a, (dirty,), free, False).findings, "the start of the keys counts"


def test_steps_of_a_format_are_counted_across_zero_and_powers():
    part = exact.Part("x", torch.tensor([1.0, -1.0]), torch.tensor([1.0 - 2.0**-24, -1.0 + 2.0**-24]), ("i",))
    judgement = exact.judge([part], [], power=False)
    assert judgement.findings[0].message.endswith("toward zero, as if truncated")
