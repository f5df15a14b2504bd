"""The time for which training waits at a checkpoint: the copy of its state, beside one opt step of the same agent.

The floor is one copy of the same bytes; the rest of the time is Python's, for walking over networks and optimisers. A
thread writes the copy to disk; ``while one is written`` is the time of an opt step during the writing over that of an
opt step alone.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gymnasium
import torch

from benchmarks.report import median, report
from common.agents.dqn import DQN
from common.agents.sac import SAC
from common.lanes.building import spec_of
from common.parts import row_schema
from crossborder.testing import play
from crossborder.testing.agent_checks import MakeAgent
from crossborder.testing.row_memory import rows_of
from learner.replay.memory import ReplayMemory
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.storage.checkpoint import Saves
from learner.storage.checkpointer import Checkpointer
from learner.storage.training_state import Moment, StateFiles
from learner.views.transitions import Transitions

TIMES = 50
AGENTS: dict[str, tuple[MakeAgent, str]] = {
    "DQN 2x256": (DQN, "CartPole-v1"),
    "DQN 2x1024": (partial(DQN, units=(1024, 1024), batch_size=256), "CartPole-v1"),
    "SAC 2x256": (SAC, "Pendulum-v1"),
}


def millis(work: Callable[[], object]) -> float:
    """Milliseconds of one call, the mean of ``TIMES``."""
    started = time.perf_counter()
    for _ in range(TIMES):
        work()
    return (time.perf_counter() - started) / TIMES * 1e3


def measure(make: MakeAgent, env_id: str, directory: Path) -> dict[str, object]:
    env = gymnasium.make(env_id)
    schema = row_schema(spec_of(env))
    rows = rows_of(schema, play(env, 1000))
    n = len(rows["lane"])
    memory = ReplayMemory(directory / "replay", schema, n, create=True)
    ReplayWriter(memory).append(rows, n, incarnation=1, seq=1)
    agent, buffer = (
        make(spec=spec_of(env), seed=0, epsilon=0.0, device="cpu"),
        UniformReplay(memory, Transitions(schema), seed=0),
    )
    agent.opt(buffer)
    files = StateFiles(directory / "checkpoints", {"run_id": "benchmark"}, keep=1, saves=Saves())
    moment = Moment(1, 1000, 0.0)
    checkpointer = Checkpointer(files, agent, {"buffer": buffer}, "cpu", newest=moment, seconds=None, replay=memory)
    state = checkpointer.copy(moment)
    opt = median(lambda: millis(lambda: agent.opt(buffer)))
    copy = median(lambda: millis(lambda: checkpointer.copy(moment)))
    floor = median(lambda: millis(lambda: [tensor.clone() for tensor in state.tensors.values()]))
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            files.write(state)

    writer = threading.Thread(target=write)
    writer.start()
    meanwhile = median(lambda: millis(lambda: agent.opt(buffer)))
    ended.set()
    writer.join(60.0)
    return {
        "MB": sum(tensor.nbytes for tensor in state.tensors.values()) / 1e6,
        "opt ms": opt,
        "copy ms": copy,
        "floor ms": floor,
        "copy / opt": copy / opt,
        "while one is written": meanwhile / opt,
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, (make, env_id) in AGENTS.items():
        with tempfile.TemporaryDirectory() as directory:
            rows.append({"agent": name, **measure(make, env_id, Path(directory))})
    report("checkpoint", "the copy is all that training waits for", rows)


if __name__ == "__main__":
    main()
