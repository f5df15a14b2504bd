"""One rank whose gradients are averaged by NCCL: it connects, averages inside a captured update, and survives a kill.

A host with one GPU can have only one such rank. Its mean over ranks is its own gradient, so it must learn exactly what
a process without ranks learns. Without a GPU, gloo takes the place of NCCL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import gymnasium
import numpy as np
import torch
import torch.distributed as dist

from benchmarks.gpu_host.part import Budget, give, read_arguments, tell
from common.agents.dqn import DQN
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory
from learner.ranks.group import Group
from learner.ranks.place import Place

OPTS: Final = 200
WAIT_SECONDS: Final = 60.0
LEARNING: Final = "the rank learns"


def make_agent(device: str) -> DQN:
    """An agent whose updates are captured."""
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2))
    return DQN(spec=spec, seed=0, units=[256, 256], batch_size=64, device=device, update="captured")


def make_memory() -> ItemMemory:
    """Random transitions."""
    rng, n = np.random.default_rng(0), 1000
    obs, next_obs = rng.uniform(-1, 1, (2, n, 4)).astype(np.float32)
    flags = {"terminated": rng.random(n) < 0.1, "truncated": np.zeros(n, np.bool_)}
    reward = rng.normal(size=n).astype(np.float32)
    return ItemMemory({"obs": obs, "action": rng.integers(2, size=n), "reward": reward, "next_obs": next_obs, **flags})


def learn(device: str, opts: int) -> tuple[dict[str, torch.Tensor], float]:
    """The parameters after ``opts`` opt steps, and opt steps a second after the first tenth."""
    agent, memory, warm = make_agent(device), make_memory(), opts // 10
    for k in range(opts):
        if k == warm:
            began = time.perf_counter()
        agent.opt(memory)
    rate = (opts - warm) / (time.perf_counter() - began)
    return {name: tensor.cpu() for name, tensor in agent.training_state().tensors.items()}, rate


def be_rank(device: str, opts: int, *, for_ever: bool) -> None:
    """Learn as the only rank of a group, and compare with learning without one; or learn until killed."""
    alone, alone_rate = learn(device, opts)
    with Group(Place(), WAIT_SECONDS, device) as group:
        backends = {dist.get_backend(), *(["nccl"] if device == "cuda" and dist.is_nccl_available() else [])}
        group.begin_averaging(None)
        found, rate = learn(device, opts)
        if for_ever:
            tell(LEARNING)
            agent, memory = make_agent(device), make_memory()
            while True:
                agent.opt(memory)
    furthest = max(float((found[name].double() - tensor.double()).abs().max()) for name, tensor in alone.items())
    give(backends=sorted(backends), furthest=furthest, **{"opt steps/s": rate, "opt steps/s alone": alone_rate})
    if furthest > 1e-4:
        sys.exit(f"expected what a process without ranks learns, found parameters that differ by {furthest}")


@contextmanager
def rank(budget: Budget, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A rank as a process of its own, with a store of its own on a free port, which no other rank needs to know."""
    words = ["--device", budget.device, "--share", str(budget.share), *more]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "CROSSBORDER_RANK": "1"}
    command = [sys.executable, "-u", "-m", "benchmarks.gpu_host.nccl", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    if "CROSSBORDER_RANK" in os.environ:
        for_ever = "--for-ever" in sys.argv
        sys.argv = [word for word in sys.argv if word != "--for-ever"]
        budget, _ = read_arguments(__doc__)
        be_rank(budget.device, budget.shrink(OPTS, 20), for_ever=for_ever)
        return
    budget, _ = read_arguments(__doc__)
    with rank(budget, "--for-ever") as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != LEARNING:
            sys.exit(f"expected a rank that learns, found exit code {process.wait(WAIT_SECONDS)}")
        process.kill()
        tell(f"a rank is killed while it learns: exit code {process.wait(WAIT_SECONDS)}; another one follows")
    with rank(budget) as process:
        told, _ = process.communicate(timeout=WAIT_SECONDS)
        tell(told.rstrip("\n"))
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
