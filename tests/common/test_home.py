"""In each path that a user writes, ``~`` is the user's home; a user without a home hears which setting needs it."""

from __future__ import annotations

import argparse
import getpass
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import actor
import common
import learner
from common.config.server_config import TlsConfig
from common.errors import ConfigError, PluginError
from common.plugins.part_config import PluginConfig
from common.process.command import Parser, as_output, as_path
from common.settings import Settings, validate
from common.wire.tokens import TokenSource
from common.wire.trust import Trust
from learner.datasets.opening import open_dataset
from tests.test_commands import COMMANDS, main_of


def settings_below(model: type[Settings]) -> Iterator[type[Settings]]:
    for each in model.__subclasses__():
        yield each
        yield from settings_below(each)


def has_plain_path(annotation: Any) -> bool:
    """Whether a type has ``Path`` in it that no ``Annotated`` explains."""
    if typing.get_origin(annotation) is Annotated:
        inner, *explained = typing.get_args(annotation)
        return has_plain_path(inner) and not (inner is Path and explained)
    return annotation is Path or any(map(has_plain_path, typing.get_args(annotation)))


def test_each_path_in_settings_says_whose_home_it_means() -> None:
    for package in (actor, common, learner):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    models = [model for model in settings_below(Settings) if not model.__module__.startswith("tests.")]
    assert Trust in models
    found = {
        f"{model.__qualname__}.{key}"
        for model in models
        for key, hint in typing.get_type_hints(model, include_extras=True).items()
        if key in model.model_fields and has_plain_path(hint)
    }
    assert found == set(), "use HomePath or PathElsewhere of common.settings"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_for_a_path_knows_the_home(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[argparse.Action] = []

    def look(self: Parser, *_: object) -> typing.NoReturn:
        options.extend(self._actions)
        raise SystemExit(0)

    monkeypatch.setattr(Parser, "parse_known_args", look)
    with pytest.raises(SystemExit):
        main_of(command)([])
    paths = [each for each in options if each.metavar in {"DIR", "DIR2", "DIR3", "FILE", "FILE.onnx", "RUN"}]
    known = (as_path, as_output)
    plain = [each for each in paths if each.type not in known and each.dest != "overrides"]  # Settings have a test.
    assert [each.option_strings or each.dest for each in plain] == []
    assert [each.option_strings or each.dest for each in options if each.type is Path] == []


def test_the_home_is_put_into_settings_and_options_and_kept_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/mine")
    files = {"certificate": "~/a.pem", "key": "a.key"}
    assert validate(TlsConfig, files).certificate == Path("/home/of/mine/a.pem")
    assert validate(Trust, files).certificate == Path("~/a.pem")
    assert as_path("~/a/b") == Path("/home/of/mine/a/b")
    with pytest.raises(argparse.ArgumentTypeError, match=r"^/home/of/mine/a: cannot be written"):
        as_output("~/a")
    assert as_path("a/~") == Path("a/~")


def test_a_path_that_no_file_can_have_is_refused_where_it_is_written() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^expected a path, found 'xxx.*x…': File name too long$"):
        as_path("x" * 300)
    with pytest.raises(ConfigError, match=r"^server\.tls\.certificate: .*null"):
        validate(TlsConfig, {"certificate": "a\0b", "key": "a.key"}, "server.tls")
    assert as_path("x" * 200) == Path("x" * 200)


def test_a_link_that_cannot_be_followed_is_refused_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(argparse.ArgumentTypeError, match=r"^expected a path, found .*: Too many levels of symbolic"):
        as_path(str(tmp_path / "loop"))
    (tmp_path / "later").symlink_to("not made yet")
    assert as_path(str(tmp_path / "later")) == tmp_path / "later"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a container: without a name, and without HOME."""

    def nobody(_: object) -> typing.NoReturn:
        raise KeyError("getpwuid(): uid not found: 54321")

    for variable in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_error_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^server\.tls\.certificate: expected a path .*'~/a\.pem': set HOME"):
        validate(TlsConfig, {"certificate": "~/a.pem", "key": "a.key"}, "server.tls")
    with pytest.raises(argparse.ArgumentTypeError, match="found '~/a': set HOME"):
        as_path("~/a")
    with pytest.raises(ConfigError, match=r"^dataset: expected a path"), open_dataset("~/episodes"):
        pytest.fail("it was opened")
    with pytest.raises(ConfigError, match=r"^TOKEN_FILE: expected a path"):
        TokenSource.find(None, "TOKEN", {"TOKEN_FILE": "~/token"})


def at_home() -> Path:
    return Path.home()


def by_name() -> str:
    return getpass.getuser()


def broken() -> None:
    raise RuntimeError("broken")


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("part", ["at_home", "by_name"])
def test_a_part_that_needs_a_home_or_a_name_is_named_with_what_to_do(part: str) -> None:
    with pytest.raises(PluginError, match=rf"^tests\.common\.test_home:{part}: .*; set HOME to a directory, and USER"):
        PluginConfig(target=f"tests.common.test_home:{part}").build()


@pytest.mark.usefixtures("homeless")
def test_another_error_of_a_part_is_left_as_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^broken$"):
        PluginConfig(target="tests.common.test_home:broken").build()
