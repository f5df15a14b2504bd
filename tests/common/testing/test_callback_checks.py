from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from common.interfaces import Callback, Evaluation
from common.testing import check_callback


class Best(Callback):
    """A callback as it should be: keeps the best score."""

    def __init__(self) -> None:
        self.best: float | None = None

    def on_evaluation(self, opt_steps: int, evaluation: Evaluation) -> str | None:
        self.best = max(evaluation.score, evaluation.score if self.best is None else self.best)
        return "done" if self.best > 1e9 else None

    def state(self) -> Mapping[str, Any]:
        return {"best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]


class Forgetful(Best):
    """Does not restore what it saved."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Forget to do it."""


class Lacking(Callback):
    """Answers by a count that is not part of its state."""

    n = 0

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        self.n += 1
        return f"{self.n} records"


class Unsaveable(Callback):
    """Has a state that JSON cannot hold."""

    def state(self) -> Mapping[str, Any]:
        return {"seen": {1, 2}}


class Picky(Callback):
    """Needs a key that not every record has."""

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> str | None:
        return "no losses" if record["loss_critic"] < 0 else None


class Flag(Callback):
    """Answers by a flag and gives no reason."""

    def on_record(self, opt_steps: int, record: Mapping[str, float]) -> Any:
        return True


def test_a_callback_that_fits_passes() -> None:
    check_callback(Best)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (Forgetful, r"restore\(\) did not bring back what state\(\) returned"),
        (Lacking, r"state\(\) lacks a part"),
        (Unsaveable, r"state\(\) must return values that JSON can hold"),
        (Picky, r"on_record\(\) failed: keys come and go"),
        (Flag, r"expected a reason as text, or None, found \[True\]"),
    ],
)
def test_a_callback_that_does_not_fit_is_told_what_to_do(make: Callable[[], Callback], advice: str) -> None:
    with pytest.raises(AssertionError, match=advice):
        check_callback(make)
