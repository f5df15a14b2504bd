"""A recorder in a separate thread, so that a tracker which hangs, fails or is slow cannot stop training."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias

from common.errors import PluginError
from common.interfaces import Recorder
from common.process.clocks import Deadline
from common.process.log import LogThrottle

log = logging.getLogger(__name__)
MOST_WAITING: Final = 1000
"""Records that wait for a recorder; while so many wait, later records are left out."""
BUILD_SECONDS: Final = 300.0
"""The time for a recorder's constructor, which may ask a server."""
BEHIND_SECONDS: Final = 10.0
"""A recorder that works on one record for longer is said to be behind."""
CLOSE_SECONDS: Final = 20.0
"""The time that all recorders together have at the end of a run for the records that wait, and for ``close``. Compose
kills a container after 60 s, and before that the learner also stores the last rows and saves."""
FAILURES_LOGGED_EVERY: Final = 60.0
_Entry: TypeAlias = tuple[int, Mapping[str, float]]


class BesideRecorder:
    """A ``Recorder`` that hands records to another one, which is built, used and closed in one separate thread.

    An error of the other recorder is logged, and training goes on. If it falls behind, this is said once; then it
    catches up, or records are left out and counted.

    Raises:
        PluginError: the recorder was not built in ``BUILD_SECONDS``.
        Exception: from ``build``.
    """

    def __init__(self, name: str, build: Callable[[], Recorder], *, most_waiting: int = MOST_WAITING) -> None:
        self._name = name
        self._most_waiting = most_waiting
        self._waiting: queue.Queue[_Entry | None] = queue.Queue(most_waiting + 1)
        # The trainer sets these two, and the thread reads them and resets them when it has caught up. If both do so at
        # one moment, a number in the log is too small.
        self._left_out, self._is_behind = 0, False
        self._busy_since: float | None = None
        built = Future[None]()
        self._thread = threading.Thread(target=self._run, args=(build, built), name=f"recorder-{name}", daemon=True)
        self._thread.start()
        try:
            built.result(BUILD_SECONDS)
        except TimeoutError as error:
            if built.done():
                raise
            raise PluginError(
                f"{name}: expected the recorder to be built in {BUILD_SECONDS:g} s, it still is"
            ) from error

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        # Only the trainer's thread puts into the queue, so the last place stays free for the end.
        if self._waiting.qsize() < self._most_waiting:
            self._waiting.put_nowait((opt_steps, dict(record)))
        else:
            self._left_out += 1
        busy_since = self._busy_since
        is_slow = busy_since is not None and time.monotonic() - busy_since > BEHIND_SECONDS
        if (is_slow or self._left_out) and not self._is_behind:
            self._is_behind = True
            log.warning("%s is behind: %d records wait for it; training goes on", self._name, self._waiting.qsize())

    def flush(self) -> None:
        """The thread flushes after each record."""

    def close(self) -> None:
        close_all([self])

    def begin_end(self) -> None:
        """Have the thread close the recorder after the records that wait; call this once."""
        self._waiting.put_nowait(None)

    def wait(self, deadline: Deadline) -> None:
        """Wait until the recorder is closed; after the deadline, log what is missing in it."""
        self._thread.join(deadline.remaining())
        if self._thread.is_alive():
            missing = self._waiting.qsize() + self._left_out
            log.error("%s did not end in time: about %d records are missing in it", self._name, missing)

    def _run(self, build: Callable[[], Recorder], built: Future[None]) -> None:
        try:
            recorder = build()
        except BaseException as error:  # noqa: BLE001 - the constructor of this class raises it in the trainer's thread
            built.set_exception(error)
            return
        built.set_result(None)
        throttle = LogThrottle(FAILURES_LOGGED_EVERY)
        while (entry := self._waiting.get()) is not None:
            self._busy_since = time.monotonic()
            missing = f"training goes on without the record of opt step {entry[0]}"
            self._do(missing, lambda: _write(recorder, entry), throttle)
            self._busy_since = None
            if self._is_behind and self._waiting.empty():
                log.info("%s has caught up; %d records are missing in it", self._name, self._left_out)
                self._left_out, self._is_behind = 0, False
        self._do("the last records may be missing", recorder.close)

    def _do(self, consequence: str, work: Callable[[], None], throttle: LogThrottle | None = None) -> None:
        try:
            work()
        except (Exception, SystemExit) as error:  # A tracker's client raises errors of every kind, or exits.
            if (missed := throttle.due() if throttle is not None else 0) is not None:
                found, trace = (error, None) if isinstance(error, OSError) else (repr(error), error)
                more = f" ({missed} more before it)" if missed else ""
                log.error("%s: %s: %s%s", self._name, consequence, found, more, exc_info=trace)


def close_all(recorders: Sequence[BesideRecorder]) -> None:
    """Close recorders at the same time, so that a tracker which hangs costs the others nothing."""
    deadline = Deadline(CLOSE_SECONDS)
    for recorder in recorders:
        recorder.begin_end()
    for recorder in recorders:
        recorder.wait(deadline)


def _write(recorder: Recorder, entry: _Entry) -> None:
    recorder.write(*entry)
    recorder.flush()
