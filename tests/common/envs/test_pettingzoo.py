from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.agents.dqn import DQN
from common.agents.ppo import PPO
from common.agents.recurrent_ppo import RecurrentPPO
from common.config.actor_config import EvaluatorConfig
from common.envs.pettingzoo import SeatsEnv, make
from common.errors import ConfigError, PluginError
from common.evaluation import DefaultEvaluator
from common.interfaces import EnvSpec
from common.lanes.building import build_env, lanes_of
from common.lanes.interface_faults import InterfaceError
from common.lanes.lanes import Lanes
from common.lanes.watched_envs import Watch
from common.plugins.part_config import EnvConfig
from common.spaces import leaves_of
from crossborder.testing import check_env
from tests.actor.acting import Acts, act, make_parts
from tests.common.lanes.test_building import named
from tests.seats import Crowd

CROWD = {"id": "tests.seats:Crowd"}


def crowd(players: Any = (), **changes: Any) -> SeatsEnv:
    """A crowd with other methods or attributes, in which others play some of its agents."""
    return SeatsEnv([type("Changed", (Crowd,), changes)()], players=[players] if players else ())


@pytest.mark.parametrize(
    "params",
    [
        CROWD,
        {**CROWD, "groups": 3, "show_seat": True},
        {**CROWD, "has_masks": True, "show_seat": True},
        {"id": "classic/tictactoe-v3"},
        {"id": "classic/rps-v2", "groups": 2, "show_seat": True},
        {"id": "sisl/pursuit-v5", "n_pursuers": 2, "n_evaders": 2, "max_cycles": 20},
    ],
    ids=str,
)
def test_environments_of_every_kind_pass_the_check(params: dict[str, Any]) -> None:
    env = build_env(named("common.envs.pettingzoo:make", params))
    check_env(env)
    env.close()


@pytest.mark.parametrize(
    ("id", "leaf"), [("tests.seats:Crowd", "observation"), ("classic/tictactoe-v3", "action_mask")]
)
def test_observations_show_their_seat_if_they_are_asked_to(id: str, leaf: str) -> None:
    env = make(id, groups=2, show_seat=True)
    obs, _ = env.reset(seed=0)
    assert obs["seat"].tolist() == 2 * [*range(env.seats)]
    assert leaves_of(env.single_observation_space)["seat"] == gymnasium.spaces.Discrete(env.seats)
    assert leaf in obs
    assert env.observation_space.contains(obs), "an empty seat shows an element of the space too"


class Known(Crowd):
    """Its state is the numbers of game and step."""

    state_space = gymnasium.spaces.Box(-1, 1e6, (2,), np.float32)

    def state(self) -> Any:
        return np.array([self._game, self._step], np.float32)


@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("players", [(), {"b": "random"}])
def test_observations_show_the_state_of_the_environment_if_they_are_asked_to(has_masks: bool, players: Any) -> None:
    env = SeatsEnv([Known(has_masks=has_masks), Known(has_masks=has_masks)], show_state=True, players=players)
    check_env(env)
    parts = make_parts(env, lambda spec: PPO(spec=spec, seed=0, device="cpu", actor_keys=["observation"]))
    parts.agent.train()
    sink, _ = act(parts, 60)
    state, observation = sink.column("obs/state"), sink.column("obs/observation")
    assert sink.column("final").any()
    np.testing.assert_array_equal(state, observation[:, :2])
    assert len({*observation[:, 0].tolist()}) > 2


class Compares:
    """A frozen policy that notes observations and states."""

    opt_steps = 1

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.seen = spec, list[Any]()

    def sample(self, obs: Any, begins: Any, lanes: Any) -> Any:
        self.seen += [*zip(obs["observation"][:, :2].tolist(), obs["state"].tolist(), strict=True)]
        return np.zeros(len(lanes), np.int64)


def test_a_frozen_policy_sees_the_state_too() -> None:
    player = Compares(lanes_of(SeatsEnv([Known()], show_state=True)).spec)
    parts = make_parts(
        SeatsEnv([Known(), Known()], show_state=True, players={"b": player}),
        lambda spec: Acts(spec, lambda obs: np.zeros(len(obs["state"]), np.int64)),
    )
    act(parts, 60)
    assert player.seen
    assert all(observation == state for observation, state in player.seen)


