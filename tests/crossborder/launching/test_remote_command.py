from __future__ import annotations

import logging
import queue
import shlex

import pytest

from common.errors import ConfigError, CrossborderError, HostUnreachableError, RunDirectoryError
from crossborder.launching.remote_command import RemoteCommand, ssh_words
from tests.conftest import PATIENCE
from tests.crossborder.launching.hosts import StandInHosts


def opened(*words: str) -> tuple[RemoteCommand, queue.Queue[RemoteCommand]]:
    """A remote command whose ssh command is another, and the queue that gets it at its end."""
    ended: queue.Queue[RemoteCommand] = queue.Queue(maxsize=1)
    return RemoteCommand("cpu-1", "actor-worker", words, ended.put_nowait), ended


def error_of(*words: str) -> CrossborderError | None:
    remote, ended = opened(*words)
    assert ended.get(timeout=PATIENCE) is remote
    remote.close()
    return remote.error()


def test_ssh_asks_nothing_and_starts_the_command_in_a_tether_with_quoted_words(hosts: StandInHosts) -> None:
    config = hosts.config("cpu-1")
    *options, host, remote = ssh_words(config, config.actors[0], "actor-worker", ["--allow", "a b;c"])
    assert options[:4] == ["ssh", "-T", "-o", "BatchMode=yes"]
    assert "ConnectTimeout=10" in options
    assert host == "cpu-1"
    module = ["-P", "-m", "crossborder.launching.tether", "~", "actor-worker", "--allow", "a b;c"]
    assert shlex.split(remote) == [config.python, *module]


def test_output_is_logged_under_the_hosts_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record = '{"level": "WARNING", "logger": "x.y", "message": "slow"}'
    assert error_of("sh", "-c", f"echo one; echo; echo '{record}' >&2") is None
    assert sorted((r.name, r.levelname, r.getMessage()) for r in caplog.records) == [
        ("cpu-1", "INFO", "one"),
        ("cpu-1.x.y", "WARNING", "slow"),
    ]


def test_only_a_command_that_was_asked_to_end_may_end_as_by_sigterm() -> None:
    remote, ended = opened("sh", "-c", "head -c 2 >&2; exit 143")
    remote.beat()
    remote.ask_to_end()
    ended.get(timeout=PATIENCE)
    assert remote.error() is None
    remote.beat()  # Nobody reads it any more.
    remote.close()
    assert error_of("sh", "-c", "exit 143") is not None


@pytest.mark.parametrize(
    ("script", "kind", "found"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", HostUnreachableError, "Permission denied (publickey)."),
        ("exit 255", HostUnreachableError, "the connection broke, or a signal killed the command"),
        (
            "echo 'no such file' >&2; exit 127",
            ConfigError,
            "expected an interpreter that has crossborder, found none: no",
        ),
        ("exit 4", RunDirectoryError, "actor-worker ended with exit code 4: its log says no more"),
        ("kill -9 $$", CrossborderError, "ended with exit code -9"),
    ],
)
def test_a_failure_names_its_host_and_its_reason(script: str, kind: type[CrossborderError], found: str) -> None:
    error = error_of("sh", "-c", script)
    assert type(error) is kind
    assert str(error).startswith("cpu-1: ")
    assert found in str(error)


def test_an_abandoned_remote_command_ends_at_once() -> None:
    remote, ended = opened("sleep", "600")
    remote.abandon()
    assert ended.get(timeout=PATIENCE).code == -9


def test_a_machine_without_ssh_gets_an_error_that_names_ssh() -> None:
    with pytest.raises(ConfigError, match="ssh: expected the program on this host"):
        opened("/nowhere/ssh")
