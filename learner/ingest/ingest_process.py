"""How the trainer starts its ingest process, keeps it running, wakes it and ends it.

A process that imports what ingest needs is started first, while the trainer builds its parts (``ComingIngest``).
Ingest is forked from it, and forked again if ingest dies. So are the learner's local actors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from common.errors import CrossborderError
from common.process.child import Child
from common.process.clocks import Stillness
from common.process.fork_server import ForkServer
from common.process.supervisor import Supervisor
from common.shared.mapped import fence
from common.wire.address import join_address, split_address
from common.wire.endpoints import hold_port
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock

log = logging.getLogger(__name__)
READY_SECONDS = 120.0
"""Seconds for ingest to import what it needs and to listen, also on a host that does much else."""
_MODULE = "learner.ingest.ingest_child"
_ENVIRONMENT = {
    # At a lower level each failed TLS handshake would be a line in the log, and any stranger can cause one.
    "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "ERROR"),
}


class ComingIngest:
    """The bells between trainer and ingest, its port, and the process that forks ingest: a context manager.

    This object outlives each ingest process.

    Args:
        others: the modules of other children, which are forked from the same process.
        here: a module that this process imports first, to share its memory with the process that forks (see
            ``ForkServer.begin_here``); None: a new Python imports all.
    """

    def __init__(self, others: Sequence[str] = (), *, here: str | None = None) -> None:
        self.trainer_bell, self.ingest_bell = Bell.create(), Bell.create()
        self.fds = (self.trainer_bell.write_fd, self.ingest_bell.read_fd)
        self.server = ForkServer([_MODULE, *others], self.fds, _ENVIRONMENT)
        if here is None:
            self.server.begin()
        else:
            self.server.begin_here(here)
        self._stack = ExitStack()

    def hold_ports(self, addresses: Sequence[str]) -> list[str]:
        """Keep the ports of addresses for ingest, so that no other program gets them while ingest is started again.

        Returns:
            the addresses whose ports could be kept, with numbers in the place of port 0.
        """
        found = []
        for address in addresses:
            host, port = split_address(address)
            with suppress(OSError):
                held = self._stack.enter_context(hold_port(port))
                found.append(join_address(host, held.getsockname()[1]))
        # A port that is taken on one of the interfaces may be free on the address's own; otherwise ingest reports it.
        return found or [*addresses]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.end()
        self._stack.close()
        self.trainer_bell.close()
        self.ingest_bell.close()


class IngestProcess:
    """A running ingest process, restarted on the same ports and the same memory when it dies.

    Args:
        coming: forks ingest; its owner closes it after ``end``.
        boot: see ``learner.ingest.core.IngestBoot``, without the bells.
        control: shared with the ingest process.
        on_failure: called when the process cannot be kept running.
        hung_seconds: a process without a sign of life for this long is killed and started again; None lets it hang.
        require_directory: raises NotInPlaceError while the run's directory is not at its path, and another error if it
            exists no more. A process that is started again opens its files by their paths.

    Raises:
        AddressError: its address or its metrics port is taken.
        CrossborderError: the process did not start.
    """

    def __init__(
        self,
        coming: ComingIngest,
        boot: dict[str, Any],
        control: ControlBlock,
        on_failure: Callable[[CrossborderError], None],
        *,
        hung_seconds: float | None = None,
        require_directory: Callable[[], None],
    ) -> None:
        self._boot = {**boot, "addresses": coming.hold_ports(boot["addresses"]), "bell_fds": coming.fds}
        self.when_moved: Callable[[], None] = lambda: None
        """Called from another thread when a restarted process has taken another port for its metrics."""
        self._control, self._hung_seconds, self._require_directory = control, hung_seconds, require_directory
        self._stillness = Stillness(lambda: control.ingest_beats)
        self._server, self.trainer_bell, self._ingest_bell = coming.server, coming.trainer_bell, coming.ingest_bell
        self._supervisor = Supervisor(self._start, on_failure, is_hung=self._is_hung)

    def _start(self) -> Child:
        self._require_directory()
        child = self._server.start_child("ingest", _MODULE, self._boot)
        try:
            ready = child.next_event(READY_SECONDS)
        except CrossborderError:
            child.end(1.0)
            raise
        has_moved = ready["metrics_port"] != self.metrics_port
        # From now on a restart must use the ports on which actors and Prometheus look for ingest. Only the metrics may
        # move again, and only if the configuration leaves their port open.
        free = [port for port in self._boot["metrics_ports"] if port == 0]
        self._boot |= {"addresses": [ready["address"]], "metrics_ports": [ready["metrics_port"], *free]}
        self._boot["serves_again"] = True
        self._stillness.begin()
        if has_moved:
            self.when_moved()
        return child

    def _is_hung(self) -> bool:
        return self._hung_seconds is not None and self._stillness.seconds() > self._hung_seconds

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        return self._supervisor.restarts

    @property
    def pid(self) -> int:
        """Process id of the newest ingest process."""
        return self._supervisor.child.pid

    def exit_code(self) -> int | None:
        """Exit code of the newest ingest process; None while it runs."""
        return self._supervisor.child.poll()

    @property
    def address(self) -> str:
        """HOST:PORT on which ingest listens."""
        return str(self._boot["addresses"][0])

    @property
    def metrics_port(self) -> int | None:
        port: int | None = self._boot["metrics_ports"][0]
        return port

    @property
    def local_address(self) -> str:
        """HOST:PORT for actors on this host."""
        host, port = split_address(self.address)
        everywhere = {"0.0.0.0": f"127.0.0.1:{port}", "::": f"[::1]:{port}"}  # noqa: S104 - compared, not bound
        return everywhere.get(host, self.address)

    def release_held(self) -> None:
        """Wake ingest if it holds actors back, and the trainer has drawn enough steps or waits for rows."""
        # The caller has counted ``sampled`` up. Ingest sets ``release_at`` and then looks at ``sampled``; the trainer
        # looks at ``release_at`` after ``sampled``. So at least one of the two sees that the number is reached.
        fence()
        release_at = self._control.release_at
        if release_at and (self._control.sampled >= release_at or self._control.trainer_waits_for):
            self._ingest_bell.ring()

    def announce_stop(self, *, is_finish: bool = False) -> None:
        """Have ingest tell every actor to stop, and whether the run has reached its end.

        If ingest dies before all actors have handed over their rows, it is started again, so that the actors still can.
        """
        self._control.stopping = max(self._control.stopping, 2 if is_finish else 1)
        fence()  # Ingest looks at ``stopping`` when the bell rings.
        self._ingest_bell.ring()

    def leave(self) -> None:
        """End ingest without telling the actors to stop; they look for the next start of the run."""
        self._supervisor.stop_watching()
        self._supervisor.child.end(2.0)

    def end(self, grace_seconds: float) -> None:
        """Announce the stop, give ingest ``grace_seconds`` and two seconds to wind up, then end it."""
        self.announce_stop()
        if not self._supervisor.wait(grace_seconds + 2.0):
            log.warning("ingest did not wind up in time")
        self._supervisor.stop_watching()
        self._supervisor.child.end(2.0)
