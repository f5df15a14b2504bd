"""Goals of later rows are put in place, and rewards are computed again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import pytest

from common.data import Array, Column, Schema
from common.errors import ConfigError, PluginError
from learner.replay.memory import ReplayMemory
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.hindsight import Hindsight

GOALS: Final = Schema.of_rows(
    (
        Column("obs/achieved_goal", "<f4", (2,)),
        Column("obs/desired_goal", "<f4", (2,)),
        Column("obs/observation", "<f4"),
        Column("action", "<f4"),
        Column("reward", "<f4"),
        Column("terminated", "|b1"),
        Column("truncated", "|b1"),
    )
)
REWARD: Final = "tests.learner.views.test_hindsight:minus_the_distance"


def minus_the_distance(achieved_goal: Array, desired_goal: Array, info: dict[str, Any]) -> Array:
    assert info == {}
    distance: Array = np.abs(achieved_goal - desired_goal).sum(axis=-1)
    return -distance


def filled(directory: Path, lengths: list[int]) -> ReplayMemory:
    """Episodes in which row i achieves the goal (i, -i), and all want (1000, 0)."""
    memory = ReplayMemory(directory / "replay", GOALS, 200, create=True)
    final = np.concatenate([np.arange(length + 1) == length for length in lengths])
    n = np.arange(len(final), dtype=np.float32)
    zeros = np.zeros(len(n), np.float32)
    rows = {
        "obs/achieved_goal": np.stack([n, -n], axis=1),
        "obs/desired_goal": np.stack([zeros + 1000, zeros], axis=1),
        "obs/observation": n,
        "action": n,
        "reward": zeros - 7,
        "terminated": np.zeros(len(n), np.bool_),
        "truncated": np.append(final[1:], False),
        "version": np.zeros(len(n), np.uint32),
        "first": np.append(True, final[:-1]),
        "final": final,
        "lane": np.zeros(len(n), np.uint16),
    }
    ReplayWriter(memory).append(rows, len(n), incarnation=1, seq=1)
    return memory


def test_replaced_goals_were_achieved_later_in_the_same_episode_and_pay_what_the_function_says(tmp_path: Path) -> None:
    lengths = [6, 1, 9]
    ends = np.repeat([6, 8, 18], [7, 2, 10])  # The final row of each row's episode.
    batch = UniformReplay(filled(tmp_path, lengths), Hindsight(GOALS, compute_reward=REWARD), seed=0).batch(4000)
    row, goal = batch["obs/observation"].astype(int), batch["obs/desired_goal"]
    np.testing.assert_array_equal(batch["next_obs/observation"], row + 1)
    np.testing.assert_array_equal(batch["next_obs/desired_goal"], goal)
    replaced = goal[:, 0] != 1000
    assert 0.77 < replaced.mean() < 0.83, "four of five"
    later = goal[replaced, 0].astype(int)
    np.testing.assert_array_equal(goal[replaced, 1], -later)
    assert ((later > row[replaced]) & (later <= ends[row[replaced]])).all()
    np.testing.assert_allclose(batch["reward"][replaced], -2.0 * (later - row[replaced] - 1))
    assert (batch["reward"][~replaced] == -7).all()
    of_row_10 = later[row[replaced] == 10]
    counts = np.bincount(of_row_10, minlength=19)[11:]
    assert counts.min() > 0.5 * counts.mean(), "all later rows are as likely as one another"


def test_a_goal_is_not_looked_for_beyond_the_horizon(tmp_path: Path) -> None:
    view = Hindsight(GOALS, compute_reward=REWARD, k=1e9, horizon=2)
    batch = UniformReplay(filled(tmp_path, [30]), view, seed=0).batch(500)
    assert set((batch["obs/desired_goal"][:, 0] - batch["obs/observation"]).tolist()) == {1, 2}


def test_the_same_seed_chooses_the_same_goals(tmp_path: Path) -> None:
    memory = filled(tmp_path, [20])
    first, second = (UniformReplay(memory, Hindsight(GOALS, compute_reward=REWARD), seed=3) for _ in range(2))
    second.restore(first.state())
    for _ in range(3):
        np.testing.assert_array_equal(first.batch(50)["obs/desired_goal"], second.batch(50)["obs/desired_goal"])


def test_rows_without_goals_and_unknown_functions_are_refused() -> None:
    plain = Schema.of_rows(c for c in GOALS.columns[1:-4])
    with pytest.raises(ConfigError, match=r"Hindsight needs observations with goals, obs/desired_goal"):
        Hindsight(plain, compute_reward=REWARD)
    with pytest.raises(PluginError, match="compute_score"):
        Hindsight(GOALS, compute_reward="tests.learner.views.test_hindsight:compute_score")
    for k in (-1, math.nan, math.inf):
        with pytest.raises(ConfigError, match=f"a finite k >= 0, horizon >= 1 and no frame stack, found {k}, 50, 1"):
            Hindsight(GOALS, compute_reward=REWARD, k=k)


class Paying(gymnasium.Env[Any, Any]):
    """An environment that computes rewards for any goals."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: dict[str, Any]) -> Array:
        return 2 * minus_the_distance(achieved_goal, desired_goal, info)


def test_without_a_named_function_the_environment_computes_the_rewards_also_within_wrappers(tmp_path: Path) -> None:
    memory = filled(tmp_path, [20])

    def make_env() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Paying(), 10)

    named, asked = (
        UniformReplay(memory, view, seed=3).batch(50)
        for view in (Hindsight(GOALS, compute_reward=REWARD), Hindsight(GOALS, make_env=make_env))
    )
    replaced = named["obs/desired_goal"][:, 0] != 1000
    np.testing.assert_array_equal(asked["reward"][replaced], 2 * named["reward"][replaced])


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (None, "this learner builds no environment that could compute rewards: name a function as"),
        (gymnasium.Env, r"has no compute_reward\(achieved_goal, desired_goal, info\): name a function as"),
    ],
)
def test_without_anything_that_computes_rewards_it_is_refused(make_env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hindsight(GOALS, make_env=make_env)


def one_number(achieved: Array, desired: Array, info: dict[str, Any]) -> Any:
    return -np.linalg.norm(achieved - desired)


def a_column(achieved: Array, desired: Array, info: dict[str, Any]) -> Array:
    return minus_the_distance(achieved, desired, info)[:, None]


@pytest.mark.parametrize("name", ["one_number", "a_column"])
def test_a_function_that_gives_no_reward_for_each_goal_is_refused(tmp_path: Path, name: str) -> None:
    view = Hindsight(GOALS, compute_reward=f"tests.learner.views.test_hindsight:{name}")
    buffer = UniformReplay(filled(tmp_path, [20]), view, seed=3)
    with pytest.raises(PluginError, match=r"compute_reward.*expected a reward for each of \d+ goals, .*found float"):
        buffer.batch(50)
