"""What a rank does when torchrun is killed: nobody would start the ranks again, so it ends in order."""

from __future__ import annotations

import logging
import os
import signal
import threading

from common.process.signals import StopSignals
from common.system import MOST_SECONDS, wait_for_end

log = logging.getLogger(__name__)


def end_with_torchrun(torchrun: int, signals: StopSignals) -> None:
    """Have a thread wait for the end of torchrun, and then stop this process as torchrun's SIGTERM would.

    torchrun waits for its ranks, and signals to them before it gives up. So if it ends before them, it was killed.

    Args:
        torchrun: the process id of torchrun, which was the parent of this process.
        signals: of this process. If one has come already, this process is about to end in order; a second signal would
            end it at once.
    """

    def wait() -> None:
        while os.getppid() == torchrun:
            wait_for_end(torchrun, MOST_SECONDS)
        if signals.received is None:
            log.error("torchrun (process %d) has ended before its ranks: they end in order; resume the run", torchrun)
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="torchrun", daemon=True).start()
