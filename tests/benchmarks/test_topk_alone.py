"""The comparison with bare torch.topk: that it sees a wrong selection, on torch's own kernel."""

from __future__ import annotations

import pytest
import torch

from attnoracle.benchmarks import topk_alone
from attnoracle.oracle.errors import OracleError


def test_a_selection_is_exact_or_not():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert topk_alone.exact(scores, torch.tensor([[2, 1]])) and topk_alone.exact(scores, torch.tensor([[3, 1, 2]]))
    assert not topk_alone.exact(scores, torch.tensor([[2, 2]])) and not topk_alone.exact(scores, torch.tensor([[2, 3]]))


@pytest.mark.parametrize("kind", topk_alone.KINDS)
def test_every_kind_is_measured(kind):
    found = topk_alone.measure(kind, rows=3, columns=64, k=8, backend="sort", on="cpu")
    assert found["ratio"] == found["torch_seconds"] / found["seconds"] > 0


def test_a_wrong_selection_is_not_timed(monkeypatch):
    monkeypatch.setattr(topk_alone, "exact", lambda scores, indices: False)
    with pytest.raises(OracleError, match="not of the largest"):
        topk_alone.measure("randn", rows=3, columns=64, k=8, backend="sort", on="cpu")
