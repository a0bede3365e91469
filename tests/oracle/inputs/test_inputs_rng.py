"""Counter-based values: the same wherever, whenever and in whatever chunks they are drawn."""

from __future__ import annotations

import pytest
import torch

from attnoracle.oracle.inputs import rng

_MASK = 2**64 - 1


def _mixed(x: int) -> int:
    """SplitMix64's finaliser in unbounded integers."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _expected_bits(stream: int, *place: int) -> int:
    state = stream
    for coordinate in place:
        state = _mixed(state + (coordinate + 1) * 0x9E3779B97F4A7C15)
    return state


def test_bits_are_splitmix_over_the_coordinates() -> None:
    stream = rng.key(7, "q")
    rows, columns = torch.arange(5)[:, None], torch.arange(300)
    got = rng.bits(stream, rows, columns)
    for row, column in ((0, 0), (4, 299), (2, 128)):
        assert int(got[row, column]) & _MASK == _expected_bits(stream, row, column)


def test_normal_is_a_centred_sum_of_four_uniforms() -> None:
    stream = rng.key(1, "z")
    got = rng.normal(stream, torch.arange(50))
    for place in (0, 17, 49):
        bits = _expected_bits(stream, place)
        total = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131070
        assert got[place] == torch.tensor(total, dtype=torch.float32) * (3 / (2**32 - 1)) ** 0.5


def test_normal_has_mean_0_and_variance_1() -> None:
    z = rng.normal(rng.key(3, "z"), torch.arange(200_000)).double()
    # Six standard errors; the excess kurtosis of the sum is -0.3.
    assert abs(float(z.mean())) < 6 / len(z) ** 0.5
    assert abs(float(z.var()) - 1) < 6 * (1.7 / len(z)) ** 0.5
    assert float(z.abs().max()) <= 12**0.5


def test_streams_of_other_names_seeds_and_neighbours_are_uncorrelated() -> None:
    place = torch.arange(20_000)
    z = [rng.normal(rng.key(seed, name), place) for seed, name in ((0, "q"), (1, "q"), (0, "k"))]
    pairs = [(z[0], z[1]), (z[0], z[2]), (z[0][1:], z[0][:-1])]
    for left, right in pairs:
        assert abs(float((left * right).mean())) < 6 / len(place) ** 0.5


@pytest.mark.parametrize("high", [1, 2, 7, 65536, 2**31])
def test_integers_stay_in_range_and_reach_both_halves(high: int) -> None:
    drawn = rng.integers(rng.key(0, "n"), high, torch.arange(1000))
    assert int(drawn.min()) >= 0 and int(drawn.max()) < high
    if high > 1:
        assert 300 < int((drawn * 2 < high).sum()) < 700


def test_integers_below_a_limit_of_their_own() -> None:
    high = torch.tensor([0, 1, 5, 100])
    drawn = rng.integers(rng.key(0, "n"), high, torch.arange(4))
    assert bool((drawn <= (high - 1).clamp(min=0)).all())


def test_uniform_is_a_multiple_of_two_to_the_minus_24() -> None:
    u = rng.uniform(rng.key(0, "u"), torch.arange(1000))
    assert bool(((u * 2**24) % 1 == 0).all()) and float(u.min()) >= 0 and float(u.max()) < 1


def test_permutation_names_every_column_once_in_each_row() -> None:
    order = rng.permutation(rng.key(0, "p"), 100, torch.arange(4))
    assert torch.equal(order.sort(1).values, torch.arange(100).expand(4, -1))
    assert not torch.equal(order[0], order[1])


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_distinct_members_ascend_fill_the_row_and_stop_at_its_length(slots: int) -> None:
    lengths = torch.tensor([0, 1, 7, 8, 9, 63, 64, 65, 5000])
    rows = torch.arange(len(lengths))
    chosen = rng.distinct(rng.key(0, "d"), slots, lengths, rows)
    for row, length in zip(chosen.tolist(), lengths.tolist(), strict=True):
        members = [member for member in row if member >= 0]
        assert len(members) == min(slots, length)
        assert members == sorted(set(members))
        assert all(member < length for member in members)
        assert row[len(members) :] == [-1] * (slots - len(members))


def test_chunks_do_not_change_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> torch.Tensor:
        target = torch.zeros(37, 11)
        rng.fill(target, lambda a, b: rng.normal(rng.key(0, "c"), torch.arange(a, b)[:, None], torch.arange(11)))
        return target

    whole = drawn()
    monkeypatch.setitem(rng._CHUNK, "cpu", 25)
    assert torch.equal(drawn(), whole)


def test_e4m3_saturates_and_keeps_nan() -> None:
    got = rng.cast(torch.tensor([1e6, -1e6, float("nan"), 0.3]), torch.float8_e4m3fn).float()
    assert got[:2].tolist() == [448.0, -448.0]
    assert bool(got[2].isnan()) and float(got[3]) == 0.3125
