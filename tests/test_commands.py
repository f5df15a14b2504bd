"""Every command of the package: its help, its hints and its completion."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable

import pytest

from learner.commands import learner_server
from tests.conftest import ROOT

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
COMMANDS = [*sorted(SCRIPTS), *(f"learner-server {name}" for name in learner_server.COMMANDS)]
SHELLS = ["bash", "zsh"]


def main_of(command: str) -> Callable[[list[str]], int]:
    """The command as a function of its words."""
    name, *first = command.split()
    module, _, attr = SCRIPTS[name].partition(":")
    main = getattr(importlib.import_module(module), attr)
    return lambda words: main([*first, *words])


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that is expected to end at once; what it says."""

    def _say(command: str, *words: str, code: int) -> str:
        with pytest.raises(SystemExit) as ended:
            main_of(command)([*words])
        assert (ended.value.code or 0) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return _say


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does_by_examples_and_each_option(
    command: str, say: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = say(command, "--help", code=0)
    assert f"\n{command}: " in text
    assert len(re.findall(rf"^  {command} ", text.partition("\nexamples:\n")[2], re.MULTILINE)) >= 2
    assert text.rstrip().endswith("exit codes: docs/exit-codes.md")
    options = re.findall(r"^  (?:-h, )?(--[\w-]+)(?: [^ ]+)*?(?:  +(.+))?$", text, re.MULTILINE)
    assert len(options) >= 5
    assert [option for option, meaning in options if len(meaning) < 5] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_option_is_answered_with_the_right_one(command: str, say: Callable[..., str]) -> None:
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", say(command, "--help", code=0).partition("\nexamples:")[0]))
    for option in options - {"--h"}:
        assert f"(did you mean '{option}'?)" in say(command, option[:-2] + option[-1] + "x", code=2)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_value_is_answered_with_the_right_one(command: str, say: Callable[..., str]) -> None:
    assert "'WARN' (did you mean 'WARNING'?)" in say(command, "--log-level", "WARN", code=2)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("command", sorted(SCRIPTS))
def test_a_shell_can_complete_it(command: str, shell: str, say: Callable[..., str]) -> None:
    script = say(command, "--print-completion", shell, code=0)
    assert "--log-format" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
