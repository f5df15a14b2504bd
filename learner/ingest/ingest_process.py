"""The trainer's handle on its ingest process: start, supervise, wind up."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from common.errors import CrossborderError
from common.process.child import Child, Supervisor
from common.process.clocks import Stillness
from common.wire.address import split_address
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.mapped import fence

log = logging.getLogger(__name__)
READY_SECONDS = 30.0
_ENVIRONMENT = {
    # At the level below, each failed handshake is a line in our log, and anybody can fail one.
    "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "ERROR"),
}


class IngestProcess:
    """A running ingest process, restarted on the same ports and the same memory when it dies.

    Args:
        boot: see ``learner.ingest.core.IngestBoot``, without the bells.
        control: shared with it.
        on_failure: called when it cannot be kept running.
        hung_seconds: a process without a sign of life for this long is killed and started again; None lets it hang.

    Raises:
        AddressError: its address or its metrics port is taken.
        CrossborderError: it did not come up.
    """

    def __init__(
        self,
        boot: dict[str, Any],
        control: ControlBlock,
        on_failure: Callable[[CrossborderError], None],
        hung_seconds: float | None = None,
    ) -> None:
        self._boot = boot
        self._control, self._hung_seconds = control, hung_seconds
        self._stillness = Stillness(lambda: control.ingest_beats)
        self.trainer_bell, self._ingest_bell = Bell.create(), Bell.create()
        try:
            self._supervisor = Supervisor(self._start, on_failure, is_hung=self._is_hung)
        except BaseException:
            self._close_bells()
            raise

    def _start(self) -> Child:
        fds = (self.trainer_bell.write_fd, self._ingest_bell.read_fd)
        child = Child("ingest", "learner.ingest", {**self._boot, "bell_fds": fds}, pass_fds=fds, env=_ENVIRONMENT)
        try:
            ready = child.next_event(READY_SECONDS)
        except CrossborderError:
            child.end(1.0)
            raise
        # A restart must come back where actors and Prometheus look for it.
        self._boot |= {"listen": ready["address"], "metrics_port": ready["metrics_port"]}
        self._stillness.begin()
        return child

    def _is_hung(self) -> bool:
        return self._hung_seconds is not None and self._stillness.seconds() > self._hung_seconds

    @property
    def restarts(self) -> int:
        """Times it was started again."""
        return self._supervisor.restarts

    @property
    def address(self) -> str:
        """HOST:PORT it listens on."""
        return str(self._boot["listen"])

    @property
    def metrics_port(self) -> int | None:
        port: int | None = self._boot["metrics_port"]
        return port

    @property
    def local_address(self) -> str:
        """HOST:PORT for actors on this host."""
        host, port = split_address(self.address)
        everywhere = {"0.0.0.0": f"127.0.0.1:{port}", "::": f"[::1]:{port}"}  # noqa: S104 - compared, not bound
        return everywhere.get(host, self.address)

    def release_held(self) -> None:
        """Wake ingest if enough items have been drawn for acknowledgements it holds back."""
        fence()  # Ingest must see ``sampled`` before we look whether it waits for it.
        release_at = self._control.release_at
        if release_at and self._control.sampled >= release_at:
            self._ingest_bell.ring()

    def announce_stop(self) -> None:
        """Have every actor told to stop. Ingest is started again if it dies meanwhile, so that they can hand over."""
        self._control.stopping = 1
        fence()
        self._ingest_bell.ring()

    @property
    def pid(self) -> int:
        """The id of the present process."""
        return self._supervisor.child.pid

    def has_ended(self) -> bool:
        """Whether the present process has ended in order."""
        return self._supervisor.child.poll() == 0

    def wait(self, seconds: float) -> bool:
        """Wait until ingest has wound up and is not started again; False if that takes longer than ``seconds``."""
        return self._supervisor.wait(seconds)

    def end(self, grace_seconds: float) -> None:
        """Announce the stop, wait for ingest to wind up for ``grace_seconds`` and a little at most, then end it."""
        self.announce_stop()
        if not self.wait(grace_seconds + 2.0):
            log.warning("ingest did not wind up in time")
        self._supervisor.stop_watching()
        self._supervisor.child.end(2.0)
        self._close_bells()

    def _close_bells(self) -> None:
        self.trainer_bell.close()
        self._ingest_bell.close()
