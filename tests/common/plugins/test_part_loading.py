from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import PluginError
from common.lanes.stacking import Stacker
from common.plugins.part_loading import MOVED, find_present_place, load_part


def test_a_callable_is_found_by_module_and_name() -> None:
    assert load_part("common.lanes.stacking:Stacker") is Stacker


@pytest.mark.parametrize("target", ["", "common.lanes.stacking", "common.lanes.stacking:", ":Stacker"])
def test_a_target_without_module_or_attribute_is_refused_with_an_example(target: str) -> None:
    with pytest.raises(PluginError, match=r"expected module:attr, for example common\.agents\.dqn:DQN"):
        load_part(target)


def test_a_module_that_cannot_be_imported_is_named_with_the_reason() -> None:
    with pytest.raises(PluginError, match=r"cannot import module 'no\.such': No module named 'no'"):
        load_part("no.such:Thing")


def test_a_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"has no callable 'Stackr' \(did you mean 'Stacker'\?\)"):
        load_part("common.lanes.stacking:Stackr")


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PluginError, match="has no callable 'PROTOCOL_VERSION'"):
        load_part("common.wire.rpc:PROTOCOL_VERSION")


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_part.py").write_text("def make():\n    return 42\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert load_part("my_own_part:make")() == 42


def test_a_relative_module_is_refused() -> None:
    with pytest.raises(PluginError, match="expected module:attr"):
        load_part(".foo:bar")


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("from common import own_thing", "my_clashing_part:make"),
        ("import common.own_module", "my_clashing_part:make"),
        ("", "common.own_module:make"),
    ],
)
def test_a_package_with_the_name_of_one_of_ours_is_told_to_be_renamed(
    code: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_clashing_part.py").write_text(code)
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "own_module.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    hint = f"'common' is also a package of crossborder, which hides {tmp_path / 'common'}: rename your package"
    with pytest.raises(PluginError, match=hint):
        load_part(target)


def test_a_misspelt_module_of_ours_is_not_called_a_clash() -> None:
    with pytest.raises(PluginError, match=r"No module named 'common\.agents\.dqm'$"):
        load_part("common.agents.dqm:DQN")


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_part_is_found_under_the_name_that_earlier_releases_gave_it(old: str, new: str) -> None:
    assert load_part(old) is load_part(new)


def test_the_new_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    find_present_place.cache_clear()
    for _ in range(2):
        assert find_present_place("learner.mlflow:MlflowRecorder") == "learner.records.mlflow:MlflowRecorder"
    assert [record.getMessage() for record in caplog.records] == [
        "learner.mlflow:MlflowRecorder has moved: write learner.records.mlflow:MlflowRecorder in the configuration"
    ]
