from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import ConfigError
from common.interfaces import Evaluation
from crossborder.testing import check_callback
from learner.callbacks.early_stopping import EarlyStopping


def ends_at(callback: EarlyStopping, scores: Sequence[float], opts: int = 1) -> int | None:
    """The number of evaluations after which the run is to end; one comes every ``opts`` opt steps."""
    for i, score in enumerate(scores, start=1):
        if callback.on_evaluation(i * opts, Evaluation(score, {})) is not None:
            return i
    return None


@pytest.mark.parametrize(
    ("params", "scores", "expected"),
    [
        ({"patience": 2}, [1, 2, 2, 2], 4),
        ({"patience": 2}, [1, 0, 2, 1, 3, 2], None),
        ({"patience": 1}, [-5, -6], 2),
        ({"patience": 2, "min_improvement": 1.0}, [0, 1, 0.5], 3),
        ({"patience": 2, "min_improvement": 1.0}, [0, 1.5, 3, 4.5], None),
        ({"patience": 2, "after_opts": 40}, [5, 1, 1, 1, 1], 5),
    ],
)
def test_a_run_ends_after_a_number_of_evaluations_without_a_better_score(
    params: dict[str, Any], scores: list[float], expected: int | None
) -> None:
    assert ends_at(EarlyStopping(**params), scores, opts=10) == expected


def test_the_reason_names_the_score_that_was_not_beaten() -> None:
    callback = EarlyStopping(patience=1)
    callback.on_evaluation(1, Evaluation(21.5, {}))
    assert callback.on_evaluation(2, Evaluation(20, {})) == "1 evaluations in a row were no better than 21.5"


def test_a_resumed_run_counts_on() -> None:
    first, second = EarlyStopping(patience=3), EarlyStopping(patience=3)
    assert ends_at(first, [7, 6, 5]) is None
    second.restore(json.loads(json.dumps(first.state())))
    assert ends_at(second, [6.5]) == 1


def test_records_do_not_end_a_run() -> None:
    assert EarlyStopping(patience=1).on_record(1, {"loss": 1.0}) is None


@pytest.mark.parametrize(
    "params", [{"patience": 0}, {"min_improvement": -1.0}, {"min_improvement": math.nan}, {"after_opts": -1}]
)
def test_arguments_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="EarlyStopping: expected patience of at least 1"):
        EarlyStopping(**params)


def test_early_stopping_passes_the_check_of_callbacks() -> None:
    check_callback(EarlyStopping)
