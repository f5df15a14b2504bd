"""Memory that the trainer and its ingest process share: mapped files, single words, doorbells.

Nothing is pickled or queued between the two; each word has one writer. Files live in the run directory, so they
outlive both processes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import threading
from pathlib import Path
from typing import Any

from common.errors import RunDirectoryError

_fence_lock = threading.Lock()


def fence() -> None:
    """Order all stores and loads before it against all after it, as other processes see them.

    Python has no barrier of its own; releasing and acquiring a lock twice is one on x86 and on ARM.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def map_file(path: Path, size: int, *, create: bool, writable: bool = True) -> mmap.mmap:
    """Map a file shared; a new one is allocated at once, so that a full disk is found out here.

    Raises:
        RunDirectoryError: it cannot be created, opened or has another size.
    """
    try:
        access = os.O_RDWR if writable else os.O_RDONLY
        fd = os.open(path, access | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.posix_fallocate(fd, 0, size)
            elif os.fstat(fd).st_size != size:
                raise RunDirectoryError(f"{path}: expected {size} bytes, found {os.fstat(fd).st_size}")
            return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except OSError as error:
        raise RunDirectoryError(f"{path}: {size} bytes of shared memory: {error.strerror}") from error


def hold_alone(directory: Path) -> None:
    """Be the only process that holds ``directory``, until this one ends; waits for the one before to end.

    A killed trainer's ingest lives on for a moment: whoever resumes the run must not write beside it.
    """
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)


class Word:
    """One 8-byte word of a ``Words`` block, read and written whole; ``kind`` is int (signed) or float."""

    def __init__(self, index: int, kind: type[int] | type[float] = int) -> None:
        self._index = index
        self._view = "_ints" if kind is int else "_floats"

    def __get__(self, block: Words, owner: type[Words]) -> Any:
        return getattr(block, self._view)[self._index]

    def __set__(self, block: Words, value: float) -> None:
        getattr(block, self._view)[self._index] = value


class Words:
    """A block of words in a mapped buffer; subclasses name them."""

    def __init__(self, buffer: mmap.mmap, offset: int, count: int) -> None:
        raw = memoryview(buffer)[offset : offset + 8 * count]
        self._ints = raw.cast("q")
        self._floats = raw.cast("d")


class RatioSlot(Words):
    """A replay ratio and the counters from which on it holds, see ``learner/ratio.py``."""

    N_WORDS = 3
    samples_per_insert = Word(0, float)
    """0: both sides run free."""
    inserted = Word(1)
    sampled = Word(2)


class ControlBlock(Words):
    """What trainer and ingest tell each other."""

    N_WORDS = 32
    # Written by the trainer.
    stopping = Word(0)
    """1: training is over, announce it to the actors and wind up."""
    sampled = Word(1)
    """Items drawn from the replay."""
    trainer_waits = Word(2)
    """1: ring the trainer's bell when items have been committed."""
    incarnation = Word(3)
    """How many times the run has been started."""
    divergences = Word(5)
    """Times that training ended because a loss or a score was not finite, in all lives of the run."""
    trainer_wait_seconds = Word(4, float)
    """Seconds the trainer has waited for items."""
    # Written by ingest.
    release_at = Word(8)
    """Ring ingest's bell when ``sampled`` reaches this; 0: ingest does not wait."""
    batches = Word(9)
    """Batches stored; those that came in one message count as one."""
    payload_bytes = Word(10)
    """Bytes of payload stored."""
    duplicates = Word(11)
    """Batches acknowledged again and not stored."""
    model_bytes_sent = Word(12)
    """Bytes of models sent."""
    fetches = Word(13)
    """Models sent."""
    not_modified = Word(14)
    """Model requests answered with not modified."""
    joins = Word(15)
    """Successful joins."""
    actors_online = Word(16)
    """Actors with an open stream."""
    env_steps = Word(17)
    """Environment steps all actors have reported."""
    episodes = Word(18)
    """Episodes all actors have reported."""
    return_mean = Word(19, float)
    """Mean return of the last 100 episodes; 0 before the first."""
    policy_lag = Word(20, float)
    """Exponential mean of opt steps between the newest model and the one that acted."""
    actor_hold_seconds = Word(21, float)
    """Seconds for which acknowledgements have been held back to keep the replay ratio."""
    length_mean = Word(22, float)
    """Mean length of the same episodes as ``return_mean``."""
    oldest_item_at = Word(23, float)
    """When the oldest item that can be drawn came, on the host's monotonic clock."""
    # Written by the trainer before ingest starts, then by ingest.
    ratio_changes = Word(24)
    """Times the replay ratio has been set; the last one lies in ``ratio_slots[ratio_changes % 2]``."""
    ratio_configured = Word(25, float)
    """What the configuration asked for when the trainer began; 0: both sides run free."""
    _RATIO_SLOTS = 26

    def __init__(self, buffer: mmap.mmap, offset: int, count: int) -> None:
        super().__init__(buffer, offset, count)
        starts = [offset + 8 * (self._RATIO_SLOTS + i * RatioSlot.N_WORDS) for i in range(2)]
        self.ratio_slots = [RatioSlot(buffer, start, RatioSlot.N_WORDS) for start in starts]

    def start(self, incarnation: int, sampled: int) -> None:
        """A trainer begins: what the one before wished for is forgotten."""
        self.incarnation, self.sampled = incarnation, sampled
        self.stopping = self.trainer_waits = self.release_at = self.actors_online = 0

    @classmethod
    def at(cls, directory: Path, *, create: bool = False, writable: bool = True) -> ControlBlock:
        mapped = map_file(directory / "control", 8 * cls.N_WORDS, create=create, writable=writable)
        return cls(mapped, 0, cls.N_WORDS)


class Bell:
    """A pipe that wakes another process; ringing never blocks, waiting always has a deadline."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd

    @classmethod
    def create(cls) -> Bell:
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def ring(self) -> None:
        try:
            os.write(self.write_fd, b"!")
        except BlockingIOError:
            return  # The pipe is full of rings nobody heard yet: one more says nothing new.
        except BrokenPipeError:
            return  # The other side is gone; its supervisor deals with that.

    def clear(self) -> None:
        """Forget the rings heard so far."""
        try:
            while len(os.read(self.read_fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> bool:
        """Wait for a ring; True if there was one."""
        ready, _, _ = select.select([self.read_fd], [], [], seconds)
        if ready:
            self.clear()
        return bool(ready)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)
