from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest

from common.config.actor_config import EvaluatorConfig
from common.envs.pettingzoo import SeatsEnv, make
from common.envs.players import Player, ScriptedEnv
from common.errors import ConfigError, PluginError
from common.evaluation import DefaultEvaluator
from common.interfaces import EnvSpec
from common.lanes.building import lanes_of
from common.testing import check_env
from tests.actor.acting import Acts, act, make_parts
from tests.seats import Crowd

TICTACTOE = "classic/tictactoe-v3"
made: list[str] = []
"""The names of the players that scripts of this module have made, one for each game."""


def choose_first(obs: Any) -> int:
    return int(np.argmax(obs["action_mask"]))


def choose_last(obs: Any) -> int:
    return int(np.flatnonzero(obs["action_mask"])[-1])


def first(spec: EnvSpec, rng: np.random.Generator) -> Player:
    made.append("first")
    return choose_first


def last(spec: EnvSpec, rng: np.random.Generator) -> Player:
    made.append("last")
    return choose_last


def lane_of(choose: Any) -> Any:
    """An agent that chooses so in each lane."""

    def sample(obs: Any) -> Any:
        each = [{name: leaf[j] for name, leaf in obs.items()} for j in range(len(obs["action_mask"]))]
        return np.array([choose(one) for one in each])

    return lambda spec: Acts(spec, sample)


@pytest.mark.parametrize("learner", ["player_1", "player_2"])
def test_rows_of_a_game_in_turns_are_those_of_the_learners_turns_alone(learner: str) -> None:
    other = {"player_1": "player_2", "player_2": "player_1"}[learner]
    env = make(TICTACTOE, players={other: f"{__name__}:last"})
    assert env.num_envs == 1
    sink, _ = act(make_parts(env, lane_of(choose_first)), 30, seed=5)
    rows = sink.lane(0)
    game, expected = pettingzoo.make("aec", TICTACTOE), list[Any]()
    while len(expected) < 30:
        game.reset(seed=0)
        for agent in game.agent_iter():
            obs, paid, terminated, *_ = game.last()
            if agent == learner:
                expected.append((obs, paid, terminated))
            choose = choose_first if agent == learner else choose_last
            game.step(None if terminated else choose(obs))
    for i, (obs, paid, terminated) in enumerate(expected[: len(rows["final"])]):
        np.testing.assert_array_equal(rows["obs/observation"][i], obs["observation"])
        assert rows["final"][i] == terminated
        if i and not rows["final"][i - 1]:
            assert rows["reward"][i - 1] == paid
    assert {*rows["reward"].tolist()} & {-1.0, 1.0}


def test_a_player_is_drawn_for_each_game_and_plays_it_to_the_end() -> None:
    def play() -> tuple[list[str], Any]:
        made.clear()
        env = make(TICTACTOE, players={"player_2": [f"{__name__}:first", f"{__name__}:last"]})
        return made, act(make_parts(env, lane_of(choose_first)), 60, seed=5)[0].lane(0)

    found, rows = play()
    names = [*found]
    begins = np.flatnonzero(rows["first"])
    assert len(begins) == len(names) > 10
    assert {*names} == {"first", "last"}
    for begin, end, name in zip(begins, begins[1:], names, strict=False):
        # The learner takes the cells 0, 1, 2 in turn where it can; so the opponent's stones tell who plays.
        theirs = {tuple(cell) for board in rows["obs/observation"][begin:end] for cell in np.argwhere(board[..., 1])}
        corner = (2, 2)
        assert (corner in theirs) == (name == "last"), f"{name}: {theirs}"
    assert play()[0] == names, "the seed decides"


def test_groups_take_the_mappings_one_after_another_so_a_policy_learns_both_sides() -> None:
    players = [{"player_2": "random"}, {"player_1": "random", "player_2": "learner"}]
    env = make(TICTACTOE, players=players, groups=4, show_seat=True)
    obs, _ = env.reset(seed=0)
    assert obs["seat"].tolist() == [0, 1, 0, 1]
    assert obs["action_mask"].sum(axis=1).tolist() == [9, 8, 9, 8], "the others have begun"
    check_env(env)


@pytest.mark.parametrize("has_masks", [False, True])
def test_where_all_act_at_once_scripts_act_with_the_learners(has_masks: bool) -> None:
    """The environment raises if somebody does not act who is there, or does what is not allowed."""
    players = {"a": "random", "c": "random"}
    env = make("tests.seats:Crowd", has_masks=has_masks, players=players)
    assert env.seats == 2
    check_env(env)
    agent = lane_of(choose_first) if has_masks else lambda spec: Acts(spec, lambda obs: np.zeros(len(obs), np.int64))
    sink, _ = act(make_parts(env, agent), 200, seed=5)
    obs = sink.column("obs/observation" if has_masks else "obs")
    assert {*obs[:, 2].tolist()} == {1.0, 3.0}, "only learners have rows"


def test_scripts_begin_a_game_to_which_the_learner_comes_later() -> None:
    env = make("tests.seats:Crowd", players=dict.fromkeys("acd", "random"))
    sink, _ = act(make_parts(env, lambda spec: Acts(spec, lambda obs: np.zeros(len(obs), np.int64))), 100, seed=5)
    begins = sink.column("obs")[sink.column("first")]
    assert {*begins[:, 1].tolist()} > {0.0, 1.0}, "the steps at which the learner has come"


def test_an_evaluation_against_an_opponent_is_the_learners_return() -> None:
    env = make(TICTACTOE, players={"player_2": f"{__name__}:first"}, groups=2)
    found = DefaultEvaluator(env, EvaluatorConfig(episodes=3)).evaluate(lane_of(choose_last)(lanes_of(env).spec))
    assert found.record["eval_reward_std"] == 0
    assert found.score in (-1.0, 1.0)


def test_only_learners_need_the_same_spaces() -> None:
    class Unequal(Crowd):
        def action_space(self, agent: str) -> gymnasium.Space[Any]:
            return gymnasium.spaces.Discrete(2 if agent == "a" else 3)

    with pytest.raises(ConfigError, match="one action space"):
        SeatsEnv([Unequal()])
    check_env(SeatsEnv([Unequal()], players=[{"a": "random"}]))
    with pytest.raises(ConfigError, match="one action space"):
        SeatsEnv([Unequal(), Unequal()], players=[{"a": "random"}, {"b": "random"}])


@pytest.mark.parametrize(
    ("players", "message"),
    [
        ({"x": "random"}, "expected names of player_1, player_2, found 'x'"),
        ({"player_1": "random", "player_2": "random"}, "expected an agent that learns"),
        ({"player_1": "best"}, r"players\.player_1: expected learner, random, pool, .* or a list.*found 'best'"),
        ({"player_1": []}, r"players\.player_1: expected learner, random, .*found \[\]"),
        ({"player_1": ["learner", "random"]}, r"players\.player_1: expected .*found 'learner'"),
        ([{"player_1": "random"}, {}], r"same number of learners in all games, found \[1, 2\]"),
        (["random"], "expected a mapping of agents to players, found 'random'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(players: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(TICTACTOE, players=players, groups=2)


def test_a_script_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(PluginError, match="no callable 'nobody'"):
        make(TICTACTOE, players={"player_1": f"{__name__}:nobody"})


def test_games_that_always_end_before_a_learner_acts_are_an_error() -> None:
    class Empty(Crowd):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed, options)
            self.agents = []
            return found

    env = ScriptedEnv(Empty(), None, {"a": [lambda spec, rng: choose_first]})
    with pytest.raises(PluginError, match="expected a learner to act, found 1000 games"):
        next(env.begin(seed=0))
