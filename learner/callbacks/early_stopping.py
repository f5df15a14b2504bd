"""Ends a run that no longer gets better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.errors import ConfigError
from common.interfaces import Callback, Evaluation


class EarlyStopping(Callback):
    """Ends a run after a number of evaluations in a row without a better score.

    Args:
        patience: how many evaluations in a row, at least 1.
        min_improvement: a score is better only if it is above the best one by more than this.
        after_opts: evaluations before this opt step count for the best score only.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, patience: int = 10, min_improvement: float = 0.0, after_opts: int = 0) -> None:
        if not (patience >= 1 and 0 <= min_improvement < math.inf and after_opts >= 0):
            raise ConfigError(
                "EarlyStopping: expected patience of at least 1, finite min_improvement and after_opts of at least 0, "
                f"found {patience}, {min_improvement} and {after_opts}"
            )
        self._patience, self._min_improvement, self._after_opts = patience, min_improvement, after_opts
        self._best, self._n_worse = -math.inf, 0

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:
        if evaluation.score > self._best + self._min_improvement:
            self._best, self._n_worse = evaluation.score, 0
        elif opt_steps >= self._after_opts:
            self._n_worse += 1
        if self._n_worse < self._patience:
            return None
        return f"{self._n_worse} evaluations in a row were no better than {self._best:g}"

    def state(self) -> dict[str, Any]:
        return {"best": None if self._best == -math.inf else self._best, "n_worse": self._n_worse}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._best = -math.inf if state["best"] is None else state["best"]
        self._n_worse = state["n_worse"]
