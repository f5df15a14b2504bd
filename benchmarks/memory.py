"""Tasks that need a memory: agents with one, agents that see a stack of frames, and agents with neither.

    python -m benchmarks.memory                          all tasks, five seeds each, then tables and pictures
    python -m benchmarks.memory cue_10 --seeds 1         one task, one seed

All agents of a task have the same number of environment steps and are scored at the same ten points. Scores are mean
returns of greedy episodes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import add_choice
from benchmarks.returns import EVALUATIONS, keep
from benchmarks.variants import Variant, draw, runs_of, table, train


@dataclass(frozen=True)
class Way:
    """An agent for a task."""

    config: str
    """Of ``configs/``."""
    opts: float
    """Opt steps for each environment step beyond the warm-up."""
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A task, and its agents by name."""

    env_steps: int
    warm_up: int
    ways: Mapping[str, Way]


def without_velocities(elements: list[int], frame_stack: int = 1) -> dict[str, Any]:
    """The environment's settings: some elements of each observation, and a stack of them."""
    wrappers = [{"target": "common.envs.memory_tasks:KeepElements", "params": {"elements": elements}}]
    return {"env.wrappers": json.dumps(wrappers), "env.frame_stack": frame_stack}


def remember_cue(delay: int) -> dict[str, Way]:
    """Agents that are asked for a cue after ``delay`` steps; a sequence is a whole episode."""
    length = delay + 1
    stack = min(length, 16)  # More frames in an observation are refused.
    settings = {"env.params.delay": delay, "name": f"cue_{delay}"}
    sequences = {"target": "learner.views.sequences:Sequences", "params": {"length": length, "period": length}}
    recurrent = {"replay.view": json.dumps(sequences), "replay.samples_per_insert": 8 * length}
    recurrent["agent.params.memory.span"] = delay
    params = {"units": [64, 64], "lr": 0.001, "batch_size": 64, "soft_update_interval": 100}
    explorer = {"start": 1.0, "final_step": 2000}
    dqn = {"target": "common.agents.dqn:DQN", "params": {**params, "explorer": explorer}}
    plain = {"agent": json.dumps(dqn), "replay.view": "{params: {n: 5}}", "replay.samples_per_insert": 16}
    return {
        "R2D2": Way("cue", 1 / 4, {**settings, **recurrent}),
        f"DQN, stack of {stack}": Way("cue", 1 / 4, {**settings, **plain, "env.frame_stack": stack}),
        "DQN": Way("cue", 1 / 4, {**settings, **plain}),
    }


TASKS: Final = {
    "masked_cartpole": Task(
        40_000,
        1000,
        {
            "R2D2": Way("masked_cartpole", 1 / 4, {}),
            "DQN, stack of 4": Way("cartpole", 1 / 2, without_velocities([0, 2], 4)),
            "DQN": Way("cartpole", 1 / 2, without_velocities([0, 2])),
        },
    ),
    "masked_pendulum": Task(
        12_000,
        1000,
        {
            "recurrent SAC": Way("masked_pendulum", 1, {}),
            "SAC, stack of 4": Way("pendulum", 1, without_velocities([0, 1], 4)),
            "SAC": Way("pendulum", 1, without_velocities([0, 1])),
        },
    ),
    "cue_10": Task(10_000, 500, remember_cue(10)),
    "cue_50": Task(40_000, 500, remember_cue(50)),
}


def variant_of(task: Task, way: Way) -> Variant:
    """The way with the budget of its task."""
    interval = int((task.env_steps - task.warm_up) * way.opts) // EVALUATIONS
    trainer = {
        "target_score": "null",
        "warmup_period": task.warm_up,
        "max_opts": interval * EVALUATIONS,
        "eval_interval": interval,
    }
    return Variant({**way.settings, **{f"trainer.{key}": value for key, value in trainer.items()}})


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.memory", description=__doc__.splitlines()[0] if __doc__ else None)
    add_choice(parser, "tasks", TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        for name in arguments.tasks:
            for way_name, way in TASKS[name].ways.items():
                if any((run["way"], run["seed"]) == (way_name, seed) for run in runs_of(name)):
                    continue
                found = train(Path(f"configs/{way.config}.yaml"), variant_of(TASKS[name], way), seed)
                run = {"way": way_name, "seed": seed, **found}
                keep(name, run)
                sys.stdout.write(json.dumps({"task": name, **run}) + "\n")
                sys.stdout.flush()
    for name in arguments.tasks:
        sys.stdout.write(f"\n{name}\n\n{table(name)}\n\n{draw(name, name.replace('_', ' '))}\n")


if __name__ == "__main__":
    main()
