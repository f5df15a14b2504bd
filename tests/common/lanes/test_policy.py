from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from common.agents.dqn import DQN
from common.config.actor_config import ActorConfig
from common.data import Array, Model
from common.errors import PluginError
from common.interfaces import EnvSpec, FixedAgent
from common.lanes.building import spec_of, stacked_spec
from common.lanes.policy import Policy, set_opt_steps
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from common.spaces import flatten
from learner.storage.checkpoint import Checkpoints, load_policy
from tests.frame_parts import FilmCritic, filmed_counting_env
from tests.parts import CheckingAgent, CountingEnv

BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": BOX,
    "goal": gymnasium.spaces.Dict({"observation": BOX, "desired_goal": BOX, "achieved_goal": BOX}),
    "discrete": gymnasium.spaces.Discrete(7, start=3),
    "tuple": gymnasium.spaces.Tuple((gymnasium.spaces.MultiDiscrete([2, 3]), BOX)),
}


class Observing(gymnasium.Env[Any, Any]):
    """Observations of any space; an episode has three steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: str) -> None:
        self.observation_space, self._steps = SPACES[space], 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        return self.observation_space.sample(), 0.0, self._steps == 3, False, {}


@pytest.mark.parametrize("space", SPACES)
def test_a_saved_policy_takes_the_environments_own_observations(tmp_path: Path, space: str) -> None:
    config = ActorConfig(
        env=EnvConfig(target="tests.common.lanes.test_policy:Observing", params={"space": space}),
        agent=PluginConfig(target="common.agents.dqn:DQN", params={"units": [8]}),
    )
    parts = build_parts(config, seed=1)
    Checkpoints(tmp_path, config, "run").save("best", parts.agent, opt_steps=1)
    policy, env = load_policy(tmp_path / "best", allow=["tests"]), Observing(space)
    observation, _ = env.reset()
    parts.agent.eval()
    for _ in range(3):
        action = policy(observation)
        leaves = flatten(parts.frames.observation_space, observation)
        batch = {path: leaf[None] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[None]
        assert action == parts.agent.sample(batch)[0]
        observation, *_ = env.step(action)


class Remembering(CheckingAgent):
    """Acts by the number of steps since its last ``begin``."""

    steps = 0

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        assert begins.tolist() == [True]
        self.steps = 0

    def sample(self, obs: Array) -> Array:
        self.steps += 1
        return np.array([self.steps])


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        ("box", np.zeros(3), "expected float32 [2] of -1 to 1, found float64 [3] from 0 to 0"),
        ("box", np.zeros((5, 2)), "expected float32 [2] of -1 to 1, found float64 [5, 2] from 0 to 0"),
        ("box", None, "expected float32 [2] of -1 to 1, found None"),
        (
            "goal",
            {"observation": np.zeros(2)},
            "leaf 'achieved_goal': expected float32 [2] of -1 to 1, found no such leaf",
        ),
        ("goal", {name: np.zeros(1) for name in ("observation", "desired_goal", "achieved_goal")}, "found float64 [1]"),
        ("discrete", 0.5, "expected int64 [] of 3 to 9, found float64 [] 0.5"),
        ("tuple", (np.zeros(2, np.int64),), "leaf '1': expected float32 [2] of -1 to 1, found no such leaf"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_in_words(space: str, observation: Any, message: str) -> None:
    spec = spec_of(Observing(space))
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    with pytest.raises(PluginError, match=f"^policy: observation: .*{re.escape(message)}"):
        policy(observation)


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        ("discrete", 10, "expected int64 [] of 3 to 9, found int64 [] 10"),
        ("tuple", (np.array([1, 3]), np.zeros(2)), "leaf '0': expected int64 [2], found int64 [2] from 1 to 3"),
    ],
)
def test_a_number_outside_its_space_with_which_the_agent_fails_is_told(
    space: str, observation: Any, message: str
) -> None:
    spec = spec_of(Observing(space))
    policy = Policy(DQN(spec, seed=0, epsilon=0.0, device="cpu", units=[8]), spec)
    with pytest.raises(PluginError, match=f"^policy: observation: {re.escape(message)}$"):
        policy(observation)


def test_a_lane_has_one_observation_in_a_call() -> None:
    spec = spec_of(CountingEnv())
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    with pytest.raises(PluginError, match=r"each of the lanes \[2, 2\], all different, found 2 observations"):
        policy([np.zeros(3, np.float32)] * 2, lanes=[2, 2])


@pytest.mark.parametrize("lanes", [[-1], [0.5], ["0"], [True], [float("nan")], 3, "0"])
def test_lanes_are_numbers_of_0_or_more(lanes: Any) -> None:
    spec = spec_of(CountingEnv())
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    named = f"^policy: lanes: expected a list of numbers of lanes, 0 or more, found {re.escape(repr(lanes))}"
    with pytest.raises(PluginError, match=named):
        policy.begin(lanes)
    with pytest.raises(PluginError, match=named):
        policy([np.zeros(3, np.float32)], lanes=lanes)


def test_no_lanes_have_no_actions() -> None:
    spec = spec_of(CountingEnv())
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    assert policy([], lanes=[]) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_observation_with_a_value_that_is_not_finite_is_refused(value: float) -> None:
    spec = spec_of(Observing("goal"))
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    observation = {name: np.zeros(2) for name in ("observation", "desired_goal", "achieved_goal")}
    observation["desired_goal"][1] = value
    with pytest.raises(PluginError, match=r"^policy: observation 'desired_goal': expected finite values, found"):
        policy(observation)


def test_a_policy_with_a_memory_hears_where_episodes_begin() -> None:
    spec = spec_of(CountingEnv())
    policy = Policy(Remembering(spec, seed=0, epsilon=0.0, device="cpu"), spec)
    obs = np.zeros(3, np.float32)
    assert [policy(obs), policy(obs)] == [1, 2]
    policy.begin()
    assert [policy(obs), policy(obs)] == [1, 2]


def test_a_policy_of_stacked_frames_takes_single_frames() -> None:
    env = filmed_counting_env()
    frames = spec_of(env)
    policy = Policy(FilmCritic(stacked_spec(frames, 4), seed=0, epsilon=0.0, device="cpu"), frames, frame_stack=4)
    for _ in range(2):
        obs, done = env.reset()[0], False
        policy.begin()
        while not done:
            obs, _, terminated, truncated, _ = env.step(policy(obs))  # It asserts that the action is right.
            done = terminated or truncated


# Of several episodes at a time.

MEMORY: dict[str, Any] = {"units": [8], "memory": {"width": 8}}


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize(
    ("agent", "params"),
    [
        ("common.agents.r2d2:R2D2", MEMORY),
        ("common.agents.recurrent_ppo:RecurrentPPO", MEMORY),
        ("common.agents.dqn:DQN", {"units": [8]}),
    ],
)
def test_a_policy_plays_each_of_several_episodes_as_if_it_played_it_alone(
    agent: str, params: dict[str, Any], frame_stack: int
) -> None:
    config = ActorConfig(
        env=EnvConfig(target="tests.parts:CountingEnv", frame_stack=frame_stack),
        agent=PluginConfig(target=agent, params=params),
    )
    parts = build_parts(config, seed=1)
    parts.agent.eval()
    several, single = (Policy(parts.agent, parts.frames, frame_stack) for _ in range(2))
    alone = Policy(build_parts(config, seed=1).agent, parts.frames, frame_stack)
    rng = np.random.default_rng(0)
    for step, lanes in enumerate(([3], [0, 3], [7, 3, 0], [3, 7])):
        observations = [rng.normal(size=3).astype(np.float32) for _ in lanes]
        if step == 3:
            several.begin([7])
        actions = several(observations, lanes)
        assert actions[lanes.index(3)] == alone(observations[lanes.index(3)])
        assert len(actions) == len(lanes)
    with pytest.raises(PluginError, match=r"for each of the lanes \[.*\], all different, found 1 observations"):
        single(observations[:1], [0, 1])


def test_a_policy_goes_on_in_its_first_episode_when_others_join() -> None:
    env = filmed_counting_env()
    frames = spec_of(env)
    agent = OfLanes(stacked_spec(frames, 4), seed=0, epsilon=0.0, device="cpu")
    policy, first, second = Policy(agent, frames, frame_stack=4), env.reset()[0], filmed_counting_env().reset()[0]
    obs, *_ = env.step(policy(first))
    obs, *_ = env.step(policy(obs))
    seen = agent.seen[-1]
    policy([second, obs], [1, 0])
    np.testing.assert_array_equal(agent.seen[-1][1, :-1], seen[0, 1:])
    policy(obs)
    assert agent.seen[-1].shape == seen.shape, "without lanes, it is lane 0"


class OfLanes(FilmCritic):
    """Takes lanes, and keeps the stacks that it has seen."""

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.seen: list[Array] = []

    def sample(self, obs: Any, lanes: Array | None = None) -> Array:
        self.seen.append(obs.copy())
        return super().sample(obs)


class Coarse(FixedAgent):
    """Has weights of a dtype that numpy does not know, and adopts those that travel in its place."""

    def __init__(self) -> None:
        self.weights, self.opt_steps = torch.tensor([0.5, 1 / 3]).bfloat16(), 9

    def sample(self, obs: Any) -> Array:
        return np.zeros(len(obs), np.int64)

    def model_info(self) -> dict[str, torch.Tensor]:
        return {"w": self.weights}

    def sync_model(self, model: Model) -> None:
        self.opt_steps = model.version.opt_steps
        self.weights.copy_(torch.from_numpy(model.params["w"]))


def test_an_agent_counts_other_opt_steps_with_the_tensors_that_it_has() -> None:
    agent = Coarse()
    before = agent.weights.clone()
    set_opt_steps(agent, 4)
    assert agent.opt_steps == 4
    assert torch.equal(agent.weights, before)


@pytest.mark.parametrize(("opt_steps", "is_greedy"), [(100, True), (0, False)])
def test_a_policy_explores_as_far_as_the_schedule_of_its_run_had_come(
    tmp_path: Path, opt_steps: int, is_greedy: bool
) -> None:
    params = {"units": [8], "explorer": {"kind": "epsilon_greedy", "start": 1.0, "final_step": 100}}
    env = EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"})
    config = ActorConfig(env=env, agent=PluginConfig(target="common.agents.dqn:DQN", params=params))
    Checkpoints(tmp_path, config, "run").save("best", build_parts(config, seed=1).agent, opt_steps=opt_steps)
    greedy, exploring = load_policy(tmp_path / "best"), load_policy(tmp_path / "best")
    exploring.explore()
    observations = np.random.default_rng(0).random((64, 4), np.float32)
    asked = observations, np.ones(64, bool), np.arange(64)
    actions = [policy.sample(*asked).tolist() for policy in (greedy, exploring)]  # type: ignore[union-attr]
    assert (actions[0] == actions[1]) == is_greedy
