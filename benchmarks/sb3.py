"""Train with stable-baselines3 or sbx, for comparison; runs if they are installed and imports nothing of crossborder.

The job, JSON as the only argument, ends with its environment steps, or as soon as a score is at least its ``target``.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn


class MinAtarNetwork(BaseFeaturesExtractor):  # type: ignore[misc] # without the package it has no type
    """The network of MinAtar's authors up to its outputs (arXiv:1903.03176), for observations ``[10, 10, C]``."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=128)
        convolution = nn.Conv2d(observation_space.shape[-1], 16, 3)
        self.layers = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 8 * 8, 128), nn.ReLU())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, 10, 10, C]`` to ``[B, 128]``."""
        return self.layers(obs.movedim(-1, 1))  # type: ignore[no-any-return]


def evaluate(model: Any, env: Any, episodes: int) -> float:
    """Mean return of greedy episodes; episode i starts from ``reset(seed=1000 + i)``."""
    returns = []
    for i in range(episodes):
        obs, _ = env.reset(seed=1000 + i)
        total, done = 0.0, False
        while not done:
            normalizer = model.get_vec_normalize_env()
            seen = obs if normalizer is None else normalizer.normalize_obs(obs)
            action, _ = model.predict(seen, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


class Game:
    """A game of PettingZoo as one environment, whose observations and actions are those of all agents, ``[agents, …]``.

    Args:
        id: the function that makes it, as ``module:attr``. All agents have the same spaces, and all end together.
    """

    def __init__(self, id: str) -> None:
        self.agents = make_agents(id)

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        obs, infos = self.agents.reset(seed=seed)
        return np.stack([*obs.values()]), infos

    def step(self, actions: Any) -> tuple[Any, float, bool, bool, Any]:
        """The reward is the mean of all agents."""
        chosen = dict(zip(self.agents.agents, actions, strict=True))
        obs, rewards, ends, cuts, infos = self.agents.step(chosen)
        reward = float(np.mean([*rewards.values()]))
        return np.stack([*obs.values()]), reward, all(ends.values()), all(cuts.values()), infos


def make_agents(id: str) -> Any:
    """A game of PettingZoo in whose observations each agent sees which one it is."""
    module, name = id.split(":")
    return importlib.import_module("supersuit").agent_indicator_v0(getattr(importlib.import_module(module), name)())


class Score(BaseCallback):  # type: ignore[misc] # without the package it has no type
    """Scores the policy each time another share of the budget is spent."""

    def __init__(self, env: Any, job: dict[str, Any]) -> None:
        super().__init__()
        self._env, self._episodes, self._interval = env, job["episodes"], job["env_steps"] // job["evaluations"]
        self._target = job.get("target", float("inf"))
        self.curve: list[list[float]] = []
        self.seconds = 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps % self._interval:
            return True
        started = time.perf_counter()
        self.curve.append([self.num_timesteps, round(evaluate(self.model, self._env, self._episodes), 2)])
        self.seconds += time.perf_counter() - started
        return bool(self.curve[-1][1] < self._target)


def make_env(job: dict[str, Any], settings: dict[str, Any]) -> Any:
    """The environments of a job; takes ``n_envs`` and ``normalize``, which the zoo has, out of the settings.

    Of PettingZoo, each agent of ``n_envs`` games is an environment, as in SuperSuit's tutorial.
    """
    n_envs, is_normalized = settings.pop("n_envs", 1), settings.pop("normalize", False)
    if is_game(job):
        suit = importlib.import_module("supersuit")
        agents = suit.pettingzoo_env_to_vec_env_v1(make_agents(job["env"]["id"]))
        env = suit.concat_vec_envs_v1(agents, n_envs, base_class="stable_baselines3")
        complete(env.venv)
        return env
    env = make_vec_env(lambda: gymnasium.make(**job["env"]), n_envs, seed=job["seed"])
    return VecNormalize(env, gamma=settings.get("gamma", 0.99)) if is_normalized else env


def complete(games: Any) -> None:
    """Give SuperSuit's environments what stable-baselines3 asks for, and without which it learns far less.

    Without seeds all copies of a game begin alike; without ``TimeLimit.truncated`` a limit counts as the end.
    """

    def step_wait() -> Any:
        found = games.step(games._saved_actions)
        for is_cut, info in zip(found[3], found[4], strict=True):
            info["TimeLimit.truncated"] = bool(is_cut)
        return found

    games.seed = lambda seed: games.reset(seed=seed)
    games.step_wait = step_wait


def is_game(job: dict[str, Any]) -> bool:
    """Whether the environment has several agents."""
    return ":" in job["env"]["id"]


def read_schedule(value: Any) -> Any:
    """A setting of the zoo; ``lin_0.001`` falls from 0.001 to 0 with the share of the steps that is left."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda left: left * first


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if job["env"]["id"].startswith("MinAtar/"):
        importlib.import_module("minatar.gym").register_envs()
    settings = {name: read_schedule(value) for name, value in job["settings"].items()}
    if settings.pop("minatar_network", False):
        settings["policy_kwargs"] = {"features_extractor_class": MinAtarNetwork, "net_arch": []}
    algorithm = getattr(importlib.import_module(job.get("package", "stable_baselines3")), settings.pop("algorithm"))
    env = make_env(job, settings)
    model = algorithm("MlpPolicy", env, seed=job["seed"], device="cpu", **settings)
    scored = Game(**job["env"]) if is_game(job) else gymnasium.make(**job["env"])
    score, started, cpu = Score(scored, job), time.perf_counter(), time.process_time()
    model.learn(job["env_steps"], callback=score)
    seconds = round(time.perf_counter() - started, 1)
    found = {"opt_steps": model._n_updates, "seconds": seconds, "curve": score.curve, "eval_seconds": score.seconds}
    found["cpu_seconds"] = round(time.process_time() - cpu, 1)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
