"""Steps per second of one actor that pushes to a learner host and syncs models: DQN in CartPole and in Pong.

The floor of each figure is a bare loop over the same environments that acts as CleanRL's ``dqn.py`` does, with its
network: a plain forward pass and the best actions, or random ones with probability epsilon; nothing is stored or sent.
Several environments are a list, or the lanes of the vector environment that is made for them (``vector``): gymnasium's
CartPole in numpy, the emulator's own Pong in C++, on one thread. ``ratio`` compares steps per second of wall-clock, and
``to the faster`` those with the faster of both loops. ``of the processor`` compares steps per second of processor time
of all threads of this process, so it is valid even if no core is free for the thread that pushes. Actors and bare loops
take short turns, since the speed of a machine changes; the figures are medians of the ratios.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import Space
from gymnasium.wrappers import FrameStackObservation
from torch import nn

from actor.proxy import ReplayBufferProxy
from actor.sampling.guard import guard_envs
from actor.sampling.sampler import Sampler, require_lanes
from actor.worker import build_agreed_parts
from benchmarks.cleanrl import make_network
from benchmarks.client import Client
from benchmarks.report import report, run_as_actors_do
from benchmarks.serving import serve_learner
from common.agents.dqn import DQN
from common.data import Array
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
VECTORS: dict[str, str] = {
    "cartpole": "env={target: gymnasium:make_vec, "
    "params: {id: CartPole-v1, num_envs: %d, vectorization_mode: vector_entry_point}}",
    "pong": "env={target: common.envs.atari:make_vector, params: {id: ALE/Pong-v5, num_envs: %d}, frame_stack: 4}",
}
Round = Callable[[], int]
"""Takes a step in every lane; returns the number of steps, which lanes that begin another episode do not take."""


def seconds_a_step(take_a_round: Round) -> tuple[float, float]:
    """Seconds of wall-clock and of processor time of one step, the mean over ``SECONDS``."""
    started, computed, steps = time.perf_counter(), time.process_time(), 0
    while (elapsed := time.perf_counter() - started) < SECONDS:
        steps += take_a_round()
    return elapsed / steps, (time.process_time() - computed) / steps


def acting(server: LearnerServer, client: Client, agent: DQN, sampler: Sampler) -> Round:
    """A round of an actor; every ``SYNC_SECONDS`` the learner publishes a model."""
    published, opt_steps = time.perf_counter(), 0
    proxy = ReplayBufferProxy(client.schema, client.config.push, client.pusher.send)

    def take_a_round() -> int:
        nonlocal published, opt_steps
        before = client.counters.env_steps
        client.sync(agent)
        sampler.sample_and_push(agent, proxy)
        if time.perf_counter() - published > SYNC_SECONDS:
            published, opt_steps = time.perf_counter(), opt_steps + 1
            server.learner.publish(opt_steps)
        return client.counters.env_steps - before

    return take_a_round


def plain_envs(config: EnvConfig, n: int) -> list[Env]:
    """The actor's environments, with nothing of crossborder but the frames of the observations."""
    envs = [build_env(config) for _ in range(n)]
    return [FrameStackObservation(env, config.frame_stack) for env in envs] if config.frame_stack > 1 else envs


def choose(net: nn.Module, obs: Any, spaces: Sequence[Space[Any]]) -> Array:
    """The best actions, or random ones."""
    if random.random() < EPSILON:
        return np.array([space.sample() for space in spaces])
    with torch.inference_mode():
        return net(torch.from_numpy(np.asarray(obs))).argmax(dim=1).numpy()  # type: ignore[no-any-return]


def bare(envs: list[Env], net: nn.Module) -> Round:
    """A round of the bare loop: it acts, steps and resets."""
    obs, spaces = [env.reset(seed=j)[0] for j, env in enumerate(envs)], [env.action_space for env in envs]

    def take_a_round() -> int:
        for j, action in enumerate(choose(net, obs, spaces)):
            obs[j], _, terminated, truncated, _ = envs[j].step(action)
            if terminated or truncated:
                obs[j], _ = envs[j].reset()
        return len(envs)

    return take_a_round


def bare_vector(kind: str, n: int, net: nn.Module) -> Round:
    """The same with a vector environment, which resets a lane in the round after an end."""
    own: dict[str, Any] = {"num_threads": 1, "use_fire_reset": False} if kind == "pong" else {}
    name = "ALE/Pong-v5" if kind == "pong" else "CartPole-v1"
    envs = gymnasium.make_vec(name, n, vectorization_mode="vector_entry_point", **own)
    obs, spaces, ended = envs.reset(seed=0)[0], [envs.single_action_space] * n, np.zeros(n, np.bool_)

    def take_a_round() -> int:
        nonlocal obs, ended
        begins = ended
        obs, _, terminated, truncated, _ = envs.step(choose(net, obs, spaces))
        ended = terminated | truncated
        return n - int(np.count_nonzero(begins))

    return take_a_round


@contextmanager
def actor(kind: str, n_envs: int, *more: str) -> Iterator[tuple[Round, LearnerServer]]:
    """A round of an actor with its own learner host."""
    with (
        serve_learner("cartpole", *KINDS[kind], f"envs_per_actor={n_envs}", *more) as server,
        Client(server.ingest.address, local_trust(server.config.server)) as client,
    ):
        config = client.config
        parts = build_agreed_parts(config, client.schema, seed=0, epsilon=EPSILON)
        agent = parts.agent
        assert isinstance(agent, DQN)
        agent.train()
        guard_envs(require_lanes(parts), config.env, client.counters, Busy(), threading.Event())
        yield acting(server, client, agent, Sampler(parts, client.counters, seed=0)), server


def measure(kind: str, n_envs: int) -> list[dict[str, object]]:
    """The actors, each beside its bare loop."""
    net = make_network((4,), 2) if kind == "cartpole" else make_network((4, 84, 84), 6)
    with ExitStack() as stack:
        round_of, server = stack.enter_context(actor(kind, n_envs))
        actors, floors = {"list": round_of}, {"list": bare(plain_envs(server.config.env, n_envs), net)}
        if n_envs > 1:
            round_of, _ = stack.enter_context(actor(kind, 1, VECTORS[kind] % n_envs))
            actors["vector"], floors["vector"] = round_of, bare_vector(kind, n_envs, net)
        ways = [*actors.values(), *floors.values()]
        turns = np.array([[seconds_a_step(way) for way in ways] for _ in range(TURNS + 1)][1:])  # [turns, ways, 2]
    ours, theirs = np.split(turns, 2, axis=1)
    ratios, to_the_faster = np.median(theirs / ours, axis=0), theirs[..., 0].min(axis=1, keepdims=True) / ours[..., 0]
    return [
        {
            "kind": kind,
            "envs": f"{n_envs}, {name}" if n_envs > 1 else n_envs,
            "steps/s": float(1 / np.median(ours[:, i, 0])),
            "floor steps/s": float(1 / np.median(theirs[:, i, 0])),
            "ratio": float(ratios[i, 0]),
            "to the faster": float(np.median(to_the_faster[:, i])),
            "of the processor": float(ratios[i, 1]),
        }
        for i, name in enumerate(actors)
    ]


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.actor", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for kind in arguments.kind for n_envs in arguments.envs for row in measure(kind, n_envs)]
    report("actor", "default push settings, acknowledged, exactly once, models synced", rows, TURNS)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.actor")
    main()
