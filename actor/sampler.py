"""The environment loop, written once: act, step, process, push."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from actor.guard import EpisodeLostError
from actor.stat import ActorCounters
from common.data import Array, Items
from common.errors import PluginError
from common.interfaces import Agent, Step
from common.parts import Lane
from common.processors import RoundProcessor


class ItemSink(Protocol):
    """Takes a sampler's items. The sampler cannot tell whether a network lies behind it."""

    def push(self, items: Items) -> None:
        """Take items; blocks while the other side holds back."""


class Sampler:
    """Steps environments in turn, an agent acting in all of them at once, and pushes the items (border's SyncSampler).

    The sampler resets each environment itself, so ``next_obs`` at the end of an episode is always the true final
    observation, also where the environment carries gymnasium's Autoreset wrapper. After an ``EpisodeLostError`` of its
    environment a lane begins a new episode, and the old one has no end.

    Args:
        lanes: environments of one kind, none of them vectorised, each with a step processor of its own.
        counters: counts steps and episodes, and where the time goes.
        seed: environment j is first reset with ``seed + j``; later resets go on from there.
    """

    def __init__(self, lanes: Sequence[Lane], counters: ActorCounters, seed: int) -> None:
        self._lanes, self._counters = lanes, counters
        self._round = RoundProcessor([lane.processor for lane in lanes])
        self._seeds: list[int | None] = [seed + j for j in range(len(lanes))]  # Of the next reset; None from then on.
        self._obs: list[Array | None] = [None] * len(lanes)  # None: the environment is to be reset.

    def sample_and_push(self, agent: Agent, sink: ItemSink) -> None:
        """Take one step in every environment and push the items that the step processors make of the steps.

        Raises:
            PluginError: the agent gave another number of actions than it was given observations.
        """
        began = perf_counter()
        obs = [self._reset(j) if present is None else present for j, present in enumerate(self._obs)]
        observed = perf_counter()
        actions = agent.sample(np.array(obs))
        acted = perf_counter()
        if len(actions) != len(obs):
            raise PluginError(f"agent.sample: expected actions for {len(obs)} observations, found {len(actions)}")
        made = self._round.process([self._step(j, obs[j], action) for j, action in enumerate(actions)])
        self._counters.inference_seconds += acted - observed
        self._counters.env_seconds += observed - began + perf_counter() - acted
        for items in made:
            sink.push(items)

    def _step(self, j: int, obs: Array, action: Any) -> Step | None:
        """Step environment j; None if it lost its episode."""
        lane = self._lanes[j]
        try:
            next_obs, reward, terminated, truncated, info = lane.env.step(action)
        except EpisodeLostError:  # The reset that follows makes the step processor forget the steps it still holds.
            self._obs[j] = None
            self._counters.abandon(j)
            return None
        next_obs = np.array(next_obs)  # A copy: the environment may write its next observation into the same array.
        step = Step(obs, action, float(reward), next_obs, bool(terminated), bool(truncated))
        done = step.terminated or step.truncated
        self._obs[j] = None if done else next_obs
        self._counters.step(j, step.reward, done, _success(info) if done else None)
        return step

    def _reset(self, j: int) -> Array:
        lane, seed = self._lanes[j], self._seeds[j]
        self._seeds[j] = None
        obs, _ = lane.env.reset(seed=seed)
        lane.processor.reset()
        return np.array(obs)


def _success(info: dict[str, Any]) -> bool | None:
    """Whether an episode succeeded, by the info of its last step; None where the environment does not say."""
    success = info.get("is_success")
    return None if success is None else bool(success)
