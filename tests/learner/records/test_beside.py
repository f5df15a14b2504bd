from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping

import pytest

from common.errors import PluginError
from learner.records import beside
from learner.records.beside import BesideRecorder, close_all
from tests.conftest import PATIENCE


class Tracker:
    """A recorder whose service does not answer while ``hangs``; it notes the threads that call it."""

    def __init__(self) -> None:
        self.threads = {threading.get_ident()}
        self.answers, self.asked = threading.Event(), threading.Event()
        self.steps: list[int] = []
        self.when_closed: Callable[[], None] = lambda: None
        self.is_closed = False

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        self.threads.add(threading.get_ident())
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        if "fails" in record:
            raise ValueError("a name that the service does not like")
        if "exits" in record:
            sys.exit("the service does not know this key")
        self.steps.append(opt_steps)

    def flush(self) -> None:
        self.threads.add(threading.get_ident())

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.is_closed = True
        self.when_closed()


def begin(most_waiting: int = 10) -> tuple[BesideRecorder, Tracker]:
    made: list[Tracker] = []

    def build() -> Tracker:
        made.append(Tracker())
        return made[0]

    return BesideRecorder("mine:Tracker", build, most_waiting=most_waiting), made[0]


def test_a_recorder_lives_in_one_thread_beside_the_trainer() -> None:
    """Some clients, such as sqlite3's, refuse to be used in another thread than the one that made them."""
    recorder, tracker = begin()
    tracker.answers.set()
    recorder.write(1, {"loss": 1.0})
    recorder.close()
    assert (tracker.steps, tracker.is_closed) == ([1], True)
    assert len(tracker.threads) == 1
    assert threading.get_ident() not in tracker.threads


def test_training_goes_on_beside_a_service_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    recorder, tracker = begin(most_waiting=2)
    recorder.write(1, {})
    assert tracker.asked.wait(PATIENCE)
    for step in range(2, 7):
        recorder.write(step, {})
    tracker.answers.set()
    recorder.close()
    assert tracker.steps == [1, 2, 3], "one was under way, two waited, three were left out"
    said = [record.getMessage() for record in caplog.records if "behind" in record.getMessage()]
    assert said == ["mine:Tracker is behind: 2 records wait for it; training goes on"]


def test_an_error_of_a_recorder_costs_one_record(caplog: pytest.LogCaptureFixture) -> None:
    recorder, tracker = begin()
    tracker.answers.set()
    recorder.write(1, {"fails": 1.0})
    recorder.write(2, {})
    recorder.close()
    assert tracker.steps == [2]
    assert "without the record of opt step 1: ValueError('a name that the service does not like')" in caplog.text


def test_a_recorder_that_calls_exit_costs_one_record_too(caplog: pytest.LogCaptureFixture) -> None:
    recorder, tracker = begin()
    tracker.answers.set()
    recorder.write(1, {"exits": 1.0})
    recorder.write(2, {"loss": 1.0})
    recorder.close()
    assert (tracker.steps, tracker.is_closed) == ([2], True)
    (message,) = caplog.messages
    assert message.startswith("mine:Tracker: training goes on without the record of opt step 1: SystemExit(")


def test_of_many_errors_of_a_recorder_the_log_names_the_first(caplog: pytest.LogCaptureFixture) -> None:
    recorder, tracker = begin()
    tracker.answers.set()
    for opt_steps in range(1, 5):
        recorder.write(opt_steps, {"fails": 1.0})
    recorder.close()
    assert [record.getMessage().partition(": V")[0] for record in caplog.records if record.levelname == "ERROR"] == [
        "mine:Tracker: training goes on without the record of opt step 1"
    ]


def test_the_end_of_a_run_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "CLOSE_SECONDS", 0.1)
    recorder, tracker = begin()
    recorder.write(1, {})
    recorder.write(2, {})
    assert tracker.asked.wait(PATIENCE)
    recorder.close()
    assert "mine:Tracker did not end in time: about 2 records are missing in it" in caplog.text
    tracker.answers.set()


@pytest.mark.parametrize("order", [1, -1])
def test_recorders_are_closed_at_the_same_time(order: int, caplog: pytest.LogCaptureFixture) -> None:
    (hanging, tracker), (other, its_tracker) = begin(most_waiting=1), begin()
    its_tracker.answers.set()
    its_tracker.when_closed = tracker.answers.set  # The first one answers only once the other is closed.
    hanging.write(1, {})
    assert tracker.asked.wait(PATIENCE)
    hanging.write(2, {})
    hanging.write(3, {})
    close_all([hanging, other][::order])
    assert (tracker.steps, tracker.is_closed, its_tracker.is_closed) == ([1, 2], True, True), "one was left out"
    assert "did not end" not in caplog.text


def test_a_recorder_that_cannot_be_built_says_why() -> None:
    def build() -> Tracker:
        raise PluginError("no such server")

    with pytest.raises(PluginError, match="no such server"):
        BesideRecorder("mine:Tracker", build)
