from __future__ import annotations

import logging
from pathlib import Path

import pytest

from learner.ingest.trainer_watch import TrainerWatch
from learner.shared.control import ControlBlock


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def control(tmp_path: Path) -> ControlBlock:
    made = ControlBlock.open(tmp_path, create=True)
    made.start(1, 0)
    return made


def looks(watch: TrainerWatch, clock: Clock, seconds: int) -> float:
    for _ in range(seconds):
        clock.now += 1.0
        watch.look()
    return watch.silent_seconds


def test_a_training_loop_that_stands_still_is_logged_once_and_again_when_it_goes_on(
    control: ControlBlock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    watch = TrainerWatch(control, 10.0, clock)
    control.trainer_beats = 1
    watch.look()
    assert looks(watch, clock, 10) == 10.0
    assert not caplog.records
    assert looks(watch, clock, 30) == 40.0
    control.trainer_beats += 1
    assert looks(watch, clock, 1) == 0.0
    assert [(record.levelname, record.getMessage()[:53]) for record in caplog.records] == [
        ("ERROR", "the trainer has shown no sign of life for 11 s (serve"),
        ("WARNING", "the trainer goes on"),
    ]


@pytest.mark.parametrize(("beats", "stopping"), [(0, 0), (5, 1)])
def test_silence_is_not_logged_before_training_begins_and_after_it_ends(
    control: ControlBlock, beats: int, stopping: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control.trainer_beats, control.stopping = beats, stopping
    clock = Clock()
    assert looks(TrainerWatch(control, 10.0, clock), clock, 60) == 0.0
    assert not caplog.records


def test_without_a_limit_silence_is_measured_and_not_logged(
    control: ControlBlock, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    watch = TrainerWatch(control, None, clock)
    control.trainer_beats = 1
    watch.look()
    assert looks(watch, clock, 3600) == 3600.0
    assert not caplog.records
