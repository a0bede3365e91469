"""Every format and byte layout pinned on codes, scales, rows and pages that were made by hand."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from attnoracle import reference
from attnoracle.reference import layouts

TENTH = struct.unpack("<f", struct.pack("<f", 0.1))[0]


def e4m3(sign: int, exponent: int, fraction: int) -> float:
    """The value of the fields of a code, as the format's table has it."""
    size = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return math.nan if (exponent, fraction) == (15, 7) else (-size if sign else size)


def test_every_code_has_the_value_of_its_fields():
    codes = torch.arange(256).to(torch.uint8)
    expected = torch.tensor([e4m3(code >> 7, code >> 3 & 15, code & 7) for code in range(256)])
    assert torch.equal(layouts.decode_e4m3(codes).nan_to_num(1e9), expected.nan_to_num(1e9))
    assert layouts.decode_e4m3(torch.tensor([0x38, 0x40, 0x7E, 0x80], dtype=torch.uint8)).tolist() == [1, 2, 448, 0]


def test_decoding_undoes_encoding_and_torch_reads_the_same():
    codes = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)
    values = layouts.decode_e4m3(codes)
    assert torch.equal(layouts.encode_e4m3(values), codes)
    assert torch.equal(codes.view(torch.float8_e4m3fn).float(), values)
    assert torch.equal(layouts.decode_e4m3(codes.view(torch.float8_e4m3fn)), values)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1.0625, 0x38),  # half way between 1 and 1.125: the even code
        (1.1875, 0x3A),  # half way between 1.125 and 1.25: the even code
        (1.0625 + 2.0**-23, 0x39),
        (2.0**-10, 0x00),  # half the smallest value
        (2.0**-10 * (1 + 2.0**-23), 0x01),
        (3 * 2.0**-10, 0x02),
        (448.0, 0x7E),
        (464.0, 0x7E),
        (1e30, 0x7E),
        (math.inf, 0x7E),
        (-math.inf, 0xFE),
        (-0.0, 0x80),
    ],
)
def test_a_value_gets_the_nearest_code(value, code):
    assert layouts.encode_e4m3(torch.tensor([value])).tolist() == [code]


def test_nan_keeps_a_nan_code():
    assert layouts.encode_e4m3(torch.tensor([math.nan])).item() & 127 == 127


@pytest.mark.parametrize(
    ("amax", "rule", "scale"),
    [
        (336.0, {"scale_format": "fp32", "least_amax": 1e-4}, 0.75),
        (336.0, {"least_amax": 1e-4}, 1.0),
        (448.0, {"least_amax": 1e-4}, 1.0),
        (math.nextafter(448.0, 449.0) + 2.0**-15, {"least_amax": 1e-4}, 2.0),  # the next fp32 above 448
        (448.0 - 2.0**-15, {"least_amax": 1e-4}, 1.0),
        (224.0, {"least_amax": 1e-4}, 0.5),
        (0.0, {"least_scale": 1e-4}, 2.0**-13),  # fp8_ds_mla
        (0.0, {"least_amax": 1e-4}, 2.0**-22),  # indexer keys
        (0.0, {"least_amax": 1e-10}, 2.0**-42),  # fused_indexer_q_rope_quant
        (0.0, {"scale_format": "fp32", "least_scale": 1e-4}, struct.unpack("<f", struct.pack("<f", 1e-4))[0]),
        (1e-5, {"least_amax": 1e-10}, 2.0**-25),
    ],
)
def test_a_scale_follows_from_the_largest_value_and_the_floor(amax, rule, scale):
    block = torch.tensor([0.0, -amax, amax / 2], dtype=torch.float32)
    assert layouts.block_scales(block, layouts.ScaleRule(**rule)).item() == scale


