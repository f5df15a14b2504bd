"""Where a resumed run goes on: one value that is read once, when the run is opened."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from common.config.actor_config import ActorConfig
from common.config.run_config import RunConfig, load_config
from common.data import Snapshot
from common.errors import CheckpointError, ConfigError
from common.interfaces import TrainingState
from learner.replay.memory import Layout
from learner.replay.recovery import Watermark
from learner.shared.durable import locate
from learner.storage.checkpoint import describe_scoring, read_best, set_best_aside
from learner.storage.training_state import Moment, RunState, read_newest_state, read_newest_watermark

log = logging.getLogger(__name__)


class Resumable(Protocol):
    """A part of a run, beside the agent, whose state checkpoints keep."""

    def state(self) -> Snapshot:
        """The state that a resumed run needs of this part; the caller copies arrays, since they may be live."""

    def restore(self, state: Snapshot) -> None:
        """Go on from ``state``."""


class Trained(Protocol):
    """The part of an agent that a checkpoint keeps: all of it, or on a rank other than 0 its random generators."""

    def training_state(self) -> TrainingState:
        """The state from which the agent goes on learning."""

    def load_training_state(self, state: TrainingState) -> None:
        """Load a state that ``training_state`` returned."""


@dataclass(frozen=True)
class ResumePoint:
    """The state that the earlier lives of a run left in its directory, except the rows of the replay.

    Args:
        directory: of the run.
        config: the configuration of the run's last life.
        state: the newest checkpoint that is whole.
        watermark: the extent of the replay that was on disk at the last checkpoint; None if no checkpoint has one.
    """

    directory: Path
    config: RunConfig
    state: RunState
    watermark: Watermark | None

    @classmethod
    def read(cls, directory: Path, run_id: str) -> ResumePoint:
        """Read the directory of a run; the caller holds its lock.

        Raises:
            CheckpointError: there is no checkpoint, or none of them is whole.
            ConfigError: the run's ``config.yaml`` cannot be read.
        """
        config, checkpoints = load_config(directory / "config.yaml"), directory / "checkpoints"
        state = read_newest_state(checkpoints, run_id)
        if state is None:
            raise CheckpointError(f"{checkpoints}: expected a state of training, found none")
        return cls(directory, config, state, read_newest_watermark(checkpoints, run_id))

    @property
    def moment(self) -> Moment:
        """The moment of training at which the checkpoint was taken."""
        return self.state.moment

    def saved_capacity(self) -> int | None:
        """The number of rows for which the run's replay has room; None if the replay is missing."""
        replay = self.directory / "shared" / "replay"
        return Layout.read(replay).capacity if replay.exists() else None  # The rows themselves may need repair.

    def require_same_agent(self, config: RunConfig) -> None:
        """Check that the run goes on with the agent that it began with.

        ``restore`` checks later whether tensors and rows fit.

        Raises:
            ConfigError: ``config`` names another agent.
        """
        before, found = self.config.agent.target, config.agent.target
        if found != before:
            raise ConfigError(f"agent.target: expected {before}, with which the run began, found {found}")

    def take_best_score(self, config: ActorConfig) -> float:
        """The score of ``best/``, if evaluations still score as they did then; minus infinity if there is none.

        A policy that was scored in another environment, or by another evaluator, is kept as ``best-{opt_steps}/``:
        its score says nothing about the evaluations to come. One that cannot be read is kept as ``best-damaged/``.

        Raises:
            CheckpointError: it cannot be kept under that name.
        """
        best = read_best(self.directory)
        if best is None and locate(self.directory / "best") is None:
            return -math.inf
        if best is not None and best.scored_by == describe_scoring(config):
            return best.score
        why = f"has the score {best.score:.2f}, but evaluations differ now (env or evaluator)" if best else "is damaged"
        kept = set_best_aside(self.directory, best)
        log.warning("best/ %s: it is kept as %s/, and the best score begins anew", why, kept.name)
        return -math.inf

    def warn_of_missing_replay(self, capacity: int) -> int:
        """Log that the run goes on without its rows; return the number of steps that were ever stored."""
        stored = self.moment.samples_total
        log.warning(
            "%s: the replay is missing (shared/replay): training goes on from opt step %d with an EMPTY replay and a "
            "new warm-up; at that checkpoint it held up to %d steps, of %d ever stored",
            *(self.directory, self.moment.opt_steps, min(stored, capacity), stored),
        )
        return stored

    def restore(self, agent: Trained, parts: Mapping[str, Resumable], device: str) -> None:
        """Put the agent, the other parts of the run and torch's generators into the state of the checkpoint.

        A part that the checkpoint does not have stays as it is: with actors, the learner has no environments.

        Raises:
            CheckpointError: the checkpoint is that of another agent or another kind of replay buffer.
        """
        agent.load_training_state(self.state.agent())
        for name, part in parts.items():
            snapshot = self.state.part(name)
            if snapshot is not None:
                part.restore(snapshot)
        self.state.restore_generators(torch.device(device))
