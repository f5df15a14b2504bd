"""Keeps a child process running: watches it, and starts it again when it dies."""

from __future__ import annotations

import logging
import math
import subprocess
import threading
from collections.abc import Callable
from typing import Final

from common.errors import ChildFailedError, ConfigError, CrossborderError, NotInPlaceError
from common.process.child import Child, RestartPolicy, describe_end, may_restart_help
from common.process.clocks import Deadline
from common.process.signals import NOTICE_SECONDS

log = logging.getLogger(__name__)
FILES_SECONDS: Final = 1.0
"""The time between two looks whether a file can be used again."""
SIGNALLED: Final = 128
"""Plus the number of a signal: the exit code of a child that has ended itself at its second signal."""


class Supervisor:
    """Keeps one child running until ``stop``: watches it in a thread and starts it again when it dies.

    Args:
        start: starts the child; called again for each restart.
        on_give_up: called with the reason when the child died too often, or ended for a reason that a restart does not
            remove.
        finished: exit codes of a child that has done its work and is not started again.
        policy: how often to restart.
        is_hung: called twice a second while the child runs. A child that hangs is killed, and then started again as
            any other child that dies.

    Only a child for which ``may_restart_help``, or which has ended itself at a second signal, is started again. If
    ``start`` raises a ConfigError then, it is repeated until it succeeds: the first start had the same settings, so a
    file that they name cannot be used at this moment. Certificates, for example, are replaced one after the other. The
    same holds for a NotInPlaceError.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        on_give_up: Callable[[CrossborderError], None],
        finished: frozenset[int] = frozenset({0}),
        policy: RestartPolicy | None = None,
        is_hung: Callable[[], bool] = lambda: False,
    ) -> None:
        self._start = start
        self._is_hung = is_hung
        self._on_give_up = on_give_up
        self._finished = finished
        self._policy = policy or RestartPolicy()
        self._stopping = threading.Event()
        self._awaited: str | None = None
        """Why the next start waits; None while it does not."""
        self.restarts = 0
        self.child = start()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{self.child.name}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopping.is_set() and self._look():
            pass

    def _look(self) -> bool:
        """Watch the child for half a second, and start it again if it has died; False if it is no longer watched."""
        code = self.child.wait(0.5)
        if code is None and not self._stopping.is_set() and self._is_hung():
            code = self._kill_hung()
        if code is None or self._stopping.is_set():
            return True
        return code not in self._finished and self._restart(code)

    def _kill_hung(self) -> int | None:
        """Kill the child; its exit code, or None if the kernel cannot end it yet, as in a call to a disk that hangs.

        Then the child still counts as hanging, and is killed again half a second later.
        """
        log.error("%s (process %d) shows no sign of life and is killed", self.child.name, self.child.pid)
        self.child.kill()
        return self.child.wait(10.0)

    def _restart(self, code: int) -> bool:
        """Start the child again after its end with this exit code, or give it up; False if it is no longer watched."""
        may_help = code > SIGNALLED or may_restart_help(code)
        if self._awaited is None and not (may_help and self._policy.allows()):
            self._on_give_up(self.child.error())
            return False
        if self._awaited is None:
            log.warning("%s ended with %s and is started again", self.child.name, describe_end(code))
        try:
            self.child.end(0)
            child = self._start()
        except (ChildFailedError, ConfigError, NotInPlaceError) as error:
            self._note_failed_start(error)
            return True  # ``self.child`` is still the dead child: ``_watch`` comes here again while the policy allows.
        except CrossborderError as error:
            self._on_give_up(error)
            return False
        except (OSError, subprocess.SubprocessError) as error:
            self._on_give_up(ChildFailedError(f"{self.child.name} cannot be started again: {error}"))
            return False
        if self._stopping.is_set():
            child.end(0)  # ``stop_watching`` was called during the start: its caller knows only the former child.
            return False
        self.child, self._awaited = child, None
        self.restarts += 1
        return True

    def _note_failed_start(self, error: CrossborderError) -> None:
        """Log why the child could not be started again; if files cannot be used, wait before the next try."""
        if isinstance(error, ChildFailedError):
            log.warning("%s and is tried again", error)
            self._awaited = None
            return
        if self._awaited != str(error):
            log.error("%s is started again once its files can be used: %s", self.child.name, error)
        self._awaited = str(error)
        self._stopping.wait(FILES_SECONDS)

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until the child has finished, was given up, or ``stop_watching`` was called; False after ``seconds``."""
        deadline = Deadline(seconds)
        while self._thread.is_alive() and not deadline.passed():
            self._thread.join(timeout=min(NOTICE_SECONDS, deadline.remaining()))
        return not self._thread.is_alive()

    def stop_restarting(self) -> None:
        """Do not start the child again if it ends from now on; returns at once."""
        self._stopping.set()

    def stop_watching(self) -> None:
        """Stop watching: if the child ends from now on, it is not started again."""
        self.stop_restarting()
        self._thread.join(timeout=5)
