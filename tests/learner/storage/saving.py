"""A process that saves policies and checkpoints without a pause: ``python -m tests.learner.storage.saving RUN``.

All values of one policy or checkpoint are its opt step, so a reader knows whether it has read files of two of them. The
process ends when ``RUN/stop`` is there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from learner.storage.checkpoint import Checkpoints, SaveCounts
from learner.storage.training_state import RunState, StateFiles
from tests.common.test_evaluation import Idle
from tests.conftest import PATIENCE
from tests.learner.storage.test_checkpoint import CONFIG


class Numbered(Idle):
    """An agent whose only parameter is a number."""

    number = 0

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"number": torch.full((1000,), self.number)}


@contextmanager
def saving(run: Path) -> Iterator[None]:
    """Within this context another process saves policies and checkpoints in the directory."""
    process = subprocess.Popen([sys.executable, "-m", __name__, str(run)])
    try:
        yield
    finally:
        (run / "stop").touch()
        assert process.wait(PATIENCE) == 0


def save_without_pause(run: Path) -> None:
    policies, states = (
        Checkpoints(run, CONFIG, "run"),
        StateFiles(run / "checkpoints", {"run_id": "run"}, SaveCounts(), keep=1),
    )
    agent, number = Numbered(), 0
    while not (run / "stop").exists():
        number += 1
        agent.number = number
        policies.save("best", agent, opt_steps=number, score=float(number))
        states.write(RunState(number, {"agent.number": torch.full((1000,), number)}, "{}"))


if __name__ == "__main__":
    save_without_pause(Path(sys.argv[1]))
