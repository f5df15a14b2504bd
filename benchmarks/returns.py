"""Return after a budget of environment steps: with actors, in turns, and in stable-baselines3, over several seeds.

    python -m benchmarks.returns cartpole --way "4 actors"        one task, one way, nine seeds
    python -m benchmarks.returns cartpole --way sb3 --python …    the same budget, with a Python that has the package
    python -m benchmarks.returns hopper --way sbx --python …      the same budget in sbx, stable-baselines3 in JAX

Every way is scored by the same greedy episodes at the same ten points of its budget; its seconds are the wall-clock
of training and these evaluations; ``load`` is the machine's load average at the end. Results are added to
``benchmarks/results/TASK.json``; ``python -m benchmarks.results`` draws and tabulates them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks import zoo
from benchmarks.kept import keep
from common.config.run_config import RunConfig, load_config
from crossborder.curves.learning_curve import read_points
from learner.loop.in_turns import train_in_turns
from learner.loop.run import Result
from learner.loop.server import train_async

EVALUATIONS = 10
Way = Literal["1 actor", "4 actors", "16 actors", "in turns", "sb3", "sbx"]
ACTORS: dict[Way, int] = {"1 actor": 1, "4 actors": 4, "16 actors": 16}
PACKAGES: dict[Way, str] = {"sb3": "stable_baselines3", "sbx": "sbx"}
MINATAR_LIMIT = {"max_episode_steps": 5000}
"""The limit of crossborder's evaluations; without it, an episode may last for ever."""


@dataclass(frozen=True)
class Task:
    """A task with its budget of environment steps."""

    env_steps: int
    episodes: int
    sb3: dict[str, Any] | None = None
    """The peer's algorithm and its settings, from RL Baselines3 Zoo; None: there is no peer."""
    sb3_env: dict[str, Any] | None = None
    """The peer's arguments of ``gymnasium.make``; None: those of the configuration."""
    config: str | None = None
    """The name of the task's file in ``configs/``; None: the name of the task."""
    settings: tuple[str, ...] = ()
    """Settings that replace those of the file, in the form of ``--set``."""
    draw: int = 1
    """The steps of one draw: the length of a rollout, and its last observation."""


