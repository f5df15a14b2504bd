"""One trial of a sweep: a run for each seed, each in a separate process, one after another."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from optuna.trial import TrialState

from common.config.run_config import dump_config
from common.errors import BudgetExhaustedError, CheckpointError, ConfigError, DivergedError, RunDirectoryError
from common.process.child import Child
from crossborder.curves.learning_curve import read_points
from crossborder.curves.statistics import interquartile_mean
from crossborder.sweeps.board import Board
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.study import Claimed, SweepStudy
from crossborder.sweeps.sweep_config import configure
from learner.shared.durable import replace_text

log = logging.getLogger(__name__)
CHILD: Final = "crossborder.sweeps.sweep_child"
"""The module of a run's process."""
LOOK_SECONDS: Final = 1.0
"""The time between two looks at the records of a run."""
GRACE_SECONDS: Final = 120.0
"""The time that a run has to write its last checkpoint."""
LAST_LINES: Final = 5
_SCORED: Final = (0, BudgetExhaustedError.exit_code)
"""Exit codes of runs that have a score; training that did not reach its target score has a score too."""

_UNWRITTEN: Final = (RunDirectoryError.exit_code, CheckpointError.exit_code)
"""Exit codes of runs whose directory cannot be written or read: the next run would meet the same full disk."""


_UNBEGUN: Final = "unbegun"
"""Notes in a trial that one of its runs could not begin."""


class StoppedError(Exception):
    """The user or a signal asked the sweep to stop; the runs of the trial can be resumed."""


class _NoScoreError(Exception):
    """The trial ends without a score, in this state; the message says why."""

    def __init__(self, state: TrialState, why: str) -> None:
        super().__init__(why)
        self.state = state


