from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

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
from crossborder.testing import check_env
from tests.actor.acting import Acts, act, env_config, make_parts
from tests.duels import Duel
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


def no_player(spec: EnvSpec, rng: np.random.Generator) -> None:
    pass


def outside(spec: EnvSpec, rng: np.random.Generator) -> Player:
    return lambda obs: 9


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (no_player, r"players\.b: expected a script that returns a player, .* found one that returned None"),
        (outside, r"players\.b: expected the player to choose an element of Discrete\(3\), found 9"),
    ],
)
def test_a_script_that_gives_no_player_or_no_action_is_named(script: Any, message: str) -> None:
    env = make("tests.seats:Crowd", players={"b": f"{__name__}:{script.__name__}"})
    parts = make_parts(env, lambda spec: Acts(spec, partial(act_always, 0)))
    with pytest.raises(PluginError, match=message):
        act(parts, 20, seed=3)


def test_rewards_of_those_who_have_left_count_for_the_result() -> None:
    """A team may be paid when it wins, also those of it who are out."""

    class Team(Duel):
        def step(self, actions: dict[str, int]) -> Any:
            found = super().step({"b": 0, **actions})
            self.agents = [agent for agent in self.agents if agent == "a"]  # Agent b is out after its first step.
            rewards = {"a": 0.0, "b": 5.0 if not self.agents else 0.0}
            return found[0], rewards, {"a": not self.agents, "b": True}, found[3], found[4]

    env = ScriptedEnv(Team(), None, {"b": [lambda spec, rng: lambda obs: 0]})
    with pytest.raises(StopIteration):
        next(env.begin(seed=0))
    infos: Any = {}
    while env.agents:
        with pytest.raises(StopIteration) as end:
            next(env.step({"a": 0}))
        infos = end.value.value[4]
    assert infos["a"]["result"] == -1


def test_games_that_always_end_before_a_learner_acts_are_an_error() -> None:
    class Empty(Crowd):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed, options)
            self.agents = []
            return found

    env = ScriptedEnv(Empty(), None, {"a": [lambda spec, rng: choose_first]})
    with pytest.raises(PluginError, match="expected a learner to act, found 1000 games"):
        next(env.begin(seed=0))


class Tells:
    """A frozen policy for ``Duel`` whose action is its version; it notes the lanes of each call."""

    def __init__(self, opt_steps: int, *, shows_seat: bool = False) -> None:
        self.opt_steps, self.calls = opt_steps, list[list[int]]()
        obs = Duel().observation_space("a")
        shown = gymnasium.spaces.Dict({"observation": obs, "seat": gymnasium.spaces.Discrete(2)})
        self.spec = EnvSpec(shown if shows_seat else obs, Duel().action_space("a"))
        self.begun = list[int]()

    def sample(self, obs: Any, begins: Any, lanes: Any) -> Any:
        self.calls.append(lanes.tolist())
        self.begun += lanes[begins].tolist()
        return np.full(len(lanes), self.opt_steps)


class Pool:
    """Gives a newer policy for each game, or the same again and again."""

    def __init__(self, *, is_same: bool = False) -> None:
        self.drawn, self._is_same = [Tells(1, shows_seat=True)], is_same

    def draw(self, rng: np.random.Generator) -> Tells:
        if not self._is_same:
            self.drawn.append(Tells(len(self.drawn) + 1, shows_seat=True))
        return self.drawn[-1]


def duel(pool: Pool, rounds: int) -> tuple[Any, Any]:
    """Play three duels at a time against a pool, as version 7."""
    env = make("tests.duels:Duel", groups=3, players="pool", show_seat=True)
    env.pool = pool
    config = env_config(info={"opponent": "int64"})
    parts = make_parts(env, lambda spec: Acts(spec, lambda obs: np.full(len(obs["seat"]), 7)), config=config)
    return act(parts, rounds, seed=5, version=7)


def act_always(action: int, obs: Any) -> Any:
    return np.full(len(obs), action)


