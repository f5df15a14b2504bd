from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from common.data import Array, Items
from common.errors import StarvedError
from common.interfaces import ReplayBuffer
from learner.loop.intake import Intake
from learner.replay.limiter import RatioLimiter
from learner.replay.ratio import LiveRatio
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock


class Counts(ReplayBuffer):
    """A replay buffer that only counts."""

    inserted = 0
    sampled = 0

    def __len__(self) -> int:
        return self.inserted

    def batch(self, size: int) -> Items:
        raise AssertionError("not drawn from")

    def update_priority(self, index: Array, td_error: Array) -> None:
        raise AssertionError("nothing was drawn")


def make(
    directory: Path,
    starvation: float | None = None,
    release_held: Callable[[], None] = lambda: None,
    *,
    ratio: float | None = None,
    error_buffer: float | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Intake, Counts, ControlBlock, Bell]:
    counts, control, bell = Counts(), ControlBlock.open(directory, create=True), Bell.create()
    control.trainer_waits_for = 1  # As a process that was killed has left it.
    now = iter(range(1000))
    intake = Intake(
        buffer=counts,
        ratio=LiveRatio(control, RatioLimiter(ratio, warmup=10, error_buffer=error_buffer)),
        control=control,
        bell=bell,
        release_held=release_held,
        starvation_seconds=starvation,
        clock=clock or (lambda: float(next(now))),
    )
    return intake, counts, control, bell


def test_waiting_ends_when_ingest_rings_and_says_so_while_it_lasts(tmp_path: Path) -> None:
    intake, counts, control, bell = make(tmp_path)
    heard = threading.Event()

    def ingest() -> None:
        while not control.trainer_waits_for:
            heard.wait(0.001)
        counts.inserted = 10
        bell.ring()

    thread = threading.Thread(target=ingest)
    thread.start()
    while not intake.may_sample():
        intake.wait()
    thread.join()
    assert not control.trainer_waits_for
    assert control.trainer_wait_seconds > 0


def test_actors_that_are_held_back_are_released_once_ingest_can_see_that_the_trainer_waits(tmp_path: Path) -> None:
    seen = list[int]()
    intake, counts, control, _ = make(tmp_path, release_held=lambda: seen.append(control.trainer_waits_for))
    assert not control.trainer_waits_for
    counts.inserted = 7
    assert not intake.may_sample()
    counts.inserted = 9
    intake.wait()
    assert seen == [8], "one more step than it has looked at"
    assert not control.trainer_waits_for


def test_a_trainer_in_step_with_its_actors_tells_how_many_steps_its_next_batch_needs(tmp_path: Path) -> None:
    told = list[int]()
    intake, counts, control, _ = make(tmp_path, release_held=lambda: told.append(control.batch_steps), ratio=1.0)
    counts.inserted = 110
    for drawn in (0, 64, 96):
        counts.sampled = drawn
        intake.note_step(1)
        assert intake.may_sample()
        intake.wait()
    assert told[1::2] == [0, 64, 32], "by its last draw"
    counts.sampled = 200
    intake.note_step(2)
    assert not intake.may_sample()
    intake.wait()
    assert told[-1] == 0, "the ratio holds the trainer back, so it needs no batch of rows"


@pytest.mark.parametrize(("ratio", "error_buffer"), [(None, None), (1.0, 128.0)])
def test_a_trainer_whose_actors_may_be_ahead_tells_them_no_batch(
    tmp_path: Path, ratio: float | None, error_buffer: float | None
) -> None:
    intake, counts, control, _ = make(tmp_path, ratio=ratio, error_buffer=error_buffer)
    counts.inserted, counts.sampled = 110, 64
    intake.note_step(1)
    assert intake.may_sample()
    intake.wait()
    assert control.batch_steps == 0


def test_steps_that_came_before_the_wait_end_it_without_a_ring(tmp_path: Path) -> None:
    intake, counts, _, bell = make(tmp_path)
    counts.inserted = 10
    assert intake.may_sample()
    assert not bell.wait(0)


def test_steps_that_came_after_the_decision_and_before_the_wait_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake, counts, _, bell = make(tmp_path)
    counts.inserted = 9
    assert not intake.may_sample()
    counts.inserted = 10  # Ingest rings for nobody, as the trainer does not wait yet.
    monkeypatch.setattr(bell, "wait", lambda _: pytest.fail("the trainer sleeps"))
    intake.wait()
    assert intake.may_sample()


def test_the_time_in_which_the_trainer_itself_was_stopped_does_not_count_as_a_wait_for_steps(tmp_path: Path) -> None:
    now = 0.0
    intake, *_ = make(tmp_path, starvation=3.0, clock=lambda: now)
    intake.wait()
    now = 100.0
    intake.wait()
    now = 103.0
    intake.wait()
    now = 104.0
    with pytest.raises(StarvedError, match="no step has arrived for 4 s"):
        intake.wait()


def test_a_trainer_nobody_sends_steps_to_gives_up_with_the_reason(tmp_path: Path) -> None:
    intake, counts, _, _ = make(tmp_path, starvation=3.0)
    intake.wait()
    counts.inserted = 1
    intake.wait()
    intake.wait()
    with pytest.raises(StarvedError, match=r"no step has arrived for 6 s .* 0 actors are online"):
        intake.wait()
