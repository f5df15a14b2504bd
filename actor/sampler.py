"""The environment loop, written once: act, step, process, push."""

from __future__ import annotations

import numpy as np

from actor.stat import ActorCounters
from common.data import Array
from common.envs import Env
from common.interfaces import Agent, ItemSink, Step, StepProcessor


class Sampler:
    """Steps one environment with an agent and pushes the items (border's SyncSampler).

    The sampler resets the environment itself, so ``next_obs`` at the end of an episode is always the true final
    observation, also where the environment carries gymnasium's Autoreset wrapper.

    Args:
        env: one environment, not vectorised.
        processor: turns steps into items.
        counters: counts steps and episodes.
        seed: of the first reset; later resets go on from there.
    """

    def __init__(self, env: Env, processor: StepProcessor, counters: ActorCounters, seed: int) -> None:
        self._env, self._processor, self._counters = env, processor, counters
        self._seed: int | None = seed
        self._obs: Array | None = None

    def sample_and_push(self, agent: Agent, sink: ItemSink) -> None:
        """Take one environment step and push what the step processor makes of it."""
        obs = self._reset() if self._obs is None else self._obs
        action = agent.sample(obs[None])[0]
        next_obs, reward, terminated, truncated, _ = self._env.step(action)
        next_obs = np.array(next_obs)  # A copy: the environment may write its next observation into the same array.
        step = Step(obs, action, float(reward), next_obs, bool(terminated), bool(truncated))
        done = step.terminated or step.truncated
        self._obs = None if done else next_obs
        self._counters.step(step.reward, done)
        items = self._processor.process(step)
        if items is not None:
            sink.push(items)

    def _reset(self) -> Array:
        obs, _ = self._env.reset(seed=self._seed)
        self._seed = None
        self._processor.reset()
        return np.array(obs)