class TrialRunner:
    """Runs trials of a sweep, in any number of threads."""

    def __init__(self, directory: SweepDirectory, study: SweepStudy, board: Board, stopping: threading.Event) -> None:
        self._directory, self._sweep = directory, directory.sweep
        self._study, self._board, self._stopping = study, board, stopping

    def run(self, claimed: Claimed) -> None:
        """Run a trial, or go on with it, and tell Optuna its outcome; the trial's lock is free afterwards.

        Raises:
            StoppedError: the sweep was asked to stop. The trial stays unfinished.
            RunDirectoryError: a run cannot be written, or gone on with. The trial stays unfinished.
        """
        number = claimed.trial.number
        self._board.began(number, claimed.values)
        try:
            score = self._score(claimed)
            self._study.optuna.tell(claimed.trial, score)
            self._board.ended(number, f"score {score:.5g}")
        except _NoScoreError as error:
            self._study.optuna.tell(claimed.trial, state=error.state)
            self._board.ended(number, str(error), is_failure=error.state is TrialState.FAIL)
        finally:
            os.close(claimed.lock)

    def _score(self, claimed: Claimed) -> float:
        """Train with each seed; the interquartile mean of the scores."""
        place = self._directory.place_of(claimed.trial.number)
        try:
            config = configure(self._directory.base, claimed.values)
        except ConfigError as error:
            raise _NoScoreError(TrialState.FAIL, f"failed: {error}") from error
        replace_text(place / "config.yaml", dump_config(config))
        reported = {*self._study.optuna.get_trials(deepcopy=False)[claimed.trial.number].intermediate_values}
        scores: list[float] = []
        for seed in self._sweep.seeds_of(claimed.values):
            run = _Run(place, seed, len(scores) * config.trainer.max_opts, config.trainer.max_opts)
            self._train(claimed, run, reported)
            values = [*self._values(run).values()]
            if not values:
                raise _NoScoreError(TrialState.FAIL, f"failed: {run.path} has no {self._sweep.score.record}")
            scores.append(self._sweep.score.of(values))
            claimed.trial.set_user_attr("scores", scores)
        return float(interquartile_mean(np.array(scores)))

    def _train(self, claimed: Claimed, run: _Run, reported: set[int]) -> None:
        """Train one run to its end in child processes: one whose process a signal ends goes on in another one, once."""
        code = self._go_on(claimed, run, reported)
        if not 0 <= code <= 128:  # 128 + the signal if it ended in order.
            signal = code - 128 if code > 0 else -code
            log.warning("trial %d, seed %d: signal %d ended it; it goes on", claimed.trial.number, run.seed, signal)
            code = self._go_on(claimed, run, reported)
        if code == DivergedError.exit_code:
            raise _NoScoreError(TrialState.PRUNED, "diverged")
        if code in _UNWRITTEN:
            self._give_up_unwritten(claimed, run)
        if code not in _SCORED:
            raise _NoScoreError(TrialState.FAIL, f"failed with exit code {code}, {run.log} ends:\n{run.last_lines()}")

    def _give_up_unwritten(self, claimed: Claimed, run: _Run) -> NoReturn:
        """End the sweep; but fail the trial if its run could not even begin at two starts of the sweep.

        Its replay may be too large for the disk, where there is room for other trials.
        """
        words = f"{run.log} ends:\n{run.last_lines()}"
        if (run.path / "run.json").exists():
            raise RunDirectoryError(f"{words}\nthe same command goes on with this run")
        if claimed.trial.user_attrs.get(_UNBEGUN) == run.seed:
            raise _NoScoreError(TrialState.FAIL, f"failed: it could not begin for the second time, {words}")
        claimed.trial.set_user_attr(_UNBEGUN, run.seed)
        raise RunDirectoryError(f"{words}\nthe same command tries this run once more, and then leaves its trial out")

    def _go_on(self, claimed: Claimed, run: _Run, reported: set[int]) -> int:
        """Train one run in a child process, or go on with it; return the exit code."""
        words = ["--config", str(run.place / "config.yaml"), "--set", f"seed={run.seed}", "--run-dir", str(run.path)]
        boot = {
            "command": self._sweep.command,
            "words": [*self._sweep.arguments, *words, "--resume"],
            "log": str(run.log),
        }
        # The child inherits the lock: while it lives, even if this process dies, no other process takes the trial.
        child = Child(f"trial-{claimed.trial.number}", CHILD, boot, pass_fds=(claimed.lock,))
        is_pruned = False
        try:
            while child.wait(LOOK_SECONDS) is None and not (is_pruned or self._stopping.is_set()):
                is_pruned = self._look(claimed, run, reported)
        finally:
            code = child.end(GRACE_SECONDS)
        if self._stopping.is_set():
            raise StoppedError
        self._look(claimed, run, reported)
        if is_pruned:
            raise _NoScoreError(TrialState.PRUNED, "ended early: worse than the median")
        return code

    def _look(self, claimed: Claimed, run: _Run, reported: set[int]) -> bool:
        """Read the newest records of a run; return whether to end the trial.

        Raises:
            RunDirectoryError: the directory of the trial is gone.
        """
        if not run.place.is_dir():
            raise RunDirectoryError(
                f"{run.place}: it was renamed or removed while the sweep runs; put it back and give the command again"
            )
        opt_steps = max(read_points(run.path, record="seconds"), default=0.0)
        values = self._values(run)
        self._board.progressed(claimed.trial.number, run.seed, int(opt_steps), run.max_opts, values)
        for place, value in values.items():
            step = run.offset + int(place)
            if step not in reported:
                claimed.trial.report(value, step)
                reported.add(step)
        return self._sweep.prune is not None and claimed.trial.should_prune()

    def _values(self, run: _Run) -> dict[float, float]:
        return read_points(run.path, record=self._sweep.score.record)


class _Run:
    """One run of a trial.

    Args:
        place: the directory of the trial.
        seed: of the run.
        offset: opt steps of the trial's earlier runs, which are added to this run's opt steps in reports to Optuna.
        max_opts: opt steps of the run.
    """

    def __init__(self, place: Path, seed: int, offset: int, max_opts: int) -> None:
        self.place, self.seed, self.offset, self.max_opts = place, seed, offset, max_opts
        self.path, self.log = place / f"seed-{seed}", place / f"output-{seed}.log"

    def last_lines(self) -> str:
        """The end of the run's output."""
        if not self.log.exists():  # Its process was killed before it had opened the file.
            return "nothing"
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, LAST_LINES)).rstrip("\n")
