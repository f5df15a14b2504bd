"""Environment steps per second of the host's cores alone: the floor for the steps that a learner acknowledges.

Each process steps the same environments as an actor of the trial, with random actions, and does nothing else.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.gpu_host.part import give, read_arguments, tell
from benchmarks.gpu_host.solving import ACTORS, CONFIGS
from common.plugins.part_config import PluginConfig
from common.plugins.shipped import write_out
from common.settings import validate

LEAST_SECONDS: Final = 0.5
START_SECONDS: Final = 60.0


def step_envs(env: dict[str, Any], seconds: float, ready: Any, rates: Any, k: int) -> None:
    """Step a vector environment, and write the steps a second to place ``k`` of ``rates``."""
    vector = validate(PluginConfig, {"target": env["target"], "params": env["params"]}).build()
    vector.action_space.seed(0)
    vector.reset(seed=0)
    actions = [vector.action_space.sample() for _ in range(64)]
    ready.wait(START_SECONDS)
    began, rounds = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        vector.step(actions[rounds % len(actions)])
        rounds += 1
    rates[k] = rounds * vector.num_envs / elapsed
    vector.close()


def measure(task: str, processes: int, seconds: float) -> float:
    """The steps a second of all processes together."""
    env = write_out(yaml.safe_load(Path(f"configs/{CONFIGS[task]}.yaml").read_text()))["env"]
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.Array("d", processes)
    workers = [context.Process(target=step_envs, args=(env, seconds, ready, rates, k)) for k in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(START_SECONDS + 10 * seconds)
    if any(worker.exitcode for worker in workers):
        sys.exit(f"{task}: expected that each process steps and ends, found exit codes {[w.exitcode for w in workers]}")
    return float(np.sum(rates[:]))


def main() -> None:
    budget, _ = read_arguments(__doc__)
    processes = budget.shrink(ACTORS)
    for task in CONFIGS:
        seconds = max(LEAST_SECONDS, 4 / budget.share)
        tell(f"{task}: {processes} processes step for {seconds:g} s")
        give(task=task, processes=processes, **{"steps/s alone": measure(task, processes, seconds)})


if __name__ == "__main__":
    main()
