from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from learner.evaluation.policy import load_policy
from learner.storage.checkpoint import Checkpoints

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
        env=EnvConfig(target="tests.learner.evaluation.test_policy:Observing", params={"space": space}),
        agent=PluginConfig(target="common.agents.dqn:DQN", params={"units": [8]}),
    )
    parts = build_parts(config, seed=1)
    Checkpoints(tmp_path, config, "run").save("best", parts.agent, opt_steps=1)
    policy, env = load_policy(tmp_path / "best"), Observing(space)
    observation, _ = env.reset()
    dtype = parts.schema.columns[0].dtype
    for _ in range(3):
        action = policy(observation)
        flat = np.asarray(gymnasium.spaces.utils.flatten(env.observation_space, observation), dtype)
        parts.agent.eval()
        assert action == parts.agent.sample(flat[None])[0]
        observation, *_ = env.step(action)