def test_one_model_of_the_pool_plays_a_game_to_its_end_and_its_rows_name_it() -> None:
    sink, counters = duel(pool := Pool(), 100)
    seen, named = sink.column("obs/observation")[:, 1], sink.column("info/opponent")
    for lane in range(3):
        mine = sink.column("lane") == lane
        games = np.split(np.flatnonzero(mine), np.flatnonzero(sink.column("first")[mine])[1:])
        for game in games:
            assert {*seen[game][1:].tolist()} <= {*named[game].tolist()}
            assert len({*named[game][~sink.column("final")[game]].tolist()}) == 1
    assert len(pool.drawn) > 40
    assert all(len(each.begun) == 1 for each in pool.drawn[1:]), "a game begins once for its model"
    results = counters.take_games()
    assert all(result == np.sign(7 - opponent) for _, opponent, result in results), results
    assert {player for player, _, _ in results} == {7}
    assert counters.take_games() == {}, "games are counted once"


def test_the_games_of_one_model_are_one_call() -> None:
    pool = Pool(is_same=True)
    duel(pool, 50)
    (model,) = pool.drawn
    assert len(model.calls) == 50
    assert {len(lanes) for lanes in model.calls} == {3}


def test_the_learners_side_changes_from_game_to_game() -> None:
    sink, _ = duel(Pool(), 100)
    for lane in range(3):
        mine = (sink.column("lane") == lane) & sink.column("first")
        sides = sink.column("obs/seat")[mine].tolist()
        assert sides == [(sides[0] + i) % 2 for i in range(len(sides))]
        assert len(sides) > 5


def test_the_seed_decides_the_side_so_each_game_of_an_evaluation_has_its_own() -> None:
    env = make(TICTACTOE, players="random", show_seat=True)
    assert [env.reset(seed=seed)[0]["seat"].item() for seed in (4, 5, 4)] == [0, 1, 0]


def test_without_a_run_there_is_no_pool() -> None:
    env = make("tests.duels:Duel", players="pool")
    with pytest.raises(ConfigError, match=r"'pool' plays only where actors of a run act.*env\.eval_params\.players"):
        env.reset(seed=0)


def test_a_policy_with_other_spaces_is_named() -> None:
    env = make(TICTACTOE, players={"player_1": Tells(3)})
    with pytest.raises(ConfigError, match=r"expected a policy with the spaces of the seats .*found EnvSpec"):
        env.reset(seed=0)


def test_an_evaluation_counts_the_games_of_its_episodes_and_no_others() -> None:
    env = make("tests.duels:Duel", players=[{"b": Tells(3)}, {"a": Tells(3)}], groups=8)
    for action, share in ((4, "eval_wins"), (3, "eval_draws"), (2, "eval_losses")):
        agent = Acts(lanes_of(env).spec, partial(act_always, action))
        record = DefaultEvaluator(env, EvaluatorConfig(episodes=12)).evaluate(agent).record
        assert {name: record[name] for name in ("eval_wins", "eval_draws", "eval_losses")} == {
            "eval_wins": 0.0,
            "eval_draws": 0.0,
            "eval_losses": 0.0,
            share: 1.0,
        }


def test_one_model_plays_all_seats_of_the_pool_in_a_game_though_they_come_and_go() -> None:
    env = make("tests.seats:Crowd", players=dict.fromkeys("bcd", "pool"), groups=2)
    env.pool = pool = Pool(is_same=True)
    model = pool.drawn[0]
    model.spec, model.opt_steps = EnvSpec(env.single_observation_space, env.single_action_space), 0
    with patch.object(pool, "draw", return_value=model) as draw:
        sink, _ = act(make_parts(env, lambda spec: Acts(spec, partial(act_always, 0))), 60, seed=5)
    assert draw.call_count == sink.column("first").sum()
    assert {len(lanes) for lanes in model.calls} >= {1, 2, 3}, "others have left, or have not come yet"
    assert all(len({*lanes}) == len(lanes) for lanes in model.calls)