def test_powers_of_two_are_found_in_the_bits():
    """At every exponent: the power itself, its neighbours and the largest number below the next one."""
    powers = torch.tensor([2.0**k for k in range(-126, 127)], dtype=torch.float64)
    for factor, expected in ((1.0, 1.0), (1 + 2.0**-23, 2.0), (2 - 2.0**-23, 2.0), (1.5, 2.0)):
        found = layouts.power_of_two_at_least((powers * factor).float())
        assert torch.equal(found.double(), powers * expected)


def test_exponent_bytes():
    scales = torch.tensor([2.0**k for k in (-126, -22, -1, 0, 1, 127)])
    stored = layouts.encode_ue8m0(scales)
    assert stored.tolist() == [1, 105, 126, 127, 128, 254]
    assert torch.equal(layouts.decode_ue8m0(stored), scales)
    assert layouts.decode_ue8m0(torch.tensor([0], dtype=torch.uint8)).double().item() == 2.0**-127
    assert layouts.decode_ue8m0(torch.tensor([255], dtype=torch.uint8)).isnan().all()
    with pytest.raises(ValueError, match="expected powers of two"):
        layouts.encode_ue8m0(torch.tensor([0.75]))


def test_special_values_spoil_no_neighbour():
    x = torch.tensor([[1.0, math.nan, math.inf, -math.inf, -3.5, 0.0, 0.0, 0.0]])
    codes, scales = reference.quantize(x, block=4, least_amax=1e-4)
    assert scales.tolist() == [[2.0**-8, 2.0**-7]]
    values = layouts.decode_e4m3(codes)
    assert values[0, 0] == 256 and values[0, 1].isnan() and values[0, 2:5].tolist() == [448, -448, -448]


#: c = 8 codes and one scale of 0.1, two rotated dims.
ROW = bytes([0x38, 0x40, 0xB8, 0x00, 0x7E, 0x01, 0x30, 0x80]) + struct.pack("<f", 0.1) + bytes([0x80, 0x3F, 0x20, 0xC0])
ROW_VALUES = [1.0, 2.0, -1.0, 0.0, 448.0, 2.0**-9, 0.5, -0.0]


def test_a_row_of_fp8_ds_mla_made_by_hand():
    rows = torch.tensor([list(ROW)], dtype=torch.uint8)
    latent = (torch.tensor(ROW_VALUES) * torch.tensor(TENTH)).tolist()
    assert layouts.decode_mla_rows(rows, latent=8).tolist() == [[*latent, 1.0, -2.5]]


def test_a_row_of_deepseek_has_656_bytes_in_this_order():
    row = layouts.MlaRow(512, 64)
    assert (row.tiles, row.tile, row.latent, row.rope_at, row.width) == (4, 128, 512, 528, 656)
    latent = torch.zeros(1, 512)
    latent[0, ::128] = torch.tensor([448.0, 224.0, 1.0, 0.0])
    written = layouts.encode_mla_rows(latent, torch.full((1, 64), -2.5), layouts.ScaleRule(least_scale=1e-4))
    assert written.shape == (1, 656)
    assert bytes(written[0, 512:528].tolist()) == struct.pack("<4f", 1.0, 0.5, 2.0**-8, 2.0**-13)
    assert written[0, [0, 128, 256, 384]].tolist() == [0x7E, 0x7E, 0x78, 0x00]
    assert written[0, 528:].tolist() == [0x20, 0xC0] * 64


def test_a_page_of_the_indexer_made_by_hand():
    """Two tokens of two codes: codes of both, then the scales of both."""
    page = bytes([0x38, 0x40, 0xB8, 0x7E]) + struct.pack("<ff", 0.3, 4.0)
    codes, scales = layouts.decode_index_pages(torch.tensor([list(page)], dtype=torch.uint8), e=2)
    assert codes.tolist() == [[[0x38, 0x40], [0xB8, 0x7E]]]
    assert scales[0].tolist() == list(struct.unpack("<ff", struct.pack("<ff", 0.3, 4.0)))


