"""A process that saves policies and checkpoints, some twenty a second: ``python -m tests.learner.storage.saving RUN``.

All values of one policy or checkpoint are its opt step, so a reader knows whether it has read files of two of them. The
process ends when ``RUN/stop`` is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from learner.storage.checkpoint import Checkpoints, Saves
from learner.storage.training_state import RunState, StateFiles
from tests.common.test_evaluation import Idle
from tests.conftest import Command
from tests.learner.storage.test_checkpoint import CONFIG


class Numbered(Idle):
    """An agent whose only parameter is a number."""

    number = 0

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"number": torch.full((1000,), self.number)}


PAUSE_SECONDS = 0.05
"""On a busy host a reader gets little time. It gives up after ten tries, each of which another save has overtaken."""


@contextmanager
def saving(run: Path) -> Iterator[None]:
    """Within this context another process saves policies and checkpoints in the directory."""
    process = Command(__name__, str(run), log=run.parent / "saving.log")
    try:
        yield
    finally:
        (run / "stop").touch()
        assert process.wait() == 0, process.output()


class Saver:
    """Saves one policy and one checkpoint after the other in the directory of a run."""

    def __init__(self, run: Path) -> None:
        self._policies = Checkpoints(run, CONFIG, "run")
        self._states = StateFiles(run / "checkpoints", {"run_id": "run"}, Saves(), keep=1)
        self._agent, self._number = Numbered(), 0

    def save(self) -> None:
        self._number += 1
        self._agent.number = self._number
        self._policies.save("best", self._agent, opt_steps=self._number, score=float(self._number))
        tensors = {"agent.number": torch.full((1000,), self._number)}
        self._states.write(RunState(self._number, tensors, "{}"))


def save_again_and_again(run: Path) -> None:
    saver = Saver(run)
    while not (run / "stop").exists():
        saver.save()
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    save_again_and_again(Path(sys.argv[1]))
