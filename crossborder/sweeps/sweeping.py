"""Runs the trials of a sweep, N at a time."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from rich.console import Console

from common.process.clocks import Deadline
from common.process.signals import NOTICE_SECONDS
from crossborder.sweeps.board import Board
from crossborder.sweeps.directory import SweepDirectory
from crossborder.sweeps.results import write_results
from crossborder.sweeps.study import Claimed, SweepStudy
from crossborder.sweeps.trial_runner import GRACE_SECONDS, LOOK_SECONDS, StoppedError, TrialRunner


class Sweeper:
    """Runs trials until the sweep has all of them, or the first ones have all failed (``SweepStudy.find_failure``).

    Args:
        directory: of the sweep.
        study: has the trials.
        stopping: when it is set, the sweep ends, and its runs can be resumed.
        console: a terminal for bars; None logs lines.
        jobs: trials at one time.
        trials: the most trials to run here; None runs all.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        study: SweepStudy,
        stopping: threading.Event,
        console: Console | None,
        *,
        jobs: int = 1,
        trials: int | None = None,
    ) -> None:
        self._directory, self._study, self._stopping = directory, study, stopping
        self._board = Board(directory.sweep.n_trials, len(study.finished()), console)
        self._runner = TrialRunner(directory, study, self._board, stopping)
        self._jobs = jobs
        self._turns = iter(range(trials) if trials is not None else itertools.count())
        self._lock = threading.Lock()  # Guards _turns, from which all threads take.

    def run(self) -> int:
        """Run trials until none is left here, or the sweep is to stop; return the number of trials that ended here."""
        with self._board, ThreadPoolExecutor(self._jobs, thread_name_prefix="trials") as pool:
            workers = [pool.submit(self._work) for _ in range(self._jobs)]
            left = set(workers)
            while left:
                done, left = wait(left, NOTICE_SECONDS, FIRST_EXCEPTION)
                if any(worker.exception() for worker in done):
                    self._stopping.set()
        return sum(worker.result() for worker in workers)

    def _work(self) -> int:
        """Run trials one after another; return the number of those that ended."""
        ended = 0
        while not self._stopping.is_set() and self._has_turn():
            claimed = self._claim()
            if claimed is None:
                break
            try:
                self._runner.run(claimed)
            except StoppedError:
                break
            ended += 1
            write_results(self._directory, self._study)
            if self._study.find_failure():
                break
        return ended

    def _claim(self) -> Claimed | None:
        deadline = Deadline(GRACE_SECONDS)
        while (claimed := self._study.claim()) is None and self._study.is_to_wait() and not deadline.passed():
            if self._stopping.wait(LOOK_SECONDS):
                return None
        return claimed

    def _has_turn(self) -> bool:
        with self._lock:
            return next(self._turns, None) is not None
