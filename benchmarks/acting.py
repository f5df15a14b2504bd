"""CartPole steps per second of one actor, by the environments it steps: DQN acts, and nobody takes the batches.

Beside each figure the floor: the same agent and environments in a bare loop that keeps nothing. Seconds are those of
the processor, which other processes take no part in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from actor.proxy import ReplayBufferProxy
from actor.sampler import Sampler
from actor.stat import ActorCounters
from benchmarks.report import median, report
from common.config import ActorConfig
from common.data import Items, ModelVersion
from common.part_config import EnvConfig, PluginConfig
from common.parts import Parts, build_parts

SECONDS = 1.0
CONFIG = ActorConfig(
    env=EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"}),
    agent=PluginConfig(target="common.agents.dqn:DQN", params={"explorer": {"final_step": 0}}),
)


class Nowhere:
    """A ``BatchSink`` that forgets."""

    def send(self, items: Items, rows: int, behaviour: ModelVersion) -> None:
        """Nothing is kept."""


def rounds_per_second(take_a_round: Callable[[], None]) -> float:
    started, rounds = time.process_time(), 0
    while (elapsed := time.process_time() - started) < SECONDS:
        take_a_round()
        rounds += 1
    return rounds / elapsed


def sampling(parts: Parts) -> Callable[[], None]:
    """A round as an actor takes it."""
    proxy = ReplayBufferProxy(parts.schema, CONFIG.push, Nowhere())
    sampler = Sampler(parts.lanes, ActorCounters(), seed=0)
    return lambda: sampler.sample_and_push(parts.agent, proxy)


def bare(parts: Parts) -> Callable[[], None]:
    """A round that only acts, steps and resets."""
    envs = [lane.env for lane in parts.lanes]
    obs = [env.reset(seed=j)[0] for j, env in enumerate(envs)]

    def take_a_round() -> None:
        for j, action in enumerate(parts.agent.sample(np.array(obs))):
            obs[j], _, terminated, truncated, _ = envs[j].step(action)
            if terminated or truncated:
                obs[j], _ = envs[j].reset()

    return take_a_round


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for n_envs in (1, 2, 4, 8, 16):
        parts = build_parts(CONFIG, seed=0, epsilon=0.05, n_envs=n_envs)
        parts.agent.train()
        ours = n_envs * median(partial(rounds_per_second, sampling(parts)))
        floor = n_envs * median(partial(rounds_per_second, bare(parts)))
        rows.append({"envs": n_envs, "steps/s": ours, "floor steps/s": floor, "ratio": ours / floor})
    report("acting", "one process, one thread, no network", rows)


if __name__ == "__main__":
    main()
