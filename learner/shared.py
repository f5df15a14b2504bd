"""Memory that the trainer and its ingest process share: mapped files, single words, doorbells.

Nothing is pickled or queued between the two; each word has one writer. Files live in the run directory, so they
outlive both processes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from common.errors import RunDirectoryError

_fence_lock = threading.Lock()
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def fence() -> None:
    """Order all stores and loads before it against all after it, as other processes see them.

    Python has no barrier of its own; releasing and acquiring a lock twice is one on x86 and on ARM.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def map_file(path: Path, size: int, *, create: bool, writable: bool = True) -> mmap.mmap:
    """Map a file shared; a new one is allocated at once, so that a full disk is found out here, and synced.

    A kill leaves a new file whole or not there at all.

    Raises:
        RunDirectoryError: it cannot be created, opened or has another size.
    """
    try:
        if create:
            _allocate(path, size)
        fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            if os.fstat(fd).st_size != size:
                raise RunDirectoryError(f"{path}: expected {size} bytes, found {os.fstat(fd).st_size}")
            return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except OSError as error:
        raise RunDirectoryError(f"{path}: {size} bytes of shared memory: {error.strerror}") from error


def boot_id() -> int:
    """A number that differs from one boot of the host to the next, never 0; always 1 where the kernel has none.

    Processes of one boot see all that was written before them; after another boot, what was not synced may be missing.
    """
    try:
        return int(uuid.UUID(_BOOT_ID.read_text().strip()).int >> 65) or 1  # It fits a signed word.
    except OSError:
        return 1


def _allocate(path: Path, size: int) -> None:
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = path.with_name(f".{path.name}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    except OSError:
        part.unlink()
        raise
    finally:
        os.close(fd)
    part.rename(path)


@contextmanager
def held_alone(directory: Path) -> Iterator[None]:
    """Be the only process that writes to the replay in ``directory``, where no ingest process does it.

    Raises:
        RunDirectoryError: the ingest process of a trainer that was killed has not ended yet.
    """
    fd = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"{directory}: the ingest process of a learner that was killed still holds it; it ends within seconds: "
                "try again"
            ) from None
        yield
    finally:
        os.close(fd)


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

    N_WORDS = 40
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
    trainer_beats = Word(6)
    """Signs of life of the training loop: opt steps, waits for items, steps of evaluations; 0 before it begins."""
    # Written by ingest.
    ingest_beats = Word(7)
    """Signs of life of ingest, several a second."""
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
    # Unknown to release 0.1. The first is written by the trainer, the others by ingest.
    opt_steps = Word(32)
    """Opt steps that the trainer has taken."""
    success_mean = Word(33, float)
    """Share of successes among the last 100 episodes that say whether they succeeded."""
    success_episodes = Word(34)
    """Episodes that said whether they succeeded."""

    def __init__(self, buffer: mmap.mmap, offset: int, count: int) -> None:
        super().__init__(buffer, offset, count)
        starts = [offset + 8 * (self._RATIO_SLOTS + i * RatioSlot.N_WORDS) for i in range(2)]
        self.ratio_slots = [RatioSlot(buffer, start, RatioSlot.N_WORDS) for start in starts]

    def episode_record(self) -> dict[str, float]:
        """Means of the actors' last 100 episodes, by the keys of records; without those that no episode told."""
        returns = {"train_return": self.return_mean, "train_length": self.length_mean} if self.episodes else {}
        return returns | ({"train_success": self.success_mean} if self.success_episodes else {})

    def start(self, incarnation: int, sampled: int) -> None:
        """A trainer begins: what the one before wished for is forgotten."""
        self.incarnation, self.sampled = incarnation, sampled
        self.stopping = self.trainer_waits = self.release_at = self.actors_online = self.trainer_beats = 0

    @classmethod
    def at(cls, directory: Path, *, create: bool = False, writable: bool = True) -> ControlBlock:
        path, size = directory / "control", 8 * cls.N_WORDS
        if writable and path.exists() and path.stat().st_size < size:
            os.truncate(path, size)  # Release 0.1 had fewer words; the others begin at 0.
        mapped = map_file(path, size, create=create, writable=writable)
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
