"""Steps per second of one actor that pushes to a learner host and syncs models: DQN in CartPole and in Pong.

The floor of each figure is a bare loop over the same environments that acts as CleanRL's ``dqn.py`` (MIT licence) does:
a plain forward pass and the best actions, or random ones with probability epsilon; nothing is stored or sent. ``ratio``
compares steps per second of wall-clock. ``of the processor`` compares steps per second of processor time of all threads
of this process, so it is valid even if no core is free for the thread that pushes. The actor and the bare loop take
short turns, since the speed of a machine changes; the figures are medians of the ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium.wrappers import FrameStackObservation
from torch import nn

from actor.proxy import ReplayBufferProxy
from actor.sampling.guard import guard_envs
from actor.sampling.sampler import Sampler, lanes_of
from actor.worker import build_agreed_parts
from benchmarks.client import Client
from benchmarks.report import report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.agents.dqn import DQN
from common.lanes.building import Env, build_env
from common.lanes.lanes import Busy
from common.plugins.part_config import EnvConfig
from learner.loop.server import LearnerServer, local_trust

SECONDS = 0.5
TURNS = 15
SYNC_SECONDS = 0.1
EPSILON = 0.05
PARAMS = "explorer: {start: 0.05, final_step: 0}"
KINDS: dict[str, tuple[str, ...]] = {
    "cartpole": (f"agent={{target: common.agents.dqn:DQN, params: {{units: [256, 256], {PARAMS}}}}}",),
    "pong": (
        "env={target: common.envs.atari:make, params: {id: ALE/Pong-v5}, frame_stack: 4}",
        "agent={target: common.agents.dqn:DQN, "
        f"params: {{network: {{target: common.agents.networks:NatureCnn}}, {PARAMS}}}}}",
        "replay.capacity=20000",
    ),
}
Round = Callable[[], None]


def seconds_a_round(take_a_round: Round) -> tuple[float, float]:
    """Seconds of wall-clock and of processor time of one round, the mean over ``SECONDS``."""
    started, computed, rounds = time.perf_counter(), time.process_time(), 0
    while (elapsed := time.perf_counter() - started) < SECONDS:
        take_a_round()
        rounds += 1
    return elapsed / rounds, (time.process_time() - computed) / rounds


def acting(server: LearnerServer, client: Client, agent: DQN, sampler: Sampler) -> Round:
    """A round of an actor; every ``SYNC_SECONDS`` the learner publishes a model."""
    published, opt_steps = time.perf_counter(), 0
    proxy = ReplayBufferProxy(client.schema, client.config.push, client.pusher)

    def take_a_round() -> None:
        nonlocal published, opt_steps
        client.sync(agent)
        sampler.sample_and_push(agent, proxy)
        if time.perf_counter() - published > SYNC_SECONDS:
            published, opt_steps = time.perf_counter(), opt_steps + 1
            server.learner.publish(opt_steps)

    return take_a_round


def plain_envs(config: EnvConfig, n: int) -> list[Env]:
    """The actor's environments, with nothing of crossborder but the frames of the observations."""
    envs = [build_env(config) for _ in range(n)]
    return [FrameStackObservation(env, config.frame_stack) for env in envs] if config.frame_stack > 1 else envs


def bare(envs: list[Env], net: nn.Module) -> Round:
    """A round of the bare loop: it acts, steps and resets."""
    obs = [env.reset(seed=j)[0] for j, env in enumerate(envs)]

    def take_a_round() -> None:
        if random.random() < EPSILON:
            actions = np.array([env.action_space.sample() for env in envs])
        else:
            with torch.inference_mode():
                actions = net(torch.from_numpy(np.array(obs))).argmax(dim=1).numpy()
        for j, action in enumerate(actions):
            obs[j], _, terminated, truncated, _ = envs[j].step(action)
            if terminated or truncated:
                obs[j], _ = envs[j].reset()

    return take_a_round


def measure(kind: str, n_envs: int) -> dict[str, object]:
    with (
        serve_learner("cartpole", *KINDS[kind], f"envs_per_actor={n_envs}") as server,
        Client(server.ingest.address, local_trust(server.config.server)) as client,
    ):
        config = client.config
        parts = build_agreed_parts(config, client.schema, seed=0, epsilon=EPSILON)
        agent = parts.agent
        assert isinstance(agent, DQN)
        agent.train()
        guard_envs(lanes_of(parts), config.env, client.counters, Busy())
        ours = acting(server, client, agent, Sampler(parts, client.counters, seed=0))
        floor = bare(plain_envs(config.env, n_envs), agent.qnet)
        turns = [(*seconds_a_round(ours), *seconds_a_round(floor)) for _ in range(TURNS + 1)][1:]
    elapsed, _, elapsed_bare, _ = map(statistics.median, zip(*turns, strict=True))
    return {
        "kind": kind,
        "envs": n_envs,
        "steps/s": n_envs / elapsed,
        "floor steps/s": n_envs / elapsed_bare,
        "ratio": statistics.median(theirs / own for own, _, theirs, _ in turns),
        "of the processor": statistics.median(theirs / own for _, own, _, theirs in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.actor", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(kind, n_envs) for kind in arguments.kind for n_envs in arguments.envs]
    report("actor", "default push settings, acknowledged, exactly once, models synced", rows, TURNS)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.actor")
    main()
