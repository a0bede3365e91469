"""What a call leaves behind in CUDA is told of that call and of no later one."""

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.calling import call as calling


@pytest.fixture
def left(monkeypatch):
    """Errors that CUDA holds; a launch reads one."""
    held = []

    def launch(device):
        if held:
            raise RuntimeError(held.pop())

    monkeypatch.setattr("attnoracle.oracle.calling.call.settled", launch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return held


def called(function):
    one = Implementation("topk_select/mine", Contract(), lambda facts: None, lambda: function)
    return calling.called(one, torch.device("cuda"), {})


def test_an_error_left_unread_is_charged_to_the_call_that_left_it(left):
    with pytest.raises(calling.Raised, match="invalid device ordinal"):
        called(lambda: left.append("invalid device ordinal") or ())
    assert called(lambda: ()) == ()


def test_a_call_that_raised_leaves_nothing_to_the_next(left):
    def fails():
        left.append("invalid device ordinal")
        raise RuntimeError("TopK failed")

    with pytest.raises(calling.Raised, match="TopK failed"):
        called(fails)
    assert not left
    assert called(lambda: ()) == ()


def test_a_context_that_is_lost_is_told_from_an_error_that_was_read(left, monkeypatch):
    cuda = torch.device("cuda")
    assert calling.usable(cuda)
    left.append("an illegal memory access was encountered")
    assert not calling.usable(cuda)

    def lost(device):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert not calling.usable(cuda)
    assert calling.usable(torch.device("cpu"))
