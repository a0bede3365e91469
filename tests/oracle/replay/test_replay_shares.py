"""An incident shared among processes is the incident played by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from attnoracle.oracle.replay import shares
from attnoracle.oracle.replay.incident import Incident, load_incident
from attnoracle.oracle.replay.operators import injected
from attnoracle.oracle.replay.replay import Replay
from attnoracle.oracle.replay.shares import Share, play_shares


@pytest.fixture(scope="module")
def incident() -> Incident:
    """With the companion that takes least."""
    one = load_incident("pr-52512")
    return replace(one, companions=one.companions[:1])


def test_every_step_is_in_one_share(incident: Incident) -> None:
    faulty, stale, *cures = incident.variants
    found = shares.shares(incident.variants, (97, 129))
    assert found == [
        Share((stale,), (97, 129), True),
        Share((faulty, *cures), (97,), False),
        Share((faulty, *cures), (129,), False),
        Share((faulty,), (), True),
    ]
    assert shares.shares([stale], (97,)) == [Share((stale,), (97,), True)]
    assert shares.shares(cures, (97,)) == [Share(tuple(cures), (97,), False)]


def test_steps_come_in_the_order_of_one_process(incident: Incident, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for the processes here, and end in the opposite order."""

    def executor(workers: int, context: Any, **options: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, **options)

    plain = shares.shares
    monkeypatch.setattr(shares, "ProcessPoolExecutor", executor)
    monkeypatch.setattr(shares, "limit_threads", lambda count: None)
    monkeypatch.setattr(shares, "shares", lambda *chosen: plain(*chosen)[::-1])
    chosen = [incident.variant("faulty"), incident.variant("mha-branch")]
    found = list(play_shares(incident, "reference", "cpu", chosen, (97, 129), 2))
    assert [(one.variant, one.name) for one in found][:3] == [
        ("faulty", "97"),
        ("faulty", "129"),
        ("faulty", "one decode token"),
    ]
    assert found == list(Replay(incident, injected("reference", "cpu")).run(chosen, (97, 129)))
