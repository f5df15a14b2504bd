"""An actor traces a batch now and then, until it acts with the model that has learnt from it."""

from __future__ import annotations

import pytest

from actor.client.actor_traces import EVERY_SECONDS, PATIENCE, ActorTraces
from common.data import NO_MODEL, ModelVersion
from tests.clocks import Clock
from tests.collector import collecting

FIRST, SECOND = ModelVersion(1, 10), ModelVersion(1, 20)


def test_a_batch_is_traced_from_its_steps_to_the_model_that_has_learnt_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting(monkeypatch) as collector:
        clock = Clock()
        traces = ActorTraces(clock=clock)
        clock.now += 1
        parent = traces.hand_over(64, FIRST)
        clock.now += 2
        traces.note_sent(parent, 5)
        traces.hear(4, FIRST, "")
        clock.now += 4
        traces.hear(5, SECOND, "")
        clock.now += 1
        traces.hear(5, SECOND, parent)
        clock.now += 7
        assert not traces.hand_over(64, FIRST)
        assert traces.hand_over(64, SECOND)
        trace = collector.wait_for("act", "wait in the spool", "send", "fetch")
    seconds = {name: round((span.ended - span.began) / 1e9) for name, span in trace.items()}
    assert {name: seconds[name] for name in ("wait in the spool", "send", "fetch")} == {
        "wait in the spool": 2,
        "send": 4,
        "fetch": 8,
    }


def test_a_batch_that_is_sent_twice_was_in_the_spool_until_it_was_first_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch) as collector:
        clock = Clock()
        traces = ActorTraces(clock=clock)
        parent = traces.hand_over(64, FIRST)
        for seq in (5, 1):  # Between the two the actor has joined as a new incarnation.
            clock.now += 3
            traces.note_sent(parent, seq)
        clock.now += 1
        traces.hear(1, FIRST, "")
        trace = collector.wait_for("wait in the spool", "send")
    assert round((trace["wait in the spool"].ended - trace["wait in the spool"].began) / 1e9) == 3
    assert round((trace["send"].ended - trace["send"].began) / 1e9) == 1


def test_one_batch_at_a_time_is_traced_and_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(monkeypatch):
        clock = Clock()
        traces = ActorTraces(clock=clock)
        assert traces.hand_over(64, FIRST)
        clock.now += 2 * EVERY_SECONDS
        assert not traces.hand_over(64, FIRST)
        clock.now += PATIENCE
        assert traces.hand_over(64, FIRST)


def test_without_a_collector_no_batch_is_traced() -> None:
    traces = ActorTraces()
    assert not traces.hand_over(64, NO_MODEL)
    traces.hear(1, FIRST, "")