PPO_ACROBOT = (
    "env.params.id=Acrobot-v1",
    "env.wrappers=[{target: common.envs.wrappers:discounted_return, params: {discount_factor: 0.99}}]",
    "env.info={discounted_return: float32}",
    "agent.params={normalize_observations: true, normalize_rewards: true, batch_size: 16, minibatches: 64, epochs: 4, "
    "gae_lambda: 0.94, optimizer: {eps: 0.00001}}",
    "envs_per_actor=16",
    "replay.view.params.length=256",
)
"""The zoo's settings of Acrobot, for ``configs/ppo_cartpole.yaml``."""
PPO_PENDULUM = (
    "env.params.id=Pendulum-v1",
    "agent.params={lr: 0.001, batch_size: 4, minibatches: 64, epochs: 10, discount_factor: 0.9, "
    "optimizer: {eps: 0.00001}}",
    "envs_per_actor=4",
    "replay.view.params.length=1024",
)
"""The zoo's settings of Pendulum without its noise, which depends on the state."""
PPO_LUNARLANDER = (
    "env.params.id=LunarLander-v3",
    "agent.params={lr: 0.0003, batch_size: 16, minibatches: 256, epochs: 4, discount_factor: 0.999, gae_lambda: 0.98, "
    "entropy_cost: 0.01, optimizer: {eps: 0.00001}}",
    "envs_per_actor=16",
    "replay.capacity=40000",
    "replay.view.params.length=1024",
)
"""The zoo's settings of LunarLander, for ``configs/ppo_cartpole.yaml``."""
PPO_CARTPOLE = (
    "agent.params.max_lag=8",
    "agent.params.epochs=20",
    "agent.params.optimizer.schedule.steps=7600",
    "agent.params.clip_schedule={steps: 7600}",
    "trainer.max_env_steps=102000",
)
"""The zoo's settings of CartPole; schedules count gradient steps. Runs with actors may leave steps out."""
SPREAD = "mpe2.simple_spread_v3:parallel_env"
REFERENCE = "mpe2.simple_reference_v3:parallel_env"
TASKS = {
    "ppo_cartpole": Task(100_320, 20, zoo.CARTPOLE_PPO, settings=PPO_CARTPOLE, draw=33),
    "ppo_acrobot": Task(205_600, 20, zoo.ACROBOT_PPO, config="ppo_cartpole", settings=PPO_ACROBOT, draw=257),
    "ppo_pendulum": Task(123_000, 20, zoo.PENDULUM_PPO, config="ppo_cartpole", settings=PPO_PENDULUM, draw=1025),
    "ppo_pendulum_plain": Task(
        123_000, 20, zoo.PENDULUM_PPO | {"use_sde": False}, config="ppo_cartpole", settings=PPO_PENDULUM, draw=1025
    ),
    "ppo_lunarlander": Task(
        328_000, 20, zoo.LUNARLANDER_PPO, config="ppo_cartpole", settings=PPO_LUNARLANDER, draw=1025
    ),
    "ppo_halfcheetah": Task(
        307_350,
        10,
        zoo.CLEANRL_PPO,
        settings=("agent.params.optimizer.schedule.steps=48000",),
        draw=2049,
    ),
    "ppo_spread": Task(
        249_600,
        50,
        zoo.PETTINGZOO_PPO | {"n_envs": 8},
        {"id": SPREAD},
        config="ppo_pettingzoo",
        settings=("agent.params.optimizer.schedule.steps=16000",),
        draw=26,
    ),
    "ppo_reference": Task(
        124_800,
        50,
        zoo.PETTINGZOO_PPO | {"n_envs": 12},
        {"id": REFERENCE},
        config="ppo_pettingzoo",
        settings=(f"env.params.id={REFERENCE}", "env.params.groups=12", "agent.params.optimizer.schedule.steps=8000"),
        draw=26,
    ),
    "cartpole": Task(50_000, 20, zoo.CARTPOLE_DQN),
    "acrobot": Task(50_000, 20, zoo.DQN),
    "lunarlander": Task(50_000, 20, zoo.DQN),
    "pendulum": Task(10_000, 20, zoo.PENDULUM_SAC),
    "halfcheetah": Task(100_000, 10, zoo.MUJOCO_SAC),
    "hopper": Task(100_000, 10, zoo.MUJOCO_SAC),
    "crossq_halfcheetah": Task(100_000, 10, zoo.MUJOCO_CROSSQ),
    "crossq_hopper": Task(
        100_000, 10, zoo.MUJOCO_CROSSQ, config="crossq_halfcheetah", settings=("env.params.id=Hopper-v5",)
    ),
    "minatar_breakout": Task(500_000, 20, zoo.MINATAR_DQN, {"id": "MinAtar/Breakout-v1"} | MINATAR_LIMIT),
    "minatar_breakout_a2c": Task(
        1_000_000, 20, zoo.MINATAR_A2C, {"id": "MinAtar/Breakout-v1"} | MINATAR_LIMIT, config="impala_minatar_breakout"
    ),
    "minatar_breakout_ppo": Task(
        1_000_000,
        20,
        zoo.MINATAR_PPO,
        {"id": "MinAtar/Breakout-v1"} | MINATAR_LIMIT,
        config="ppo_minatar_breakout",
        settings=("agent.params.optimizer.schedule.steps=30800",),
        draw=65,
    ),
    "minatar_space_invaders_ppo": Task(
        1_000_000,
        20,
        zoo.MINATAR_PPO,
        {"id": "MinAtar/SpaceInvaders-v1"} | MINATAR_LIMIT,
        config="ppo_minatar_breakout",
        settings=("env.params.id=space_invaders", "agent.params.optimizer.schedule.steps=30800"),
        draw=65,
    ),
    "minatar_space_invaders": Task(500_000, 20, zoo.MINATAR_DQN, {"id": "MinAtar/SpaceInvaders-v1"} | MINATAR_LIMIT),
}


def load(name: str, settings: Sequence[str] = ()) -> RunConfig:
    """The task's configuration."""
    task = TASKS[name]
    return load_config(Path(f"configs/{task.config or name}.yaml"), [*task.settings, *settings])


