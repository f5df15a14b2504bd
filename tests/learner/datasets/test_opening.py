from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import DatasetError, PluginError, RunDirectoryError
from learner.datasets.opening import open_dataset
from learner.datasets.saved_replay import SavedReplay
from learner.storage.rundir import RunDir
from tests.learner.datasets.saved import save_replay


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)  # An import of it raises.
    monkeypatch.delitem(sys.modules, "learner.datasets.minari_episodes", raising=False)
    with (
        pytest.raises(PluginError, match=r"dataset minari:any-v0: .*minari.*; pip install 'crossborder\[offline\]'"),
        open_dataset("minari:any-v0"),
    ):
        pass


@pytest.mark.parametrize(
    ("package", "file"), [("pyarrow", "one.parquet"), ("pyarrow", "meta/info.json"), ("av", "meta/info.json")]
)
def test_the_missing_extra_of_robots_is_named_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, file: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("step_table", "parquet_episodes", "lerobot_pictures", "lerobot_features", "lerobot_episodes"):
        monkeypatch.delitem(sys.modules, f"learner.datasets.{module}", raising=False)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with (
        pytest.raises(PluginError, match=rf"dataset {tmp_path}: .*{package}.*; pip install 'crossborder\[lerobot\]'"),
        open_dataset(str(tmp_path)),
    ):
        pass


def test_files_of_two_kinds_are_no_dataset(tmp_path: Path) -> None:
    for name in ("one.npz", "one.parquet"):
        (tmp_path / name).touch()
    message = f"dataset {tmp_path}: expected files of one kind, found .npz and .parquet files"
    with pytest.raises(DatasetError, match=message), open_dataset(str(tmp_path)):
        pass


def test_the_directory_of_a_run_is_its_replay(tmp_path: Path) -> None:
    save_replay(tmp_path / "run", 10)
    with open_dataset(str(tmp_path / "run")) as dataset:
        assert isinstance(dataset, SavedReplay)
        assert (dataset.name, len(dataset)) == (str(tmp_path / "run"), 10)


def test_a_run_that_a_learner_is_using_is_not_opened(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    (tmp_path / "run" / "shared" / "replay").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match="another learner is using"), open_dataset(str(tmp_path / "run")):
        pass
    run.close()


def test_a_dataset_that_is_not_there_is_named_as_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    message = rf"found '{tmp_path}/date', which does not exist \(did you mean '{tmp_path}/data'\?\)"
    with pytest.raises(DatasetError, match=message), open_dataset("~/date"):
        pass


def test_an_empty_directory_is_said_to_be_empty(tmp_path: Path) -> None:
    with (
        pytest.raises(DatasetError, match=r"which is empty: no whole episode was recorded there$"),
        open_dataset(str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("source", ["no/such", "mujoco/hopper/expert-v0"])
def test_a_source_of_no_known_kind_is_answered_with_the_kinds_there_are(source: str) -> None:
    message = rf"expected minari:ID, .* or .parquet episodes \(a directory of them, or a file\), found '{source}'"
    with pytest.raises(DatasetError, match=message), open_dataset(source):
        pass
