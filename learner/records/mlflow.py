"""Records in MLflow, on a tracking server or beside the run: ``pip install 'crossborder[mlflow]'``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[mlflow]'") from error

from common.config.nested import flatten
from common.errors import PluginError
from common.interfaces import RunIdentity
from learner.records.masking import hide_user

_TAG = "crossborder_run_id"
"""The tag by which the MLflow run of a resumed run is found again."""
_NOT_IN_NAMES = re.compile(r"[^\w.\- /]")
PARAMS_PER_BATCH = 100
"""MLflow's limit for one request."""


class MlflowRecorder:
    """A ``Recorder`` that writes every key as a metric over ``opt_steps``.

    The configuration, without its secrets, becomes the parameters. The MLflow run is named after the run's directory
    and ends when training ends, also by an error. When the run is resumed, the same MLflow run goes on. Each record is
    one request. MLflow's names have fewer characters than ours: a key has ``_`` in the place of each other character.

    Args:
        run_dir: the run's directory.
        tracking_uri: of an MLflow server, for example ``http://mlflow:5000``. None writes files to ``mlflow/`` in
            ``run_dir``; no other store of mlflow-skinny works without a server.
        experiment: name of the MLflow experiment, which is created if it does not exist.
        identity: of the run; None begins a new MLflow run each time.
        config: of the run, without secrets.

    Raises:
        PluginError: the MLflow run cannot be created.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str | None = None,
        experiment: str = "crossborder",
        *,
        identity: RunIdentity | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if tracking_uri is None:
            tracking_uri = (run_dir / "mlflow").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses files without it.
        self._client = MlflowClient(tracking_uri)
        try:
            self._run_id = self._begin(run_dir, experiment, identity, config or {})
        except MlflowException as error:
            raise PluginError(f"recorders: MLflow at {hide_user(tracking_uri)}: {error}") from error

    def _begin(self, run_dir: Path, experiment: str, identity: RunIdentity | None, config: Mapping[str, Any]) -> str:
        """Find the MLflow run of an earlier life of this run, or create one with its parameters; return its id."""
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        earlier = self._find_run(experiment_id, identity) if identity is not None else None
        if earlier is not None:
            self._client.update_run(earlier, status="RUNNING")
            return earlier  # It keeps the parameters of its first life, since MLflow does not let them change.
        tags = {_TAG: identity.run_id} if identity is not None else {}
        run_id: str = self._client.create_run(experiment_id, tags=tags, run_name=run_dir.resolve().name).info.run_id
        params = [Param(_name(key), str(value)) for key, value in flatten(dict(config)).items()]
        for start in range(0, len(params), PARAMS_PER_BATCH):
            self._client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
        return run_id

    def _find_run(self, experiment_id: str, identity: RunIdentity) -> str | None:
        """The id of the MLflow run of an earlier life of this run; None if none has its tag."""
        if not identity.is_resumed:
            return None
        found = self._client.search_runs([experiment_id], f"tags.{_TAG} = '{identity.run_id}'", max_results=1)
        run_id: str | None = found[0].info.run_id if found else None
        return run_id

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run_id, [Metric(_name(key), value, now, opt_steps) for key, value in record.items()]
        )

    def flush(self) -> None:
        """Every record has been sent by ``write`` already."""

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def _name(key: str) -> str:
    """The name of a key in MLflow, which refuses a colon, for example."""
    return _NOT_IN_NAMES.sub("_", key)
