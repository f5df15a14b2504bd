from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import crossborder
from common import errors
from common.errors import CrossborderError
from common.plugins.shipped import OWN_PACKAGES, SHIPPED
from crossborder.door import public_names, read_sections
from tests.conftest import ROOT

TELL_MODULES = "; import sys; print(*(name for name in sys.modules if name.partition('.')[0] in {packages}))"
HIDE = "import sys; sys.modules['rich'] = None; "


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, with directories before the rest of the search path."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": ":".join(map(str, (*path, ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import crossborder", {"crossborder"}),
        ("import crossborder.commands", {"crossborder", "crossborder.commands"}),
        ("import crossborder; dir(crossborder)", {"crossborder", "crossborder.commands", "crossborder.door"}),
    ],
)
def test_the_door_imports_no_package_before_a_name_is_used(code: str, expected: set[str]) -> None:
    packages = {*OWN_PACKAGES, "torch", "numpy", "grpc", "pydantic"}
    told = run(code + TELL_MODULES.format(packages=packages))
    assert {*told.stdout.split()} == expected, told.stderr


def test_a_name_imports_what_it_needs_and_no_more() -> None:
    told = run("from crossborder import Array, ConfigError" + TELL_MODULES.format(packages={"torch", "grpc", "common"}))
    assert set(told.stdout.split()) == {"common", "common.data", "common.domain", "common.errors"}, told.stderr


def test_every_name_is_there_and_is_the_one_of_its_module() -> None:
    for name, module in public_names().items():
        assert getattr(crossborder, name) is getattr(importlib.import_module(module), name)
    assert public_names().keys() <= {*dir(crossborder)}


def test_a_star_imports_every_name() -> None:
    told = run("from crossborder import *; print(*(name for name in dir() if not name.startswith('_')))")
    assert {*told.stdout.split()} == public_names().keys(), told.stderr


def test_every_name_stands_once_under_one_heading() -> None:
    listed = [name for names in read_sections().values() for name in names]
    assert sorted(listed) == sorted(public_names())
    assert "" not in read_sections()
    assert not {*listed} & {path.stem for path in Path(crossborder.__file__).parent.iterdir()}, "a room has this name"


def test_every_agent_and_every_error_is_there() -> None:
    assert {*SHIPPED["agent"]} == {*read_sections()["Agents"]}
    ours = [kind for kind in CrossborderError.__subclasses__() if kind.__module__ == errors.__name__]
    assert {"CrossborderError", *(kind.__name__ for kind in ours)} == {*read_sections()["Errors"]}


def test_a_name_that_is_not_there_gets_the_hint_of_python() -> None:
    told = run("import crossborder; crossborder.trian")
    assert "module 'crossborder' has no attribute 'trian'. Did you mean: 'train'?" in told.stderr
    assert not hasattr(crossborder, "trian")


def test_the_error_names_the_extra_that_brings_what_is_missing() -> None:
    told = run(HIDE + "import crossborder; crossborder.train")
    assert "ImportError: crossborder.train: expected the packages that a learner needs, found no rich;" in told.stderr
    assert "pip install 'crossborder[learner]'" in told.stderr
    assert run(HIDE + "import crossborder; crossborder.Agent").stderr == ""


def test_the_error_names_a_package_of_our_name_that_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    told = run("import crossborder; crossborder.Agent", tmp_path)
    assert f"ImportError: crossborder.Agent: expected crossborder's own package {ROOT / 'common'}" in told.stderr


def test_another_module_that_is_missing_is_named_as_python_names_it() -> None:
    told = run(HIDE + "sys.modules['common.domain'] = None; import crossborder; crossborder.Array")
    assert "import of common.domain halted" in told.stderr