@pytest.mark.parametrize("kind", [DQN, RecurrentPPO])
@pytest.mark.parametrize("params", [{**CROWD, "has_masks": True}, {"id": "classic/connect_four-v3"}], ids=str)
def test_no_agent_takes_an_action_that_is_not_allowed(kind: Any, params: dict[str, Any]) -> None:
    """Both environments raise at such an action, or warn of it, which is an error here."""
    env = make(**params, groups=2)
    given = {"explorer": {"start": 1.0, "final_step": 1000}} if kind is DQN else {}
    parts = make_parts(env, lambda spec: kind(spec=spec, seed=3, epsilon=0.5, device="cpu", **given))
    parts.agent.train()
    sink, _ = act(parts, 150)
    steps = ~sink.column("final")
    masks, actions = sink.column("obs/action_mask")[steps], sink.column("action")[steps]
    assert masks[np.arange(len(actions)), actions].all()
    assert not masks.all(), "some actions were not allowed"


class Payer(Crowd):
    """Pays an agent 1, 2, 3 or 4 by its seat for each step, and 100 more in games of odd seeds."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._bonus = 100 if seed is not None and seed % 2 else 0
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        obs, _, *others = super().step(actions)
        return obs, {agent: self.possible_agents.index(agent) + 1 + self._bonus for agent in obs}, *others


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_the_score_is_the_mean_return_of_all_agents_of_all_games(groups: int) -> None:
    expected: list[int] = []
    for seed in range(18, 23):
        game = Payer()
        game.reset(seed)
        returns: dict[str, int] = {}
        while game.agents:
            before = [*game.agents]
            _, rewards, *_ = game.step(dict.fromkeys(before, 0))
            returns |= {agent: returns.get(agent, 0) + rewards[agent] for agent in before}
        expected += returns.values()
    assert len(expected) < 5 * 4, "in some games an agent never comes"
    env = Watch(threading.Event()).over(SeatsEnv([Payer() for _ in range(groups)]))
    agent = Acts(lanes_of(env).spec, lambda obs: np.zeros(len(obs), np.int64))
    found = DefaultEvaluator(env, EvaluatorConfig(episodes=5), seed=18).evaluate(agent)
    assert found.score == pytest.approx(np.mean(expected))
    assert found.record["eval_reward_max"] == max(expected)


def test_infos_are_those_of_each_agent() -> None:
    lanes = lanes_of(crowd(), EnvConfig(target="x:y", info={"is_success": "bool"}))
    lanes.reset(3)
    successes = []
    for _ in range(50):
        lanes.observe()
        outcome = lanes.step(np.zeros(4, np.int64))
        if outcome.ended is not None:
            assert outcome.success == outcome.terminated[outcome.ended].tolist()
            assert outcome.info["is_success"][outcome.ended].tolist() == outcome.success
            successes += outcome.success
    assert {*successes} == {True, False}


def of_agent(space: gymnasium.Space[Any], agent: str) -> Callable[..., Any]:
    return lambda self, name: space if name == agent else gymnasium.spaces.Discrete(3)


class TestRefused:
    """Each names what was expected, and the agent or the parameter."""

    def test_different_spaces(self) -> None:
        with pytest.raises(
            ConfigError, match=r"one action space for all.*Discrete\(3\) of 'a' and Discrete\(4\) of 'c'"
        ):
            crowd(action_space=of_agent(gymnasium.spaces.Discrete(4), "c"))
        with pytest.raises(
            ConfigError, match=r"one observation space for all.*of 'a' and Discrete\(9\) of 'b'.*SuperSuit"
        ):
            crowd(observation_space=of_agent(gymnasium.spaces.Discrete(9), "b"))

    def test_a_state_that_is_missing_or_does_not_fit(self) -> None:
        with pytest.raises(ConfigError, match=r"show_state: expected .* state_space, a Box, found None"):
            SeatsEnv([Crowd()], show_state=True)
        has_state = gymnasium.spaces.Dict({"state": Known.state_space})
        for change, error, message in (
            ({"observation_space": lambda *_: has_state}, ConfigError, "show_state: observations have a leaf 'state'"),
            ({"state": lambda _: np.zeros(3)}, InterfaceError, r"state: expected float32 \[2\].*found float64 \[3\]"),
        ):
            with pytest.raises(error, match=message):
                SeatsEnv([type("Changed", (Known,), change)()], show_state=True).reset()

    def test_nobody_named(self) -> None:
        with pytest.raises(PluginError, match="expected possible_agents"):
            crowd(possible_agents=[])

    def test_another_kind_of_environment(self) -> None:
        with pytest.raises(PluginError, match="expected an environment of PettingZoo, found TakeAway"):
            make("common.envs.masked_tasks:TakeAway")

    def test_no_group(self) -> None:
        with pytest.raises(ConfigError, match=r"env\.params\.groups: expected at least 1, found 0"):
            make("classic/rps-v2", groups=0)

    @pytest.mark.parametrize("id", ["classic/rps-v9", "nowhere/rps", "rps"])
    def test_an_unknown_id(self, id: str) -> None:
        with pytest.raises(PluginError, match=f"env.params.id: '{id}': .*not found"):
            make(id)

    def test_a_seat_beside_another_leaf_of_this_name(self) -> None:
        space = gymnasium.spaces.Dict(seat=gymnasium.spaces.Discrete(2), x=gymnasium.spaces.Discrete(2))
        with pytest.raises(ConfigError, match="show_seat: observations have a leaf 'seat' already"):
            SeatsEnv([type("Seated", (Crowd,), {"observation_space": lambda self, agent: space})()], show_seat=True)

    def test_a_missing_pettingzoo(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pettingzoo", None)
        with pytest.raises(PluginError, match=r"pip install 'crossborder\[pettingzoo\]'"):
            build_env(named("common.envs.pettingzoo:make", {"id": "classic/rps-v2"}))


def play(lanes: Lanes, rounds: int) -> list[Any]:
    """Who took a step in each round, with which rewards, and the returns of the episodes that ended."""
    outcomes = []
    for _ in range(rounds):
        lanes.observe()
        outcome = lanes.step(np.zeros(lanes.n, np.int64))
        taken = np.ones(lanes.n, bool) if outcome.taken is None else outcome.taken
        outcomes.append((taken.tolist(), (outcome.reward * taken).tolist(), outcome.returns))
    return outcomes


def without(index: int) -> Callable[..., Any]:
    """A step whose result lacks agent a in one of its five parts."""

    def step(self: Crowd, actions: Any) -> Any:
        found = Crowd.step(self, actions)
        found[index].pop("a", None)
        return found

    return step


def giving(index: int, value: Any) -> Callable[..., Any]:
    """A step whose result has this value for agent a in one of its five parts."""

    def step(self: Crowd, actions: Any) -> Any:
        found = Crowd.step(self, actions)
        found[index]["a"] = value
        return found

    return step


def unpaid(self: Crowd, actions: Any) -> Any:
    obs, _, *others = Crowd.step(self, actions)
    return obs, None, *others


def leaving(self: Crowd, actions: Any) -> Any:
    found = Crowd.step(self, actions)
    self.agents = [agent for agent in self.agents if agent != "a"]
    return found[0], found[1], dict.fromkeys(found[0], False), dict.fromkeys(found[0], False), found[4]


def bringing(self: Crowd, actions: Any) -> Any:
    found = Crowd.step(self, actions)
    self.agents = [*self.agents, "stranger"]
    return found


def misfit(self: Crowd, actions: Any) -> Any:
    found = Crowd.step(self, actions)
    return {agent: obs[:2] for agent, obs in found[0].items()}, *found[1:]


BREAKS: dict[str, tuple[dict[str, Any], str]] = {
    "observation": ({"step": without(0)}, "observation: expected one for agent 'a', found none"),
    "reward": ({"step": without(1)}, "step: expected the reward of agent 'a', a number"),
    "end": ({"step": without(2)}, "step: .*whether it was terminated or truncated"),
    "a huge number": ({"step": giving(1, 10**400)}, "step: expected the reward of agent 'a', a number"),
    "text": ({"step": giving(1, "1.0")}, "step: expected the reward of agent 'a', a number, .*'1.0'"),
    "NaN": ({"step": giving(2, float("nan"))}, "step: .*whether it was terminated or truncated, found .*nan"),
    "None": ({"step": giving(3, None)}, "step: .*whether it was terminated or truncated, found .*None"),
    "False": ({"step": giving(3, "False")}, "step: .*whether it was terminated or truncated, found .*'False'"),
    "unpaid": ({"step": unpaid}, r"step: expected five dicts, .* found \(dict, NoneType, dict, dict, dict\)"),
    "leaves": ({"step": leaving}, "step: .*'a' is no longer in agents and was neither"),
    "stranger": ({"step": bringing}, r"expected agents of possible_agents, \['a', 'b', 'c', 'd'\], found 'stranger'"),
    "misfit": ({"step": misfit}, r"observation of agent 'a': expected float32 \[5\].*found float32 \[2\]"),
    "former step": (
        {"step": lambda self, actions: Crowd.step(self, actions)[1:]},
        "step: expected .*PettingZoo before 1.22",
    ),
    "no results": (
        {"step": lambda self, actions: None},
        "step: expected five dicts, the observations, rewards, .* found None",
    ),
    "no infos": (
        {"step": lambda self, actions: (*Crowd.step(self, actions)[:4], None)},
        r"step: expected five dicts, .* found \(.*, NoneType\)",
    ),
    "an info of text": (
        {"step": giving(4, "text")},
        "expected the infos of all agents, a dict for each, found {.*'text'",
    ),
    "no infos of reset": (
        {"reset": lambda self, seed=None: (Crowd.reset(self)[0], None)},
        "expected the infos of all .* found None",
    ),
    "former reset": (
        {"reset": lambda self, seed=None: {}},
        "reset: expected the observations and infos of all agents, found",
    ),
    "nobody": ({"reset": lambda self, seed=None: ({}, {})}, "reset: expected at least one agent in agents, found none"),
}
"""Environments that break PettingZoo's interface, and what is said of them."""


