"""Environment steps that PPO learns from in a second, beside other libraries, without evaluations.

    python -m benchmarks.ppo_speed --sb3 PYTHON --sample-factory PYTHON --cleanrl PYTHON PATH/TO/cleanrl/ppo.py
    python -m benchmarks.ppo_speed --task minatar_breakout_ppo --sb3 PYTHON

PYTHON is an interpreter that has the library; a library that is not named is left out. All have the settings of RL
Baselines3 Zoo as far as they can: eight environments, an opt step that learns twenty times from 256 steps, and two
layers of 64. torch has one thread in each process. "In turns" is one process; "two actors" are two processes with four
environments each, beside the learner. The libraries take turns, one seed after another.

In MinAtar's Breakout all have the network of the game's authors and the settings of
``configs/ppo_minatar_breakout.yaml``: sixteen environments, an opt step that learns four times from 1,024 steps. The
scripts of CleanRL and Sample Factory have no such network.

A command trains for 20,480 and for 102,400 steps, and the difference counts, so its start and end do not. Processor
time is that of all processes. stable-baselines3 and our training in turns count their own time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.report import learner_words, report, time_command
from benchmarks.returns import TASKS, ask_peer, configure, load
from learner.loop.in_turns import train_in_turns

ROOT = Path(__file__).parents[1]
TASKS_HERE = {"ppo_cartpole": TASKS["ppo_cartpole"].sb3, "minatar_breakout_ppo": zoo.MINATAR_PPO_AS_OURS}
"""The settings of stable-baselines3, by task."""
SHORT, LONG = 20_480, 102_400
Rate = Callable[[int], tuple[float, float]]
"""Environment steps for a second, and for a second of processor time, with a seed."""


def rate_in_turns(task: str, seed: int) -> tuple[float, float]:
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as directory:
        changes = {"trainer.eval_interval": "null", "trainer.max_env_steps": LONG}
        config = configure(task, "in turns", seed, Path(directory) / "run", changes)
        result = train_in_turns(config)
    return result.samples_total / result.seconds, result.samples_total / (time.process_time() - cpu)


def rate_sb3(task: str, seed: int, python: str) -> tuple[float, float]:
    job = {"settings": TASKS_HERE[task], "env_steps": LONG}
    found = ask_peer(task, "stable_baselines3", seed, python, episodes=1, evaluations=1, **job)
    off = found["eval_seconds"]
    return LONG / (found["seconds"] - off), LONG / (found["cpu_seconds"] - off)


def rate_command(make_words: Callable[[int], Sequence[str]]) -> tuple[float, float]:
    """The rates of a command that trains for a number of steps."""
    found = list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as directory:
        for words in map(make_words, (SHORT, LONG)):
            seconds, cpu, done = time_command(words, cwd=directory, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                said = (done.stdout + done.stderr)[-2000:]
                raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}: {said}")
            found.append((seconds, cpu))
    short, long = found
    return (LONG - SHORT) / (long[0] - short[0]), (LONG - SHORT) / (long[1] - short[1])


def rate_actors(task: str, seed: int) -> tuple[float, float]:
    plain = load(task)

    def make_words(steps: int) -> Sequence[str]:
        changes: dict[str, Any] = {
            "envs_per_actor": plain.envs_per_actor // 2,
            "metrics.listen": "null",
            "run_dir": f"run-{steps}",
            "seed": seed,
            "trainer.eval_interval": "null",
            "trainer.max_env_steps": steps,
            "trainer.max_opts": LONG,
            "trainer.target_score": "null",
        }
        config = ROOT / "configs" / f"{TASKS[task].config or task}.yaml"
        return learner_words(config, 2, changes, *TASKS[task].settings)

    return rate_command(make_words)


def rate_cleanrl(seed: int, python: str, script: str) -> tuple[float, float]:
    rollouts = ("--num-envs", "8", "--num-steps", "32", "--num-minibatches", "1", "--update-epochs", "20")

    def make_words(steps: int) -> Sequence[str]:
        return python, script, "--no-cuda", *rollouts, "--seed", str(seed), "--total-timesteps", str(steps)

    return rate_command(make_words)


SAMPLE_FACTORY = """
    --algo=APPO --env=CartPole-v1 --device=cpu --use_rnn=False --recurrence=1 --encoder_mlp_layers 64 64
    --normalize_input=False --rollout=32 --batch_size=256 --num_batches_per_epoch=1 --num_epochs=20
    --save_every_sec=1000
"""
IN_TURNS = "--serial_mode=True --async_rl=False --num_workers=1 --num_envs_per_worker=8 --worker_num_splits=1"
TWO_ACTORS = "--num_workers=2 --num_envs_per_worker=4 --worker_num_splits=2"


def rate_sample_factory(seed: int, python: str, way: str) -> tuple[float, float]:
    def make_words(steps: int) -> Sequence[str]:
        own = (f"--experiment=run-{steps}", f"--train_for_env_steps={steps}", f"--seed={seed}")
        return python, "-m", "sf_examples.train_gym_env", *SAMPLE_FACTORY.split(), *way.split(), *own

    return rate_command(make_words)


def rates_of(arguments: argparse.Namespace) -> dict[str, Rate]:
    """What is measured, by its name in the table."""
    task = arguments.task
    rates: dict[str, Rate] = {
        "crossborder, in turns": partial(rate_in_turns, task),
        "crossborder, two actors": partial(rate_actors, task),
    }
    if arguments.sb3:
        rates["stable-baselines3"] = partial(rate_sb3, task, python=arguments.sb3)
    if arguments.cleanrl:
        rates["CleanRL"] = lambda seed: rate_cleanrl(seed, *arguments.cleanrl)
    if python := arguments.sample_factory:
        rates["Sample Factory, in turns"] = lambda seed: rate_sample_factory(seed, python, IN_TURNS)
        rates["Sample Factory, two actors"] = lambda seed: rate_sample_factory(seed, python, TWO_ACTORS)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.ppo_speed", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", choices=TASKS_HERE, default="ppo_cartpole")
    parser.add_argument("--sb3", metavar="PYTHON", help="an interpreter with stable-baselines3")
    parser.add_argument("--cleanrl", nargs=2, metavar=("PYTHON", "SCRIPT"), help="and CleanRL's ppo.py")
    parser.add_argument("--sample-factory", metavar="PYTHON", help="an interpreter with sample-factory")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.task != "ppo_cartpole" and (arguments.cleanrl or arguments.sample_factory):
        parser.error("--cleanrl and --sample-factory: expected the task ppo_cartpole beside them")
    rates = rates_of(arguments)
    found: dict[str, list[tuple[float, float]]] = {who: [] for who in rates}
    for seed in range(arguments.turns):
        for who, rate in rates.items():
            found[who].append(rate(seed))
    rows = []
    for who, pairs in found.items():
        wall, cpu = zip(*pairs, strict=True)
        rows.append({"who": who, "steps/s": statistics.median(wall), "slowest": min(wall), "fastest": max(wall)})
        rows[-1] |= {"steps/CPU s": statistics.median(cpu)}
    report("ppo_speed", f"environment steps learnt from, {arguments.task}", rows, arguments.turns)


if __name__ == "__main__":
    main()
