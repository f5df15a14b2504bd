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

from common.interfaces import RunIdentity

log = logging.getLogger(__name__)
_TAG = "crossborder_run_id"
"""The tag by which the MLflow run of a resumed run is found again."""
PARAMS_PER_BATCH = 100
"""The server takes no more in one request."""


class MlflowRecorder:
    """A ``Recorder`` that writes every key as a metric over ``opt_steps``; the configuration becomes the parameters.

    The MLflow run is named after the run's directory and ends when training does, however that was. When the run is
    resumed, the same MLflow run goes on. Every record is one request for which training waits.

    Args:
        run_dir: of the run, with its ``config.yaml``.
        tracking_uri: of an MLflow server, for example ``http://mlflow:5000``; None writes files to ``mlflow/`` in
            ``run_dir``, the one store of mlflow-skinny that needs no server.
        experiment: the MLflow experiment; made if there is none of this name.
        identity: which run it is; None begins a new MLflow run each time.

    Raises:
        MlflowException: the run cannot be begun; later failures are logged and training goes on.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str | None = None,
        experiment: str = "crossborder",
        *,
        identity: RunIdentity | None = None,
    ) -> None:
        if tracking_uri is None:
            tracking_uri = (run_dir / "mlflow").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # Since MLflow 3 one has to ask for it.
        self._client = MlflowClient(tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        earlier = self._find_run(experiment_id, identity) if identity is not None else None
        if earlier is not None:
            self._run_id = earlier
            self._client.update_run(earlier, status="RUNNING")
            return  # Its parameters stay those of its first life, since MLflow takes no others.
        tags = {_TAG: identity.run_id} if identity is not None else {}
        self._run_id = self._client.create_run(experiment_id, tags=tags, run_name=run_dir.resolve().name).info.run_id
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        params = [Param(key, str(value)) for key, value in _flat(config)]
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS_PER_BATCH])

    def _find_run(self, experiment_id: str, identity: RunIdentity) -> str | None:
        """The id of the MLflow run of an earlier life of this run; None if none has its tag."""
        if not identity.is_resumed:
            return None
        found = self._client.search_runs([experiment_id], f"tags.{_TAG} = '{identity.run_id}'", max_results=1)
        run_id: str | None = found[0].info.run_id if found else None
        return run_id

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
