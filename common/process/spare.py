"""Warm spares: a process that has imported everything before it is needed as a child.

Most of a child's start is spent on imports. A spare has done them and waits for its boot line; when the child dies, the
spare gets the boot line and is the next child. ``python -m common.process.spare MODULE…`` runs a spare: it imports the
modules, says that it is warm, and then calls ``main`` of the last one, which reads the boot line.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from common.process.child import WARM, Child, RestartPolicy, say

log = logging.getLogger(__name__)
NICENESS: Final = 10
"""The niceness of a spare that imports while another process works: on a busy core, a tenth of that process's time."""


class Spare:
    """Starts children of one kind, and keeps one process ready to become the next child.

    Not thread-safe: a ``Supervisor`` uses it from its own thread.

    Args:
        name: the children's name in logs.
        module: the module that they run; it has a function ``main`` without arguments.
        pass_fds: file descriptors that they inherit.
        imports: further modules that a spare imports, before ``module``.
        policy: how often a spare that died is replaced.
    """

    def __init__(
        self,
        name: str,
        module: str,
        pass_fds: Sequence[int] = (),
        *,
        imports: Sequence[str] = (),
        policy: RestartPolicy | None = None,
    ) -> None:
        self._name, self._module, self._imports = name, module, imports
        self._pass_fds = pass_fds
        self._directory = Path.cwd()  # Users' parts are found there, whatever an environment in this process does.
        self._policy = policy or RestartPolicy()
        self._waiting: Child | None = None
        """The process that waits for its boot line."""
        self._is_given_up = False

    @property
    def pid(self) -> int | None:
        """The id of the spare process, even if it still imports; None if there is no spare."""
        return self._waiting.pid if self._waiting is not None else None

    @property
    def is_warm(self) -> bool:
        """Whether there is a spare that has imported everything."""
        return self._waiting is not None and self._waiting.is_warm

    def start_child(self, boot: Mapping[str, Any]) -> Child:
        """Start a child: the spare if it is warm, or else a new process."""
        spare, self._waiting = self._waiting, None
        if spare is not None and spare.poll() is None and spare.is_warm:
            spare.tell(boot)
            return spare
        if spare is not None:
            _discard(spare)
        return Child(self._name, self._module, boot, self._pass_fds, directory=self._directory)

    def keep_ready(self) -> None:
        """Start a spare if there is none, or if it has died; to be called about twice a second.

        The child does not need a spare, so a spare that cannot be started is no error.
        """
        if self._waiting is not None and self._waiting.poll() is None:
            return
        if self._waiting is not None:
            died, self._waiting = self._waiting, None
            _discard(died)
            self._note_failure(f"ended with exit code {died.poll()}")
        if not self._is_given_up:
            words = (*self._imports, self._module)
            try:
                self._waiting = Child(
                    self._name, __name__, None, self._pass_fds, arguments=words, directory=self._directory
                )
            except (OSError, subprocess.SubprocessError) as error:  # The host has no process or memory to spare.
                self._note_failure(f"cannot be started: {error}")

    def _note_failure(self, failure: str) -> None:
        """Log why there is no spare; after too many failures there will be none."""
        log.warning("the spare of %s %s", self._name, failure)
        if not self._policy.allows():
            log.error("the spare of %s keeps failing: no more spares are started", self._name)
            self._is_given_up = True

    def end(self) -> None:
        """End the process that waits, if there is one."""
        if self._waiting is not None:
            _discard(self._waiting)
            self._waiting = None


def _discard(spare: Child) -> None:
    """End a spare at once: it has nothing to lose."""
    spare.kill()
    spare.end(1.0)


def _import_slowly(modules: Sequence[str]) -> None:
    """Import modules in this thread, which has a priority of its own on Linux and cannot raise it again."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    for module in modules:
        importlib.import_module(module)


def main() -> int:
    """Run a spare; return the exit code of the child that it becomes."""
    modules = sys.argv[1:]
    # numpy starts the threads of OpenBLAS. Started by the importing thread, they would keep its low priority.
    importlib.import_module("numpy")
    importing = threading.Thread(target=_import_slowly, args=(modules,), name="importing")
    importing.start()
    importing.join()
    imported = [importlib.import_module(module) for module in modules]
    say(WARM)
    code: int = imported[-1].main()
    return code


if __name__ == "__main__":
    sys.exit(main())
