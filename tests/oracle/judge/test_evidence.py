"""What is gathered chunk by chunk: the largest value with its place, and the axes that were hit."""

import math

import torch

from attnoracle.oracle.judge.evidence import Peak, Places, Rows


def test_a_peak_keeps_the_largest_of_all_chunks_and_what_stood_beside_it():
    peak = Peak()
    peak.update(torch.tensor([[1.0, 5.0], [2.0, 3.0]]), torch.tensor([[10, 11], [12, 13]]))
    peak.update(torch.tensor([4.0, 0.0]), torch.tensor([20, 21]))
    assert (peak.number(), peak.entries()[0]) == (5.0, 11)
    peak.update(torch.tensor([0.0, 7.0]), torch.tensor([30, 31]))
    assert (peak.number(), peak.entries()[0]) == (7.0, 31)


def test_the_first_of_equal_peaks_stays():
    peak = Peak()
    for place in (1, 2):
        peak.update(torch.tensor([3.0]), torch.tensor([place]))
    assert peak.entries() == [1.0]


def test_an_empty_chunk_and_no_chunk_leave_no_peak():
    peak = Peak()
    peak.update(torch.empty(0), torch.empty(0))
    assert not peak.values and peak.number() == 0.0


def test_nan_is_the_largest():
    peak = Peak()
    peak.update(torch.tensor([1.0, math.nan, 2.0]))
    assert math.isnan(peak.number())


def test_places_are_gathered_over_row_chunks():
    places = Places.of((4, 2, 3), torch.device("cpu"))
    assert not places.any()
    hit = torch.zeros(2, 2, 3, dtype=torch.bool)
    hit[1, 0, 2] = True
    places.add(slice(0, 2), hit)
    places.add(slice(2, 4), hit)
    assert places.any() and int(places.count) == 2 and places.size == 24
    assert [axis.nonzero().flatten().tolist() for axis in places.axes] == [[1, 3], [0], [2]]


def test_rows_follow_the_tokens():
    rows = Rows()
    rows.add(torch.tensor([[1.0, 2.0]]))
    rows.add(torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    assert rows.all().tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_a_peak_holds_no_chunk_alive():
    """Indexing with a scalar would keep a view of the whole tensor: 15 GiB on a production case."""
    peak = Peak()
    values = torch.rand(1000)
    peak.update(values, values)
    assert peak.values[0].untyped_storage().nbytes() <= 16
    assert peak.beside[0][0].untyped_storage().nbytes() <= 16
