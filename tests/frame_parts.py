"""Parts that act on stacked pictures: ``CountingEnv`` on film, and an agent that checks every picture it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from common.data import Array, Items
from tests.parts import EPISODE, CheckingAgent, CountingEnv, check_transitions

STACK = np.arange(-3, 1)


class Filmed(gymnasium.ObservationWrapper[Array, int, Array]):
    """Films its environment: observations of three float32 as pictures of 1024 bytes that repeat them."""

    def __init__(self, env: gymnasium.Env[Array, int]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (32, 32), np.uint8)

    def observation(self, observation: Array) -> Array:
        return np.resize(observation.view(np.uint8), (32, 32))


def filmed_counting_env() -> gymnasium.Env[Array, int]:
    """``CountingEnv`` as pictures ``[32, 32]``; with ``env.frame_stack: 4``, agents see ``[4, 32, 32]``."""
    return Filmed(CountingEnv())


def developed(stacks: Array) -> Array:
    """What ``Filmed`` has filmed: ``[B, k, 32, 32]`` to ``[B, k, 3]``, after seeing that each picture is whole."""
    pictures = stacks.reshape(*stacks.shape[:2], -1)
    observations: Array = np.ascontiguousarray(pictures[..., :12]).view(np.float32)
    np.testing.assert_array_equal(pictures, pictures[..., np.arange(1024) % 12])
    return observations


def check_filmed(items: Mapping[str, Array]) -> Items:
    """See that every stack holds the last four pictures of its episode; the items with what was filmed last."""
    newest: Items = {}
    for name in ("obs", "next_obs"):
        stacks = developed(items[name])
        newest[name] = stacks[:, -1]
        tag, step, episode = newest[name].T
        first = episode + np.maximum(1, EPISODE * episode)
        steps = np.maximum(first[:, None], step[:, None] + STACK)
        np.testing.assert_array_equal(stacks[..., 0], np.repeat(tag[:, None], 4, axis=1))
        np.testing.assert_array_equal(stacks[..., 1], steps)
        np.testing.assert_array_equal(stacks[..., 2], np.repeat(episode[:, None], 4, axis=1))
    return {**items, **newest}


class FilmCritic(CheckingAgent):
    """A ``CheckingAgent`` for ``filmed_counting_env`` with ``env.frame_stack: 4``."""

    def sample(self, obs: Any) -> Array:
        return super().sample(developed(obs)[:, -1])

    def check(self, items: Mapping[str, Array]) -> None:
        check_transitions(check_filmed(items))
