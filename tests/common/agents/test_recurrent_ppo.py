from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from common.agents.recurrent_ppo import RecurrentPPO
from common.data import Array, Items
from common.envs.memory_tasks import Cue
from common.errors import ConfigError
from common.lanes.building import spec_of
from crossborder.testing import check_agent
from learner.views.rollouts import Rollouts
from tests.common.agents.parts import Structured, Whole, assert_same_state, floats
from tests.common.agents.test_network_agent import through_a_file
from tests.common.agents.test_ppo import GAMMA, LAMBDA

SMALL: dict[str, Any] = {"units": (8,), "batch_size": 4, "minibatches": 2, "epochs": 2, "memory": {"width": 6}}
LENGTH = 14
SHORT = {"CartPole-v1": 11, "Pendulum-v1": 7}
"""Limits of episodes: several begin inside a rollout, and those of CartPole end in both ways."""
ENVS = pytest.mark.parametrize("env_id", list(SHORT))


class Player:
    """Plays n environments through the ends of their episodes, and makes rollouts of ``LENGTH`` steps."""

    def __init__(self, agent: RecurrentPPO, envs: list[gymnasium.Env[Any, Any]]) -> None:
        self._agent, self._envs = agent, envs
        self._obs = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
        self._begins = np.ones(len(envs), np.bool_)

    def play(self, length: int = LENGTH) -> Items:
        """The next rollouts; as the view does, they leave the last step's action out."""
        self._agent.train()
        steps = [self._step() for _ in range(length + 1)][:length]
        columns = {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
        return columns | {"state": columns["state"][:, 0].copy()}

    def _step(self) -> Items:
        obs = np.stack(self._obs)
        self._agent.begin(self._begins)
        actions = self._agent.sample(obs)
        extras = {name: column.copy() for name, column in self._agent.extras().items()}
        results = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        next_obs, reward, terminated, truncated, _ = (np.stack(each) for each in zip(*results, strict=True))
        self._begins = terminated | truncated
        self._obs = [
            env.reset()[0] if ends else after
            for env, ends, after in zip(self._envs, self._begins, next_obs, strict=True)
        ]
        return {
            "obs": obs,
            "next_obs": next_obs,
            "action": actions,
            **extras,
            "reward": reward.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "version": np.zeros(len(obs), np.int64),
        }


def player(env_id: str, n: int = 4, **params: Any) -> tuple[RecurrentPPO, Player]:
    """An agent whose first actions depend much on what it remembers, and its player; its updates are eager."""
    envs = [gymnasium.make(env_id, max_episode_steps=SHORT[env_id]) for _ in range(n)]
    agent = RecurrentPPO(spec_of(envs[0]), seed=0, **(SMALL | {"update": "eager"} | params))
    of_policy = [weight for name, weight in agent.policy_net.named_parameters() if name.startswith("head.policy.")]
    with torch.no_grad():
        of_policy[-2].mul_(100)  # The last layer's; its biases follow.
    return agent, Player(agent, envs)


def optimised(agent: RecurrentPPO, items: Items) -> dict[str, float]:
    return floats(agent.opt(Whole(items)))


@pytest.mark.parametrize(
    ("env_id", "kind", "normalize"),
    [
        *(("CartPole-v1", "lstm", False), ("CartPole-v1", "gru", True)),
        *(("Pendulum-v1", "lstm", True), ("Pendulum-v1", "gru", False)),
    ],
)
def test_on_its_own_steps_every_ratio_is_1_when_an_opt_step_begins(env_id: str, kind: str, normalize: bool) -> None:
    """Also in rollouts that begin inside an episode, and after the ends of episodes inside them."""
    memory = {"kind": kind, "width": 6}
    agent, played = player(env_id, epochs=1, minibatches=1, memory=memory, normalize_observations=normalize)
    for _ in range(3):
        items = played.play()
        record = optimised(agent, items)
        assert record["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert record["kl"] == pytest.approx(0.0, abs=1e-6)
        assert record["clipped_share"] == 0.0
    assert items["state"].any(axis=1).all(), "the case must begin inside episodes"
    assert (items["terminated"] | items["truncated"]).any()
    forgetful = optimised(agent, items | {"state": np.zeros_like(items["state"])})
    assert forgetful["ratio_mean"] != pytest.approx(1.0, abs=1e-3), "the recorded state counts"


@torch.no_grad()
def evaluated_slowly(agent: RecurrentPPO, items: Items) -> dict[str, Array]:
    """Log-probabilities, entropies, values and advantages, by calls for single steps; each is ``[B, L]``."""
    given = {name: torch.from_numpy(column) for name, column in items.items()}
    choices = agent._choice(given).view(*items["reward"].shape, -1)
    found = {name: np.zeros(items["reward"].shape) for name in ("log_prob", "entropy", "value", "next", "advantage")}
    ends, nowhere = items["terminated"] | items["truncated"], torch.zeros(1, 1, dtype=torch.bool)
    for lane, t in np.ndindex(*ends.shape):
        if t == 0:
            memory, before = agent.config.memory.split(given["state"][lane : lane + 1])
        elif ends[lane, t - 1]:
            memory, before = torch.zeros_like(memory), torch.zeros_like(before)
        obs, beyond = (given[name][lane : lane + 1, t : t + 1] for name in ("obs", "next_obs"))
        outputs, value, after = agent.policy_net(obs, before[:, None], memory, nowhere)
        choice = choices[lane, t : t + 1]
        memory, before = after[:, 0], agent.actions.features(choice)
        found["log_prob"][lane, t] = agent.actions.log_prob(outputs, choice)
        found["entropy"][lane, t] = agent.actions.entropy(outputs)
        found["value"][lane, t] = value
        found["next"][lane, t] = agent.policy_net(beyond, before[:, None], memory, nowhere)[1]
    for lane in range(len(ends)):
        later = 0.0
        for t in reversed(range(ends.shape[1])):
            bootstrap = GAMMA * found["next"][lane, t] * (not items["terminated"][lane, t])
            delta = items["reward"][lane, t] + bootstrap - found["value"][lane, t]
            later = delta + GAMMA * LAMBDA * later * (not ends[lane, t])
            found["advantage"][lane, t] = later
    return found


@ENVS
def test_losses_are_those_of_the_formulas_step_by_step(env_id: str) -> None:
    agent, played = player(env_id, epochs=1, minibatches=1, normalize_advantages=False)
    played.play(5)
    items = played.play()
    found = evaluated_slowly(agent, items)
    np.testing.assert_allclose(found["log_prob"], items["log_prob"], atol=1e-5)
    record = optimised(agent, items)
    assert record["loss_policy"] == pytest.approx(-found["advantage"].mean(), rel=1e-4)
    assert record["loss_baseline"] == pytest.approx(0.5 * np.square(found["advantage"]).mean(), rel=1e-4)
    assert record["value_mean"] == pytest.approx(found["value"].mean(), abs=1e-5)
    assert record["entropy"] == pytest.approx(found["entropy"].mean(), rel=1e-5)


def test_a_minibatch_is_made_of_whole_rollouts() -> None:
    agent, played = player("CartPole-v1", minibatches=2, epochs=3)
    items, seen = played.play(), []
    learn = agent._learn
    agent._learn = lambda batch: (seen.append(batch["obs"].numpy()), learn(batch))[1]  # type: ignore[assignment, func-returns-value]
    optimised(agent, items)
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        together = np.concatenate((first, second))
        assert sorted(together.tolist()) == sorted(items["obs"].tolist())
    with pytest.raises(ConfigError, match=r"minibatches: expected a number that divides the 4 rollouts .* found 3"):
        player("CartPole-v1", minibatches=3)[0].opt(Whole(items))


def test_rows_without_a_recorded_state_are_refused_by_name() -> None:
    agent, played = player("CartPole-v1")
    items = {name: column for name, column in played.play().items() if name != "state"}
    with pytest.raises(ConfigError, match="replay: RecurrentPPO needs the columns state, which its actors record"):
        agent.opt(Whole(items))


@pytest.mark.parametrize("action", [Box(-2, 2, (2,)), MultiDiscrete([2, 3], start=[0, 5])])
def test_it_fits_and_its_captured_updates_are_the_eager_ones(action: gymnasium.Space[Any]) -> None:
    """With Discrete actions: test_conformance.py."""
    space = Dict({"place": Box(-1, 1, (2,), np.float32), "gear": Discrete(4, start=2)})
    params = {"share_layers": True, "normalize_observations": True, "memory": {"kind": "gru", "width": 6}}
    make = partial(RecurrentPPO, **(SMALL | params))
    check_agent(make, Structured(space, action), view=partial(Rollouts, length=6), steps=150)


@ENVS
def test_a_resumed_agent_goes_on_in_the_middle_of_an_episode_as_if_it_had_never_been_interrupted(
    env_id: str, tmp_path: Path
) -> None:
    agent, played = player(env_id, normalize_observations=True, update="captured")
    items = played.play()
    agent.opt(Whole(items))
    resumed, _ = player(env_id, normalize_observations=True, update="captured")
    resumed.load_training_state(through_a_file(agent.training_state(), tmp_path / "state"))
    resumed.train()
    for _ in range(3):
        for each in (agent, resumed):
            each.opt(Whole(items))
            each.begin(np.array([False, True, False, False]))
        np.testing.assert_array_equal(agent.sample(items["obs"][:, 0]), resumed.sample(items["obs"][:, 0]))
        np.testing.assert_array_equal(agent.extras()["state"], resumed.extras()["state"])
    assert_same_state(agent, resumed)


def test_it_remembers_a_cue() -> None:
    """By an LSTM; test_recurrent_agent.py trains both kinds of memory."""
    envs: list[gymnasium.Env[Any, Any]] = [Cue(4) for _ in range(16)]
    settings: dict[str, Any] = {"memory": {"width": 16}, "units": (16,), "lr": 0.01, "batch_size": 16}
    agent = RecurrentPPO(spec_of(envs[0]), seed=0, **settings)
    played = Player(agent, envs)
    for _ in range(40):
        agent.opt(Whole(played.play(20)))
    answers = played.play(20)
    assert answers["reward"][answers["terminated"]].mean() > 0.95