def configure(name: str, way: Way, seed: int, run_dir: Path, more: Mapping[str, Any] | None = None) -> RunConfig:
    """The task's configuration with its budget in place of its target, and ``more`` settings.

    Actors share the environments among them. If there are more actors than environments, a batch of rollouts has a
    shorter rollout of each, so that an opt step still learns from as many steps. Where actors wait for the learner, a
    message has fewer rows if an actor gives fewer of a batch: they may be two messages ahead.
    """
    plain, task = load(name), TASKS[name]
    ratio, batch = plain.replay.samples_per_insert, plain.agent.params["batch_size"]
    if ratio is None:
        raise SystemExit(f"{name}: expected replay.samples_per_insert, found null")
    opts = round((task.env_steps - plain.trainer.warmup_period) * ratio / (batch * task.draw))
    interval = opts // EVALUATIONS
    trainer = {"target_score": "null", "max_opts": interval * EVALUATIONS, "eval_interval": interval}
    ours = {f"trainer.{key}": value for key, value in trainer.items()} | {
        "envs_per_actor": max(1, plain.envs_per_actor // ACTORS.get(way, 1)),
        "evaluator.episodes": task.episodes,
        "server.listen": "127.0.0.1:0",
        "metrics.listen": "null",
        "seed": seed,
        "run_dir": run_dir,
    }
    more_environments = ACTORS.get(way, 1) // plain.envs_per_actor
    if task.draw > 1 and more_environments > 1:
        ours["agent.params.batch_size"] = batch * more_environments
        ours["replay.view.params.length"] = (task.draw - 1) // more_environments
    if task.draw > 1 and plain.replay.error_buffer is None:
        ours["push.n_buffer"] = max(1, plain.push.n_buffer // ACTORS.get(way, 1))
    return load(name, [f"{key}={value}" for key, value in (ours | dict(more or {})).items()])


def train_ours(name: str, way: Way, seed: int) -> dict[str, Any]:
    """One run of crossborder: its curve, opt steps and seconds."""
    with tempfile.TemporaryDirectory() as directory:
        config = configure(name, way, seed, Path(directory) / "run")
        actors = ACTORS.get(way)
        result: Result = train_in_turns(config) if actors is None else train_async(config, local_actors=actors)
        points = read_points(result.run_dir, "env-steps")
    curve = [[int(x), round(y, 2)] for x, y in points.items()]
    return {"opt_steps": result.opt_steps, "seconds": round(result.seconds, 1), "curve": curve}


def train_peer(name: str, package: str, seed: int, python: str) -> dict[str, Any]:
    """One run of stable-baselines3 or of its form in JAX, in a separate interpreter."""
    found = ask_peer(name, package, seed, python, episodes=TASKS[name].episodes, evaluations=EVALUATIONS)
    del found["eval_seconds"], found["cpu_seconds"]  # The seconds of crossborder's runs include evaluations too.
    return found


def ask_peer(
    name: str, package: str, seed: int, python: str, *, episodes: int, evaluations: int, **other: Any
) -> dict[str, Any]:
    """The answer of ``benchmarks/sb3.py`` about one run; ``other`` values of its job replace those of the task."""
    config, task = load(name), TASKS[name]
    if task.sb3 is None:
        raise SystemExit(f"{name}: expected a task that has a peer: {', '.join(n for n, t in TASKS.items() if t.sb3)}")
    job = {
        "package": package,
        "env": task.sb3_env or config.env.params,
        "seed": seed,
        "env_steps": task.env_steps,
        "episodes": episodes,
        "evaluations": evaluations,
        "settings": task.sb3,
        **other,
    }
    script = Path(__file__).parent / "sb3.py"
    done = subprocess.run([python, script, json.dumps(job)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.returns", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--way", choices=get_args(Way), required=True)
    parser.add_argument("--seeds", type=int, default=9, help="all seeds below this number (default: 9)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the peer's package")
    arguments = parser.parse_args()
    for seed in range(arguments.first_seed, arguments.seeds):
        if arguments.way in PACKAGES:
            found = train_peer(arguments.task, PACKAGES[arguments.way], seed, arguments.python)
        else:
            found = train_ours(arguments.task, arguments.way, seed)
        run = {"way": arguments.way, "seed": seed, "load": round(os.getloadavg()[0], 1), **found}
        keep(arguments.task, run)
        sys.stdout.write(json.dumps({"task": arguments.task, **run}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
