from __future__ import annotations

import numpy as np
import pytest

from common.envs.minatar import GAMES, make
from common.errors import PluginError
from crossborder.testing import check_env


def test_a_game_fits() -> None:
    check_env(make("seaquest"))


@pytest.mark.parametrize("game", GAMES)
def test_each_game_shows_channels_of_ten_by_ten(game: str) -> None:
    env = make(game)
    env.reset(seed=0)
    assert env.observation_space.contains(env.step(env.action_space.sample())[0])
    assert env.observation_space.shape is not None
    assert env.observation_space.shape[1:] == (10, 10)


def test_the_channels_of_breakout_show_paddle_ball_trail_and_bricks() -> None:
    obs, _ = make("breakout").reset(seed=0)
    assert obs.dtype == np.bool_
    assert obs[0].nonzero()[0].tolist() == [9], "the paddle is in the last row"
    assert obs[3].any(axis=1).nonzero()[0].tolist() == [1, 2, 3], "bricks fill three rows"


def test_an_episode_depends_on_nothing_but_its_seed() -> None:
    env, found = make("breakout", sticky_action_prob=0.9), []
    for _ in range(2):
        env.reset(seed=3)
        found.append([env.step(2)[0].copy() for _ in range(5)])  # The second one begins after another action.
    np.testing.assert_array_equal(found[0], found[1])


def test_a_game_may_be_drawn() -> None:
    env = make("breakout", render_mode="rgb_array")
    env.reset(seed=0)
    assert np.asarray(env.render()).shape == (10, 10, 3)


def test_a_game_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PluginError, match="MinAtar has no game 'pong': expected one of asterix, breakout"):
        make("pong")


def test_a_game_takes_the_arguments_of_minatar() -> None:
    assert make("breakout", sticky_action_prob=0.5).unwrapped.game.sticky_action_prob == 0.5  # type: ignore[attr-defined]
