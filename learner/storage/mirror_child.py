"""The process that mirrors a run, beside trainer and ingest: neither of them waits for it.

Start: boot line on stdin → it claims the mirror and says so → ``begin`` on stdin, once the run has begun → one state of
the run after another. End: ``finish`` on stdin → a last state, for which the trainer waits a while. If the trainer
closes stdin, the process ends at once.

A later process of one life, and one that cannot claim the mirror for a while, say so and begin at once: they go on with
the mirror, or claim it, when it can be reached.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from common.errors import CheckpointError, RunDirectoryError
from common.process.child import say, serve_parent
from common.process.clocks import Deadline
from common.process.log import LogThrottle
from common.settings import HomePath, Settings, validate
from learner.shared.control import ControlBlock
from learner.shared.mirror_block import MirrorBlock
from learner.storage.mirror import Mirror, keep_past, read_past
from learner.storage.mirrored_state import MirroredState
from learner.storage.mirroring import Mirroring

log = logging.getLogger(__name__)
CLAIM_SECONDS: Final = 30.0
"""A mirror that cannot be written for this long at the start is claimed later, if no acknowledgement waits for it and
the run was mirrored before; or else the run ends."""
RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.25
BEGIN, FINISH = "begin", "finish"
_failures_logged: Final = LogThrottle(30.0)


class MirrorBoot(Settings):
    """The boot line."""

    run: HomePath
    run_id: str
    url: str
    seconds: float
    epoch: int = 0
    """That of a process of this life that has died: the next one goes on with it, once the mirror can be reached. 0:
    the first process of this life claims the mirror."""
    may_begin_late: bool = False
    """Whether the run may go on before the mirror can be claimed."""
    is_late: bool = False
    """Whether a process of this life has gone on so."""


class MirrorUnreachableError(RunDirectoryError):
    """The mirror cannot be claimed now."""


class _Orders:
    """The words that the trainer sends on stdin; the process ends when the trainer closes it."""

    def __init__(self) -> None:
        self._words: queue.Queue[str] = queue.Queue(maxsize=8)
        threading.Thread(target=self._read, name="lifeline", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._words.put(str(json.loads(line)["order"]))
        os._exit(0)

    def wait_for(self, word: str, due: Deadline, is_urgent: Callable[[], bool]) -> bool:
        """Wait until this word has come, the time is over, or it is urgent to go on; return whether the word has come.

        At least one look is made, which takes ``LOOK_SECONDS`` unless the time is over.
        """
        while True:
            with suppress(queue.Empty):
                if self._words.get(timeout=min(LOOK_SECONDS, due.remaining())) == word:
                    return True
            if due.passed() or is_urgent():
                return False


def claim(boot: MirrorBoot) -> tuple[Mirror, MirroredState | None]:
    """Own the mirror of a run; try again for a while if it cannot be reached.

    Raises:
        MirrorUnreachableError: it cannot be reached.
        RunDirectoryError: it is that of another run.
        TakenOverError: another learner has gone on with the run.
    """
    mirror, deadline = Mirror(boot.url), Deadline(CLAIM_SECONDS)
    past, is_restored = read_past(boot.run)
    if is_restored:
        # Should the learner that has claimed the mirror since fail, this directory may be gone on with.
        keep_past(boot.run, past)
    while True:
        try:
            newest = mirror.claim(boot.run_id, past, partial(keep_past, boot.run), holds=is_restored)
            if past.newest and newest is None:
                log.warning("%s: found no state of the run, which was mirrored before: a mirror begins", mirror.url)
            return mirror, newest
        except OSError as error:
            log.error("the mirror cannot be claimed: %s", error)
            if deadline.passed():
                raise MirrorUnreachableError(f"storage.mirror: {error}") from error
            time.sleep(RETRY_SECONDS)


def begin(boot: MirrorBoot) -> tuple[MirrorBoot, tuple[Mirror, MirroredState | None] | None]:
    """Own the mirror of a run, or go on from its directory without it for now.

    The directory has the epoch of an earlier life, so this learner sees later whether another one has claimed the
    mirror since. Until then it may acknowledge rows that are lost if there is one, as a learner that trains does while
    it cannot reach its mirror.

    Returns:
        The boot line for later processes of this life, and the claimed mirror with its newest state; None if it cannot
        be claimed now.

    Raises:
        RunDirectoryError: it cannot be reached and the run may not begin before, or it is that of another run.
        TakenOverError: another learner has gone on with the run.
    """
    past, _ = read_past(boot.run)  # Without an epoch that is only kept for a claim: nobody is told of that.
    try:
        claimed = claim(boot)
        return boot.model_copy(update={"epoch": claimed[0].epoch}), claimed
    except MirrorUnreachableError as error:
        if not boot.may_begin_late or not past.newest:
            raise RunDirectoryError(
                f"{error}; start the learner again when the mirror can be written: only a run that was mirrored before "
                "goes on without, with storage.acknowledge: disk"
            ) from error
        log.error("the run goes on without its mirror, which is claimed when it can be written: %s", error)
        return boot.model_copy(update={"epoch": past.newest, "is_late": True}), None


def serve(boot: MirrorBoot) -> None:
    """Write one state of the run after another until the trainer says ``finish``.

    Raises:
        CrossborderError: the mirror is not this run's, or no longer.
    """
    orders, shared, claimed = _Orders(), boot.run / "shared", None
    if not boot.epoch:
        boot, claimed = begin(boot)
    say({"epoch": boot.epoch, "is_late": boot.is_late})
    orders.wait_for(BEGIN, Deadline(math.inf), lambda: False)
    block, control = MirrorBlock.open(shared), ControlBlock.open(shared, writable=False)
    # Actors are told of no epoch that is not claimed: another learner, with a lower one, may have the run.
    block.epoch = block.epoch or boot.epoch
    mirror, newest = claimed or (Mirror(boot.url), None)
    mirroring = Mirroring(
        boot.run,
        boot.run_id,
        mirror,
        newest,
        block=block,
        seconds=boot.seconds,
        is_away=claimed is None,
        is_late=boot.is_late,
    )
    say({"begun": True})
    is_last = False
    while True:
        due = Deadline(boot.seconds)
        is_complete = _write_state(mirroring, block)
        if mirror.store.has_hung:
            # The driver might still write the state later, when objects that it names are removed. Python would wait
            # for the driver's threads before it ends.
            log.error("a call to the mirror was broken off, and with it this process")
            sys.stderr.flush()
            os._exit(1)
        if is_complete and is_last:
            return
        if is_last or is_complete is False:  # There are further rows.
            due = Deadline(LOOK_SECONDS * is_last)
        # While the learner ends, actors wait for their last acknowledgements, which may wait for the mirror.
        is_last |= orders.wait_for(FINISH, due, lambda: bool(control.stopping))


def _write_state(mirroring: Mirroring, block: MirrorBlock) -> bool | None:
    """Write a state; return whether it has all rows, None if it could not be written: the next one is tried later."""
    try:
        return mirroring.write_state()
    except (OSError, CheckpointError, RunDirectoryError) as error:
        # The learner may replace files while they are read, and the disk of another mirror may be mounted meanwhile.
        block.failures += 1
        if (missed := _failures_logged.due()) is not None:
            log.error("a state of the run is not mirrored, the next one is tried (%d more before): %s", missed, error)
        return None


def main() -> int:
    """Run the process; return its exit code."""
    return serve_parent(lambda line: serve(validate(MirrorBoot, line)), "the mirror's process failed")


if __name__ == "__main__":
    sys.exit(main())
