from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.errors import PluginError
from common.plugins import part_loading
from learner.loop.in_turns import train_in_turns
from learner.records.beside import BesideRecorder
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from learner.records.mlflow import MlflowRecorder


def connect(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient  # It takes more than a second, which only these tests need.

    return MlflowClient(uri)


def make_recorder(run_dir: Path, tracking_uri: str | None = None, experiment: str = "crossborder") -> MlflowRecorder:
    from learner.records.mlflow import MlflowRecorder  # It imports mlflow.

    return MlflowRecorder(run_dir, tracking_uri, experiment)


def only_run(client: MlflowClient, experiment: str) -> Run:
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id])
    return run


def test_records_become_metrics_over_opt_steps_and_the_configuration_parameters(make_config: MakeConfig) -> None:
    recorders = [{"target": "learner.records.mlflow:MlflowRecorder"}]
    result = train_in_turns(make_config(agent=IN_TURNS, recorders=recorders, trainer={"max_opts": 300}))
    client = connect((result.run_dir / "mlflow").as_uri())
    run = only_run(client, "crossborder")
    samples = client.get_metric_history(run.info.run_id, "samples_total")
    assert [(metric.step, metric.value) for metric in samples] == [(100, 101), (200, 201), (300, 301)]
    assert "loss" in run.data.metrics
    assert run.info.run_name == result.run_dir.name == "run"
    assert run.info.status == "FINISHED"
    params = run.data.params
    assert (params["trainer.max_opts"], params["agent.params.in_turns"], params["seed"]) == ("300", "True", "0")


def test_a_key_that_mlflow_refuses_gets_another_name(tmp_path: Path) -> None:
    from learner.records.mlflow import MlflowRecorder  # It imports mlflow.

    recorder = MlflowRecorder(tmp_path, config={"env": {"info": {"reward:forward (m/s)": "float32"}}})
    recorder.write(1, {"info/reward:forward (m/s)": 0.5})
    recorder.close()
    run = only_run(connect((tmp_path / "mlflow").as_uri()), "crossborder")
    assert run.data.params["env.info.reward_forward _m/s_"] == "float32"
    assert run.data.metrics["info/reward_forward _m/s_"] == 0.5


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(make_config: MakeConfig) -> None:
    recorders = [{"target": "learner.records.mlflow:MlflowRecorder"}]
    for max_opts in (100, 200):
        config = make_config(agent=IN_TURNS, recorders=recorders, trainer={"max_opts": max_opts})
        result = train_in_turns(config, resume=True)
    client = connect((result.run_dir / "mlflow").as_uri())
    run = only_run(client, "crossborder")
    samples = client.get_metric_history(run.info.run_id, "samples_total")
    assert [metric.step for metric in samples] == [100, 200]
    assert run.info.status == "FINISHED"


def test_two_runs_share_a_tracking_store_and_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # In place of a server.
    uri = (tmp_path / "store").as_uri()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_recorder(tmp_path / name, tracking_uri=uri, experiment="shared").close()
    client = connect(uri)
    found = client.get_experiment_by_name("shared")
    assert found is not None
    assert sorted(run.info.run_name or "" for run in client.search_runs([found.experiment_id])) == ["a", "b"]


def test_a_server_that_cannot_be_reached_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(PluginError, match=r"recorders: MLflow at http://\*+@127\.0\.0\.1:9: "):
        make_recorder(tmp_path, "http://me:secret@127.0.0.1:9")


def test_training_goes_on_when_the_tracking_store_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = BesideRecorder("mlflow", lambda: make_recorder(tmp_path))
    (run,) = (tmp_path / "mlflow").glob("*/*/meta.yaml")
    shutil.rmtree(run.parent)
    recorder.write(7, {"loss": 0.5})
    recorder.close()
    assert "mlflow: training goes on without the record of opt step 7: MlflowException" in caplog.text
    assert "mlflow: the last records may be missing: MlflowException" in caplog.text


@pytest.mark.parametrize(
    ("package", "target"),
    [
        ("mlflow", "learner.records.mlflow:MlflowRecorder"),
        ("tensorboard", "learner.records.tensorboard:TensorBoardRecorder"),
        ("wandb", "learner.records.wandb:WandbRecorder"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str, target: str) -> None:
    missing = [name for name in sys.modules if name.split(".")[0] == package or ".tensorboard" in name]
    for name in (*missing, f"learner.records.{package}"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PluginError, match=rf"{package}.*; pip install 'crossborder\[{package}\]'"):
        part_loading.load_part(target)
