"""Starts one command on another host by ssh, reads its output, and ends it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Final

from common.errors import ConfigError, CrossborderError, HostUnreachableError, by_exit_code
from common.process.log import relog
from crossborder.launching.hosts_config import HostConfig, LaunchConfig
from crossborder.launching.tether import BEAT, END

log = logging.getLogger(__name__)
SSH_FAILED: Final = 255
"""ssh's own exit code when it cannot connect or the connection breaks, and when a signal kills the remote command."""
NO_PYTHON: Final = (126, 127)
"""A shell's exit codes for a program that cannot be started or is not there."""
IN_ORDER: Final = (0, 143)
"""The exit codes of a command that has ended as it was asked to."""
KEPT_LINES: Final = 3


def ssh_words(config: LaunchConfig, place: HostConfig, command: str, words: Sequence[str]) -> list[str]:
    """The whole ssh command that runs one of our commands on a host.

    The words hold no secret: tokens and keys are in files on that host.
    """
    remote = [
        *(place.python or config.python, "-P", "-m", "crossborder.launching.tether"),
        *(place.directory or config.directory, command, *words),
    ]
    return [
        # ssh uses the first value of an option, so ``options`` cannot make it ask questions.
        *("ssh", "-T", "-o", "BatchMode=yes", *config.ssh.options),
        *("-o", f"ConnectTimeout={config.ssh.connect_seconds}", "-o", "ServerAliveInterval=15"),
        *("-o", "ControlMaster=no", place.host, shlex.join(remote)),
    ]


class RemoteCommand:
    """A command that runs on another host for as long as this process lives (``crossborder.launching.tether``).

    It logs the output under the host's name. Only one thread may call the methods.

    Args:
        host: its name, for the log.
        command: the command's name, for messages.
        words: the ssh command.
        on_end: called with this object from a separate thread, once, when the ssh command has ended.

    Raises:
        ConfigError: this host has no ssh.
    """

    def __init__(self, host: str, command: str, words: Sequence[str], on_end: Callable[[RemoteCommand], None]) -> None:
        self.host, self.command = host, command
        self.code: int | None = None
        """The exit code of the ssh command: that of the remote command, or ``SSH_FAILED``; None while it runs."""
        self._on_end = on_end
        self._is_asked = False
        self._reasons: deque[str] = deque(maxlen=KEPT_LINES)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C must reach this process alone: it ends the commands in order.
            )
        except FileNotFoundError as error:
            raise ConfigError(f"ssh: expected the program on this host, found none: {error}") from error
        pumps = (self._process.stdout, self._log_stdout), (self._process.stderr, self._log_stderr)
        self._pumps = [
            threading.Thread(target=pump, args=(pipe,), name=f"{host}-{pump.__name__}", daemon=True)
            for pipe, pump in pumps
        ]
        for thread in self._pumps:
            thread.start()
        threading.Thread(target=self._await_end, name=f"{host}-end", daemon=True).start()

    def _log_stdout(self, pipe: IO[str]) -> None:
        with pipe:
            for line in filter(str.strip, pipe):
                logging.getLogger(self.host).info("%s", line.rstrip())

    def _log_stderr(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                relog(self.host, line.rstrip())
                self._reasons.extend(_reasons_in(line.rstrip()))

    def _await_end(self) -> None:
        code = self._process.wait()
        for thread in self._pumps:
            thread.join(timeout=1.0)
        self.code = code
        self._on_end(self)

    def beat(self) -> None:
        """Show the remote command that this process is still there; to be called every ``BEAT_SECONDS``."""
        self._write(BEAT)

    def ask_to_end(self) -> None:
        """Have the command end in order; its output is still read."""
        self._is_asked = True
        self._write(END)

    def abandon(self) -> None:
        """End the ssh command at once. The remote command then ends by itself, in order."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the pipe to a command that has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _write(self, byte: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended, and ``on_end`` is about to say so.
            os.write(self._process.stdin.fileno(), byte)

    def error(self) -> CrossborderError | None:
        """Why the command failed; None if it has done its work, or has ended as it was asked to."""
        code = self.code
        if code == 0 or code is None or (self._is_asked and code in IN_ORDER):
            return None
        why = "; ".join(self._reasons)
        if code == SSH_FAILED:
            found = why or "the connection broke, or a signal killed the command"
            return HostUnreachableError(f"{self.host}: {self.command}: {found}")
        if code in NO_PYTHON:
            return ConfigError(f"{self.host}: python: expected an interpreter that has crossborder, found none: {why}")
        found = why or "its log says no more"
        return by_exit_code(code, f"{self.host}: {self.command} ended with exit code {code}: {found}")


def _reasons_in(line: str) -> list[str]:
    """Lines that may say why a command fails: those of a critical log record, or ``line`` if it is no log record."""
    try:
        record = json.loads(line)
        is_critical = record["level"] == "CRITICAL"
        told = str(record["message"]).splitlines()
    except (ValueError, LookupError, TypeError):
        return [line]
    return [each for each in told if not each.startswith("exit code ")] if is_critical else []
