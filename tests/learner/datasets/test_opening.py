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


@pytest.mark.parametrize("source", ["no/such", "mujoco/hopper/expert-v0"])
def test_a_source_of_no_known_kind_is_answered_with_the_kinds_there_are(source: str) -> None:
    message = f"expected minari:ID, a Minari dataset's directory or a run's directory, found '{source}'"
    with pytest.raises(DatasetError, match=message), open_dataset(source):
        pass
