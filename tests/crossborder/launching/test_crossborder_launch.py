from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from common.errors import ConfigError
from crossborder.launching.crossborder_launch import main
from tests.conftest import Command, wait_for
from tests.crossborder.launching.hosts import StandInHosts


def write(hosts: StandInHosts, *names: str) -> str:
    path = hosts.folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(hosts.values(*names)))
    return str(path)


def test_the_ssh_commands_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(StandInHosts(tmp_path), "a", "b"), "--show"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [words[-2] for words in lines] == ["gpu", "gpu", "a", "b"]
    assert all(words[0] == "ssh" for words in lines)
    assert not (tmp_path / "started").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "hosts.yaml")]) == ConfigError.exit_code
    assert f"crossborder-launch: {tmp_path / 'hosts.yaml'}: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signalled", "number"),
    [
        (Command.signal, signal.SIGINT),
        (Command.signal, signal.SIGTERM),
        (Command.signal_another_thread, signal.SIGTERM),
    ],
)
def test_a_signal_ends_all_hosts_in_order(
    signalled: Callable[[Command, int], None],
    number: int,
    tmp_path: Path,
    start: Callable[..., Command],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = StandInHosts(tmp_path)
    launch = start("crossborder-launch", write(hosts, "a"))
    wait_for(lambda: "actor-worker" in hosts.lines("started"), "actors")
    signalled(launch, number)
    assert launch.wait() == 128 + number
    assert hosts.lines("ended") == ["actor-worker asked", "learner-server asked"]


def test_commands_on_the_hosts_end_when_the_launcher_is_killed(
    tmp_path: Path, start: Callable[..., Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = StandInHosts(tmp_path)
    launch = start("crossborder-launch", write(hosts, "a"))
    wait_for(lambda: "actor-worker" in hosts.lines("started"), "actors")
    launch.signal(signal.SIGKILL)
    wait_for(lambda: len(hosts.lines("ended")) == 2, "both commands see that nobody is there")
    assert sorted(hosts.lines("ended")) == ["actor-worker alone", "learner-server alone"]
