"""Parts that earlier releases had in other modules; a configuration that names the old place still works."""

from __future__ import annotations

import functools
import logging
from typing import Final

log = logging.getLogger(__name__)

MOVED: Final = {
    "learner.evaluator:DefaultEvaluator": "learner.evaluation.evaluator:DefaultEvaluator",
    "learner.mlflow:MlflowRecorder": "learner.records.mlflow:MlflowRecorder",
    "learner.recorder:CsvRecorder": "learner.records.csv_recorder:CsvRecorder",
    "learner.tensorboard:TensorBoardRecorder": "learner.records.tensorboard:TensorBoardRecorder",
}
"""The new place by the old one, both as ``module:attr``."""


@functools.cache
def present_place(target: str) -> str:
    """The place where a part is now. A part that has moved is logged, once in each process."""
    place = MOVED.get(target, target)
    if place != target:
        log.warning("%s has moved: write %s in the configuration", target, place)
    return place
