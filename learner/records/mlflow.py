"""Records in MLflow, on a tracking server or beside the run: ``pip install 'crossborder[mlflow]'``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

try:
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[mlflow]'") from error

log = logging.getLogger(__name__)
PARAMS_PER_BATCH = 100
"""The server takes no more in one request."""


class MlflowRecorder:
    """A ``Recorder`` that writes every key as a metric over ``opt_steps``; the configuration becomes the parameters.

    The MLflow run is named after the run's directory and ends when training does, however that was. Every record is one
    request for which training waits.

    Args:
        run_dir: of the run, with its ``config.yaml``.
        tracking_uri: of an MLflow server, for example ``http://mlflow:5000``; None writes files to ``mlflow/`` in
            ``run_dir``, the one store of mlflow-skinny that needs no server.
        experiment: the MLflow experiment; made if there is none of this name.

    Raises:
        MlflowException: the run cannot be begun; later failures are logged and training goes on.
    """

    def __init__(self, run_dir: Path, tracking_uri: str | None = None, experiment: str = "crossborder") -> None:
        if tracking_uri is None:
            tracking_uri = (run_dir / "mlflow").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # Since MLflow 3 one has to ask for it.
        self._client = MlflowClient(tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        self._run_id = self._client.create_run(experiment_id, run_name=run_dir.resolve().name).info.run_id
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        params = [Param(key, str(value)) for key, value in _flat(config)]
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_PER_BATCH])

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        try:
            self._client.log_batch(self._run_id, [Metric(key, value, now, opt_steps) for key, value in record.items()])
        except MlflowException as error:
            log.error("opt step %d: not recorded in MLflow: %s", opt_steps, error)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        try:
            self._client.set_terminated(self._run_id)
        except MlflowException as error:
            log.error("the run is not ended in MLflow: %s", error)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``("trainer.max_opts", 500)`` and so on; lists stay whole."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
