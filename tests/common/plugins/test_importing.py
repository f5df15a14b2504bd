from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import PluginError
from common.plugins.importing import load
from common.processors import OneStep


def test_a_callable_is_found_by_module_and_name() -> None:
    assert load("common.processors:OneStep") is OneStep


@pytest.mark.parametrize("target", ["", "common.processors", "common.processors:", ":OneStep"])
def test_a_target_without_two_parts_is_refused_with_an_example(target: str) -> None:
    with pytest.raises(PluginError, match=r"expected module:attr, for example common\.agents\.dqn:DQN"):
        load(target)


def test_a_module_that_cannot_be_imported_is_named_with_the_reason() -> None:
    with pytest.raises(PluginError, match=r"cannot import module 'no\.such': No module named 'no'"):
        load("no.such:Thing")


def test_a_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"has no callable 'OneStp' \(did you mean 'OneStep'\?\)"):
        load("common.processors:OneStp")


def test_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PluginError, match="has no callable 'PROTOCOL_VERSION'"):
        load("common.wire.rpc:PROTOCOL_VERSION")


def test_a_module_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_part.py").write_text("def make():\n    return 42\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert load("my_own_part:make")() == 42


def test_a_relative_module_is_refused() -> None:
    with pytest.raises(PluginError, match="expected module:attr"):
        load(".foo:bar")


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
    hint = f"'common' is a package of crossborder's own, which hides {tmp_path / 'common'}: rename yours"
    with pytest.raises(PluginError, match=hint):
        load(target)


def test_a_slip_in_the_name_of_a_module_of_ours_is_no_clash() -> None:
    with pytest.raises(PluginError, match=r"No module named 'common\.agents\.dqm'$"):
        load("common.agents.dqm:DQN")