def test_a_written_page_of_the_indexer_is_the_one_made_by_hand():
    pages = torch.full((2, 2 * 6), 0xAA, dtype=torch.uint8)
    reference.write_index(torch.tensor([[448.0, -224.0], [0.0, 1.0]]), torch.tensor([3, -1]), pages)
    assert pages[0].tolist() == [0xAA] * 12
    assert bytes(pages[1].tolist()) == bytes([0xAA, 0xAA, 0x7E, 0xF6, *[0xAA] * 4]) + struct.pack("<f", 1.0)


def test_a_plain_cache_made_by_hand():
    codes = torch.tensor([[0x38, 0xC0, 0x7E]], dtype=torch.uint8)
    assert layouts.decode_plain_rows(codes, k_scale=0.75).tolist() == [[0.75, -1.5, 336.0]]
    assert layouts.encode_plain_rows(torch.tensor([[0.75, -1.5, 1e9]]), k_scale=0.75).tolist() == codes.tolist()


def test_written_rows_lie_where_their_slots_say_and_nothing_else_changes():
    cache = torch.full((3, 2, 3), 7.0, dtype=torch.bfloat16)
    latent, rope = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [9.0, 9.0]]), torch.zeros(4, 1)
    reference.write_cache(latent, rope, torch.tensor([5, -1, 2, 6]), cache, cache_format="model")
    assert cache[2, 1].tolist() == [1, 2, 0] and cache[1, 0].tolist() == [5, 6, 0]
    assert (cache == 7).sum() == 4 * 3


def test_a_chunk_of_context_is_gathered_page_by_page():
    """Request 0 from position 1, request 1 from 2; the third page of request 1 lies outside the cache."""
    cache = torch.arange(8, dtype=torch.float32).view(4, 2, 1)
    table = torch.tensor([[3, 0, 9], [1, 2, 4]], dtype=torch.int32)
    (rows,) = reference.gather(
        cache, table, torch.tensor([1, 2]), torch.tensor([0, 3, 7]), tokens=7, latent=1, rope=0, cache_format="model"
    )
    assert rows[:, 0].tolist() == [7, 0, 1, 4, 5, 0, 0]


def test_positions_become_rows():
    table = torch.tensor([[4, 1, -1], [0, 7, 2]], dtype=torch.int32)
    indices = torch.tensor([[5, -1, 3, 9, 0, 2], [4, 1, 2, -7, 6, 3]], dtype=torch.int32)
    call = {"block_size": 2, "blocks": 6, "page_rows": 3}
    rows, counts = reference.convert_indices(indices, torch.tensor([0, 1], dtype=torch.int32), table, **call)
    assert rows.tolist() == [[-1, -1, 4, -1, 12, 3], [6, 1, -1, -1, -1, -1]]
    assert counts.tolist() == [3, 2]
    rows, counts = reference.convert_indices(
        indices, torch.tensor([0, 5], dtype=torch.int32), table, **call, compact=True
    )
    assert rows.tolist() == [[4, 12, 3, -1, -1, -1], [-1] * 6] and counts.tolist() == [3, 0]


def test_a_mask_has_bit_j_mod_32_of_word_j_over_32():
    indices = torch.tensor([[0, 33, 33, -1], [63, 64, 31, 5]], dtype=torch.int32)
    call = {"cu_q": torch.tensor([0, 2]), "rows": 3, "words": 2}
    (mask,) = reference.build_mask(indices, starts=torch.tensor([0]), lengths=torch.tensor([64]), **call)
    assert mask.tolist() == [[[1, 2], [-(2**31) + 32, -(2**31)], [0, 0]]]
    (mask,) = reference.build_mask(indices, starts=torch.tensor([32]), lengths=torch.tensor([32]), **call)
    assert mask.tolist() == [[[2, 0], [-(2**31), 0], [0, 0]]]
    (mask,) = reference.build_mask(
        indices, starts=torch.tensor([0]), lengths=torch.tensor([32]), key_starts=torch.tensor([77]), **call
    )
    assert mask.tolist() == [[[1, 77], [-(2**31) + 32, 0], [0, 0]]]
