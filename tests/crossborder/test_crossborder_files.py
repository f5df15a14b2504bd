from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from crossborder.crossborder_files import SOURCES, main
from tests.conftest import ROOT
from tests.disks import Disk


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_every_file_is_copied_as_it_is(tmp_path: Path) -> None:
    assert main([str(tmp_path / "files")]) == 0
    for name, source in SOURCES.items():
        copy, original = tmp_path / "files" / name, ROOT / source
        assert (files_below(copy), copy.is_dir()) == (files_below(original), original.is_dir())
    assert (tmp_path / "files/configs/cartpole.yaml").read_text() == (ROOT / "configs/cartpole.yaml").read_text()


def test_the_list_names_each_file_that_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "files")])
    assert main(["--list"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == files_below(tmp_path / "files")


def test_a_directory_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path}: expected the name of a new directory" in capsys.readouterr().err
    assert files_below(tmp_path) == []


def test_a_copy_that_fails_leaves_nothing_behind(disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    disk.fill()
    assert main([str(disk.path / "files")]) == 2
    assert "files cannot be copied there" in capsys.readouterr().err
    assert not (disk.path / "files").exists()


def test_without_a_directory_the_command_says_what_it_expects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "expected a directory for the copies, or --list" in capsys.readouterr().err


def test_a_wheel_has_the_same_files_as_a_clone() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {source: f"crossborder/files/{name}" for name, source in SOURCES.items()}
