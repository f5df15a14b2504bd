"""Several actor workers on one host: started, watched, restarted, stopped (border's ActorManager)."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from actor.child_main import ONLY_ACTS, ActorWork
from actor.remote_config import RemoteConfig
from actor.stat import ActorStat
from common.cores import divide_cores
from common.errors import CrossborderError
from common.process.child import Child
from common.process.clocks import Deadline
from common.process.fork_server import ForkServer
from common.process.supervisor import Supervisor
from common.wire.trust import Trust

log = logging.getLogger(__name__)
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it, for this user only
PREFIX: Final = "crossborder-models-"
ACTOR: Final = "actor.worker"
"""The module of a worker that is an actor."""


class ModelShare:
    """A directory that is held by this process and removed at the end.

    A process that is killed leaves its directory behind. The next ``ModelShare`` of the same user removes it: the
    kernel has released the lock on the directory.

    Args:
        parent: of the directory; None: shared memory, or the temporary directory if the host has no shared memory.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or (MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        for left in parent.glob(f"{PREFIX}*"):
            _remove_if_left(left)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            # Another process may take the new directory for one that was left behind, until this process holds it.
            try:
                self._fd = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if self.path.is_dir():
                return
            os.close(self._fd)

    def close(self) -> None:
        """Remove the directory. Processes that have mapped its files keep them until they end."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _remove_if_left(directory: Path) -> None:
    """Remove a directory whose process has ended."""
    try:
        if directory.stat().st_uid != os.getuid():
            return
        fd = os.open(directory, os.O_RDONLY)
    except OSError:  # Its process has just removed it, or it is another user's.
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        log.debug("%s is in use", directory)
    finally:
        os.close(fd)


class ActorManager:
    """Runs ``n_actors`` worker processes for one learner, or for one acting service.

    Args:
        address: HOST:PORT of the learner, or of the acting service.
        n_actors: number of worker processes.
        on_failure: called when a worker cannot be kept running.
        trust: how workers check the learner, and what they prove to it.
        patience: seconds a worker waits for its learner or acting service.
        work: of actors, or the settings of workers whose policy is an acting service. Several actors without
            ``models`` share a directory, so that each model is fetched once for all.
        cores: which are divided among the workers; empty: the workers use any cores.
        server: starts the workers, and may have begun to import; its owner ends it. None: another one, which ends with
            the manager.

    Raises:
        ChildFailedError, OSError: a worker cannot be started.
    """

    def __init__(
        self,
        address: str,
        n_actors: int,
        on_failure: Callable[[CrossborderError], None],
        trust: Trust,
        patience: float = 60.0,
        *,
        work: ActorWork | RemoteConfig = ONLY_ACTS,
        cores: Sequence[int] = (),
        server: ForkServer | None = None,
    ) -> None:
        self.share: ModelShare | None = None
        """The directory in which the workers share models; None if they share none."""
        # 1. What all workers are told.
        self._module = "actor.remote_worker" if isinstance(work, RemoteConfig) else ACTOR
        if isinstance(work, ActorWork) and work.models is None and n_actors > 1:
            self.share = _open_share()
            work = work.model_copy(update={"models": None if self.share is None else self.share.path})
        self._boot = {
            "address": address,
            "patience": patience,
            "trust": trust.model_dump(mode="json"),
            "work": work.model_dump(mode="json"),
        }
        # 2. Their processes: if one cannot be started, those that run already are ended.
        self._server, self._is_own_server = server or ForkServer([self._module]), server is None
        self._cores = divide_cores(cores, n_actors)
        self._started = set[int]()
        """The numbers of the workers that were started before."""
        self._supervisors: list[Supervisor] = []
        try:
            for i in range(n_actors):
                self._supervisors.append(Supervisor(partial(self._start, i), on_failure))
        except (CrossborderError, OSError):
            self.stop_and_join(0)
            raise

    def _start(self, index: int) -> Child:
        again = index in self._started
        boot = {**self._boot, "cores": self._cores[index], "number": index, "again": again}
        child = self._server.start_child(f"worker-{index}", self._module, boot)
        self._started.add(index)
        return child

    @property
    def restarts(self) -> int:
        """How many times a worker was started again."""
        return sum(supervisor.restarts for supervisor in self._supervisors)

    @property
    def pids(self) -> list[int]:
        """The ids of the workers' present processes."""
        return [supervisor.child.pid for supervisor in self._supervisors]

    def wait(self) -> None:
        """Wait until no worker is watched any more: each has ended for good or was asked to stop."""
        for supervisor in self._supervisors:
            supervisor.wait()

    def stop_restarting(self) -> None:
        """Start no worker again that ends from now on: a signal may have reached the workers already."""
        for supervisor in self._supervisors:
            supervisor.stop_restarting()

    def ask_to_stop(self) -> None:
        """Have all workers end in order; ``stop_and_join`` waits for that."""
        self.stop_restarting()
        for supervisor in self._supervisors:
            supervisor.stop_watching()
            supervisor.child.close_stdin()

    def stop_and_join(self, seconds: float) -> list[ActorStat]:
        """End all workers within ``seconds``; return the statistics of those that ended in order.

        A worker sends its statistics last, so they are there once it has ended.
        """
        self.ask_to_stop()
        deadline = Deadline(seconds)
        stats = []
        for supervisor in self._supervisors:
            supervisor.child.end(deadline.remaining())
            events = supervisor.child.events
            while not events.empty():
                event = events.get_nowait()
                if "stat" in event:
                    stats.append(ActorStat(**event["stat"]))
        if self._is_own_server:
            self._server.end()
        if self.share is not None:
            self.share.close()
            self.share = None
        return stats


def _open_share() -> ModelShare | None:
    try:
        return ModelShare()
    except OSError as error:
        log.warning("each worker fetches models for itself, since they cannot share a directory: %s", error)
        return None