@pytest.mark.parametrize(("change", "message"), BREAKS.values(), ids=BREAKS)
def test_an_environment_that_breaks_pettingzoos_interface_is_told_so(change: dict[str, Any], message: str) -> None:
    lanes = lanes_of(crowd(**change), named("common.envs.pettingzoo:make", CROWD))
    with pytest.raises(PluginError, match=f"env common.envs.pettingzoo:make .*: {message}"):
        play(lanes, 10)


OTHER_WORDS = ("leaves", "stranger", "nobody")
NOT_SEEN = {"d": OTHER_WORDS, "a": (*OTHER_WORDS, "reward", "end", "misfit", "an info of text")}
"""By the agent whom a player plays, the faults that nobody sees there, or that have other words."""


@pytest.mark.parametrize(
    ("player", "fault"), [(player, fault) for player, own in NOT_SEEN.items() for fault in BREAKS if fault not in own]
)
def test_where_others_play_it_is_told_so_too(player: str, fault: str) -> None:
    """The fault is agent a's, who learns, or whom a player plays."""
    change, message = BREAKS[fault]
    lanes = lanes_of(crowd({player: "random"}, **change), named("common.envs.pettingzoo:make", CROWD))
    with pytest.raises(InterfaceError, match=message):
        play(lanes, 10)


@pytest.mark.parametrize("players", [{}, {"b": "random", "c": "random"}], ids=str)
def test_an_environment_may_keep_those_in_agents_who_have_left(players: dict[str, str]) -> None:
    class Keeps(Crowd):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self._kept: list[str] = []
            return super().reset(seed, options)

        def step(self, actions: Any) -> Any:
            self.agents = [agent for agent in self.agents if agent not in self._kept]
            before = [*self.agents]
            found = super().step(actions)
            self._kept += [agent for agent in before if agent not in self.agents]
            self.agents = [*self.agents, *self._kept]
            return found

    lanes = [lanes_of(SeatsEnv([env], players=[players])) for env in (Keeps(), Crowd())]
    for each in lanes:
        each.reset(4)
    assert play(lanes[0], 40) == play(lanes[1], 40)


def test_closing_closes_all_environments() -> None:
    closed: list[Crowd] = []

    class Closing(Crowd):
        def close(self) -> None:
            closed.append(self)

    SeatsEnv([Closing(), Closing()]).close()
    assert len(closed) == 2
