"""One life of a run: its time goes on from the earlier lives, and its end says whether another life follows."""

from __future__ import annotations

import pytest

from common.errors import AddressError, RankLostError
from learner.loop.life import Life
from learner.storage.training_state import BIRTH, Moment


def test_the_seconds_of_a_run_go_on_from_its_earlier_lives_and_stop_at_the_end() -> None:
    now = [100.0]
    life = Life(Moment(5, 0, 40.0), clock=lambda: now[0])
    now[0] = 110.0  # The parts have been built, and training begins.
    life.start(now[0])
    now[0] = 113.0
    assert life.seconds() == 43.0
    life.end()
    now[0] = 200.0
    assert life.moment(6, 7) == Moment(6, 7, 43.0)


def test_a_moment_has_the_steps_of_other_ranks_beside_its_own() -> None:
    life = Life(BIRTH, elsewhere=lambda: 9, clock=lambda: 0.0)
    assert life.moment(6, 7) == Moment(6, 7, 0.0, samples_elsewhere=9)


@pytest.mark.parametrize(
    ("error", "is_restarted", "is_followed"),
    [
        (RankLostError("rank 1 has ended"), False, True),
        (AddressError("the port is taken"), True, True),
        (AddressError("the port is taken"), False, False),
        (KeyboardInterrupt(), True, False),
    ],
)
def test_a_life_is_followed_by_another_if_a_rank_was_lost_or_torchrun_starts_again(
    error: BaseException, *, is_restarted: bool, is_followed: bool
) -> None:
    life = Life(BIRTH, is_restarted=is_restarted)
    assert not life.is_followed
    life.break_off(error)
    assert life.is_followed == is_followed
