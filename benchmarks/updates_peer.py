"""Gradient steps of stable-baselines3, of sbx (the same in JAX), or of CleanRL's lines, for comparison.

``CleanRL, compiled`` has these by torch's compiler (``benchmarks.cleanrl``). It runs where these packages are
installed. It imports nothing of crossborder, and of the packages only the one that it measures. The job, JSON as the
only argument, names ``system``, ``kind``, ``burst``, the updates in one call, and ``batch``, the size of a batch. After
the line ``ready``, each line on stdin, a number of seconds, is answered by a line of JSON: ``updates`` and ``cpu``,
seconds of processor time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

ROWS = 20_000


class RandomEnv(gymnasium.Env[Any, Any]):
    """Observations and rewards are random numbers; one step in twenty ends an episode.

    Args:
        observations: numbers in an observation.
        actions: dimensions of an action.
        discrete: whether actions are discrete; then ``actions`` is their number.
    """

    def __init__(self, observations: int, actions: int, *, discrete: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (observations,), np.float32)
        box = gymnasium.spaces.Box(-1, 1, (actions,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions) if discrete else box
        self._rng = np.random.default_rng(0)

    def _observe(self) -> Any:
        return self._rng.standard_normal(self.observation_space.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002 - it changes nothing
        return self._observe(), float(self._rng.random()), bool(self._rng.random() < 0.05), False, {}


ENVS: dict[str, dict[str, Any]] = {
    "DQN": {"observations": 4, "actions": 2, "discrete": True},
    "SAC": {"observations": 17, "actions": 6, "discrete": False},
    "CrossQ": {"observations": 17, "actions": 6, "discrete": False},
    "TQC": {"observations": 17, "actions": 6, "discrete": False},
}
BATCHES = {"DQN": 64, "SAC": 256, "CrossQ": 256, "TQC": 256}
UNITS: dict[str, Any] = {
    "DQN": [256, 256],
    "SAC": [256, 256],
    "CrossQ": {"pi": [256, 256], "qf": [512, 512]},
    "TQC": [256, 256],
}


def make_model(package: str, kind: str, batch: int) -> Any:
    """A model of the package, its replay full of random rows."""
    configure = importlib.import_module("stable_baselines3.common.logger").configure
    algorithm = getattr(importlib.import_module(package), kind)
    settings = {"batch_size": batch, "learning_starts": 0, "policy_kwargs": {"net_arch": UNITS[kind]}}
    model = algorithm("MlpPolicy", RandomEnv(**ENVS[kind]), seed=0, device="cpu", buffer_size=ROWS, **settings)
    model.set_logger(configure(None, []))
    env = RandomEnv(**ENVS[kind])
    obs, _ = env.reset()
    for _ in range(ROWS):
        action = env.action_space.sample()
        found, reward, terminated, _, _ = env.step(action)
        model.replay_buffer.add(obs[None], found[None], np.array([action]), np.array([reward]), [terminated], [{}])
        obs = env.reset()[0] if terminated else found
    return model


def cleanrl_dqn(model: Any, batch: int, *, compiled: bool) -> Callable[[], None]:
    """CleanRL's update and network, on the replay of stable-baselines3."""
    cleanrl = importlib.import_module("benchmarks.cleanrl")
    learn = cleanrl.make_learn(cleanrl.make_network((4,), 2), compiled=compiled)

    def update() -> None:
        data = model.replay_buffer.sample(batch)
        learn(data.observations, data.actions, data.rewards.flatten(), data.next_observations, data.dones.flatten())

    return update


def make_update(system: str, kind: str, burst: int, batch: int) -> Callable[[], None]:
    """A call of ``burst`` updates."""
    if system != "sbx":
        importlib.import_module("torch").set_num_threads(1)
    model = make_model("sbx" if system == "sbx" else "stable_baselines3", kind, batch)
    if system.startswith("CleanRL"):
        assert (kind, burst) == ("DQN", 1), "only DQN, one update a call"
        return cleanrl_dqn(model, batch, compiled=system != "CleanRL")

    def update() -> None:
        model.train(gradient_steps=burst, batch_size=batch)

    return update


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # On a GPU, others take turns.
    update = make_update(job["system"], job["kind"], job["burst"], job["batch"])
    for _ in range(3):  # Compiles.
        update()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds, calls = float(line), 0
        began, computed = time.perf_counter(), time.process_time()
        while (elapsed := time.perf_counter() - began) < seconds:
            update()
            calls += 1
        answer = {
            "updates": calls * job["burst"] / elapsed,
            "cpu": (time.process_time() - computed) / calls / job["burst"],
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
