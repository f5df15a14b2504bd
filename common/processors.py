"""Step processors that come with the system."""

from __future__ import annotations

import numpy as np

from common.data import Column, Items, Schema
from common.envs import column_of
from common.interfaces import EnvSpec, Step


class OneStep:
    """One transition per step: border's SimpleStepProcessor with terminated and truncated kept apart."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema(
            (
                column_of("obs", spec.observation_space),
                column_of("action", spec.action_space),
                Column.of("reward", np.float32),
                column_of("next_obs", spec.observation_space),
                Column.of("terminated", np.bool_),
                Column.of("truncated", np.bool_),
            )
        )

    def reset(self) -> None:
        """Nothing is remembered between steps."""

    def process(self, step: Step) -> Items:
        return {
            "obs": step.obs[None],
            "action": np.asarray(step.action)[None],
            "reward": np.array((step.reward,), np.float32),
            "next_obs": step.next_obs[None],
            "terminated": np.array((step.terminated,)),
            "truncated": np.array((step.truncated,)),
        }
