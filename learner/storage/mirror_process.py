"""The trainer's side of the process that mirrors the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Self

from common.config.run_config import StorageConfig
from common.errors import CrossborderError
from common.process.child import Child
from common.process.supervisor import Supervisor
from learner.shared.mirror_block import MirrorBlock
from learner.storage.mirror_child import BEGIN, CLAIM_SECONDS, FINISH
from learner.storage.mirror_store import ANSWER_SECONDS
from learner.storage.rundir import RunDir

log = logging.getLogger(__name__)
CHILD: Final = "learner.storage.mirror_child"
READY_SECONDS: Final = CLAIM_SECONDS + 2 * ANSWER_SECONDS + 60.0
"""Seconds for the process to import what it needs and to claim the mirror. If its driver hangs in the last try, it may
hang again while the claim is removed."""
COMPARE_SECONDS: Final = 600.0
"""Seconds to compare a replay with the rows in the mirror, also on a slow disk."""
FINISH_SECONDS: Final = 20.0
"""After the end of the run, the last rows have this long to reach the mirror: clouds give notice of 30 s or more."""


class MirrorProcess:
    """Mirrors a run in a child process, from ``begin`` on. A context manager: at its end it mirrors what is left.

    Enter it before the parts of the run that write to its directory, so that it ends after them.
    """

    def __init__(self, run: RunDir, config: StorageConfig) -> None:
        self._run = run
        self._boot = {
            "run": str(run.path),
            "run_id": run.identity.run_id,
            "url": config.mirror,
            "seconds": config.mirror_seconds,
            # If acknowledgements wait for the mirror, actors are told at once how far it is.
            "may_begin_late": config.acknowledge == "disk",
        }
        self._coming: Child | None = Child("mirror", CHILD, self._boot)
        self._supervisor: Supervisor | None = None
        self.block: MirrorBlock | None = None
        """What the process tells; None before ``begin``."""

    def begin(self, on_failure: Callable[[CrossborderError], None]) -> MirrorBlock:
        """Wait until the mirror is claimed, then mirror the run; the control block, replay and a checkpoint are there.

        Args:
            on_failure: called when the mirror is another learner's, or the process cannot be kept running.

        Raises:
            RunDirectoryError: the mirror cannot be reached, and the run was not mirrored before or acknowledges what is
                mirrored; or it is that of another run.
            TakenOverError: another learner has gone on with the run.
            PluginError: the driver of the mirror is not installed.
        """
        self.block = MirrorBlock.open(self._run.shared)
        self.block.start(0, time.monotonic())
        self._supervisor = Supervisor(self._start, on_failure)
        return self.block

    def _start(self) -> Child:
        self._run.require_for_child()  # Whatever else is at its path is not mirrored.
        child, self._coming = self._coming or Child("mirror", CHILD, self._boot), None
        try:
            # A process of this life that died has left its epoch: the next one goes on with it.
            self._boot |= child.next_event(READY_SECONDS)
            child.tell({"order": BEGIN})
            # Before ingest tells actors what is mirrored, the process has compared the newest state with the replay.
            child.next_event(COMPARE_SECONDS)
        except CrossborderError:
            child.end(0.0)
            raise
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._supervisor is None:
            if self._coming is not None:
                self._coming.end(0.0)
            return
        self._supervisor.stop_watching()
        child = self._supervisor.child
        if (code := child.poll()) is None:
            child.tell({"order": FINISH})
            code = child.wait(FINISH_SECONDS)
        if code is None:
            log.error("the end of the run is not mirrored: it took longer than %g s", FINISH_SECONDS)
        elif code:
            log.error("the end of the run is not mirrored: %s", child.error())
        child.end(0.0)

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        return self._supervisor.restarts if self._supervisor is not None else 0
