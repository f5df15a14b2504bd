"""These tests play real games, which come with the emulator."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from common.data import Array
from common.envs.atari import make, make_vector
from common.errors import PluginError
from common.lanes.building import Env, build_env, read_spec, stacked_spec
from common.plugins.part_config import EnvConfig

PONG, SEAQUEST = "ALE/Pong-v5", "ALE/Seaquest-v5"


def play(env: Env, seed: int, steps: int) -> tuple[list[Array], list[float]]:
    """Observations and rewards of one episode with random actions, up to ``steps`` steps."""
    env.action_space.seed(seed)
    frames: list[Array] = [env.reset(seed=seed)[0]]
    rewards: list[float] = []
    done = False
    while not done and len(rewards) < steps:
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        frames.append(np.array(obs))
        rewards.append(float(reward))
        done = terminated or truncated
    env.close()
    return frames, rewards


def test_an_observation_is_one_frame_and_an_agent_sees_four() -> None:
    config = EnvConfig(target="common.envs.atari:make", params={"id": PONG}, frame_stack=4)
    frames, _ = play(build_env(config), seed=0, steps=30)
    assert {(frame.shape, frame.dtype.str) for frame in frames} == {((84, 84), "|u1")}
    assert any((after != before).any() for before, after in pairwise(frames)), "the newest is new"
    spec = stacked_spec(read_spec(config), config.frame_stack)
    assert spec.observation_space == Box(0, 255, (4, 84, 84), np.uint8)


def test_a_step_is_four_frames_of_the_emulator() -> None:
    env = make(PONG)
    env.reset(seed=0)
    before = env.get_wrapper_attr("ale").getFrameNumber()
    env.step(0)
    assert env.get_wrapper_attr("ale").getFrameNumber() == before + 4
    env.close()


def test_training_sees_the_sign_of_a_reward_and_evaluation_the_reward() -> None:
    _, clipped = play(make(SEAQUEST), seed=1, steps=300)
    _, raw = play(make(SEAQUEST, train=False), seed=1, steps=300)
    assert max(raw) >= 20
    assert clipped == np.sign(raw).tolist()


def test_a_lost_life_can_end_an_episode_of_training_but_never_of_evaluation() -> None:
    in_training, in_evaluation, without = (
        len(play(make(SEAQUEST, **params), seed=1, steps=2000)[1])
        for params in ({"terminal_on_life_loss": True}, {"terminal_on_life_loss": True, "train": False}, {})
    )
    assert in_training < in_evaluation == without < 2000


def test_an_episode_begins_with_as_many_idle_frames_as_its_seed_says() -> None:
    env = make(PONG)
    begins = []
    for seed in (0, 0, 1, 2, 3):
        env.reset(seed=seed)
        begins.append(env.get_wrapper_attr("ale").getEpisodeFrameNumber())
    env.close()
    assert begins[0] == begins[1]
    assert len(set(begins)) > 2
    assert all(1 <= frames <= 30 for frames in begins)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_the_same_seed_gives_the_same_game(sticky: float) -> None:
    first, again = (play(make(PONG, repeat_action_probability=sticky), seed=3, steps=100)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_with_sticky_actions_the_same_actions_lead_to_another_game() -> None:
    plain, sticky = (
        play(make(PONG, repeat_action_probability=probability), seed=3, steps=100)[0] for probability in (0.0, 0.25)
    )
    np.testing.assert_array_equal(plain[0], sticky[0])
    assert not np.array_equal(plain, sticky)


def test_further_parameters_are_passed_to_gymnasium() -> None:
    env = make(PONG, full_action_space=True, difficulty=1)
    assert env.action_space.n == 18  # type: ignore[attr-defined]
    env.close()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"id": "ALE/Pung-v5"}, r"Environment `Pung` doesn't exist.*`Pong`"),
        ({"id": PONG, "nonsense": 3}, "nonsense"),
        ({"id": "CartPole-v1"}, "frameskip"),
    ],
)
def test_an_unknown_game_is_a_plugin_error(params: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build_env(EnvConfig(target="common.envs.atari:make", params=params))


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Importing it fails from now on.
    with pytest.raises(PluginError, match=rf"pip install 'crossborder\[atari\]' \(.*{module}"):
        make(PONG)


def test_a_vector_of_games_gives_single_frames_and_signs_of_rewards_and_steps_as_many_as_are_asked_for() -> None:
    env = make_vector(SEAQUEST, num_envs=3, side=42)
    env.action_space.seed(0)
    frames, _ = env.reset(seed=0)
    assert (frames.shape, frames.dtype) == ((3, 1, 42, 42), np.uint8)
    rewards = np.stack([env.step(env.action_space.sample())[1] for _ in range(200)])
    env.close()
    assert set(np.unique(rewards)) == {0.0, 1.0}, "Seaquest counts in twenties"


def test_a_vector_of_games_for_evaluation_scores_as_the_game_does() -> None:
    env = make_vector(SEAQUEST, num_envs=3, train=False)
    env.action_space.seed(0)
    env.reset(seed=0)
    rewards = np.stack([env.step(env.action_space.sample())[1] for _ in range(200)])
    env.close()
    assert set(np.unique(rewards)) == {0.0, 20.0}
