"""Files that several processes map into their memory, and directories that one process at a time may hold."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from common.errors import RunDirectoryError
from common.system import allocate

_fence_lock = threading.Lock()
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID: Final = Path("/etc/machine-id")
_LOOK_SECONDS: Final = 0.01
_AT_FDCWD: Final = -100
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_STATX_BYTES: Final = 256
_MASK: Final = slice(0, 4)
_MOUNT: Final = slice(144, 152)


def fence() -> None:
    """A memory barrier: other processes see all loads and stores before it happen before all loads and stores after it.

    Python has no barrier of its own; acquiring and releasing a lock twice makes one on x86 and on ARM.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def map_file(path: Path, size: int, *, create: bool, writable: bool = True) -> mmap.mmap:
    """Map a file into this process's memory, shared with all processes that map it.

    A new file is allocated and synced at once, so that a full disk is noticed here and not at a later write. After a
    kill, the new file is either whole or absent.

    Raises:
        RunDirectoryError: the file cannot be created or opened, or has another size.
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
        done = "made" if create else "opened"
        raise RunDirectoryError(
            f"{path}: a file of {size} bytes that processes share cannot be {done}: {error.strerror}"
        ) from error


def identify(path: Path, *, this_boot: bool, beside: Iterable[Path] = ()) -> int:
    """A number of 63 bits for these files on this host, never 0; copies of them have another number.

    The number depends on device, inode, and the time of the inode's last change, which no program can set: a restored
    file has another time even if it was written into the inode of the former file. rsync does not restore a file that
    nobody has written since the copy, and gives all others new inodes; so the inodes of the files beside it count too.
    A renamed directory changes none of these. While a file system stays mounted, a process sees all earlier writes of
    other processes; after another boot, or on a disk that failed and was mounted again, writes that were not synced may
    be missing.

    Args:
        path: of a file that nobody writes any more.
        beside: files that may be written, so the time of their last change does not count.
        this_boot: whether the number also depends on the present boot of the host, and on the mount.

    Raises:
        OSError: there is no such file.
    """
    stat = path.stat()
    host: list[object] = [_read_id(_MACHINE_ID)]
    if this_boot:
        host += [read_boot_id(), _find_mount(path)]
    inodes = [file.stat().st_ino for file in beside]
    text = repr((stat.st_dev, stat.st_ino, stat.st_ctime_ns, inodes, host))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1 or 1


def read_boot_id() -> str:
    """An identity of this boot of this host; empty if the host has none."""
    return _read_id(_BOOT_ID)


def _read_id(path: Path) -> str:
    """An identity of the host; empty if the host has no such file, as in many containers."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _find_mount(path: Path) -> int:
    """The number of the mount that holds a file, which no other mount of this boot gets; 0 before Linux 6.8."""
    found = ctypes.create_string_buffer(_STATX_BYTES)
    status = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_MNT_ID_UNIQUE, found)
    mask, mount = (int.from_bytes(found.raw[part], sys.byteorder) for part in (_MASK, _MOUNT))
    return mount if status == 0 and mask & _STATX_MNT_ID_UNIQUE else 0


def _allocate(path: Path, size: int) -> None:
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = path.with_name(f".{path.name}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        allocate(fd, size)
        os.fsync(fd)
    except OSError:
        part.unlink()
        raise
    finally:
        os.close(fd)
    part.rename(path)


@contextmanager
def holding_alone(directory: Path, seconds: float = 0.0) -> Iterator[None]:
    """Be the only process that writes to the replay in ``directory`` within this context.

    Two trainers cannot come here at once, since the run directory has a separate lock. But the ingest process of a
    killed trainer lives for a moment longer and may still be writing.

    Args:
        directory: holds the replay.
        seconds: how long this process waits for the end of that ingest process.

    Raises:
        RunDirectoryError: the ingest process of a trainer that was killed has not ended in time.
    """
    fd = os.open(directory, os.O_RDONLY)
    try:
        if not wait_for_lock(fd, seconds):
            raise RunDirectoryError(
                f"{directory}: the ingest process of a learner that was killed still holds it; it ends within "
                "seconds: try again"
            )
        yield
    finally:
        os.close(fd)


def wait_for_lock(fd: int, seconds: float) -> bool:
    """Lock an open file or directory; return False if another holder has not unlocked it within ``seconds``."""
    end = time.monotonic() + seconds
    while not _try_lock(fd):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_SECONDS)  # flock(2) waits without a deadline, so this process tries again and again.
    return True


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold_until_exit(directory: Path) -> None:
    """Hold ``directory`` until this process ends; wait while another process holds it.

    The ingest process of a trainer that was killed lives for a moment longer, and the ingest process of the resumed
    run must not write beside it. The kernel releases the lock when a process ends, however it ends.
    """
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)


class Word:
    """An attribute of a ``Words`` block: one word of 8 bytes."""

    def __init__(self, index: int, kind: type[int] | type[float] = int) -> None:
        self._index = index
        self._view = "_ints" if kind is int else "_floats"

    def __get__(self, block: Words, owner: type[Words]) -> Any:
        return getattr(block, self._view)[self._index]

    def __set__(self, block: Words, value: float) -> None:
        getattr(block, self._view)[self._index] = value


class Words:
    """A block of words in a mapped file; subclasses name the words.

    Each word has one writer, and an aligned word of 8 bytes is read and written whole, so no lock is needed.

    Args:
        buffer: the mapped file.
        offset: of the block in it, in bytes.
    """

    N_WORDS: ClassVar[int]

    def __init__(self, buffer: mmap.mmap, offset: int = 0) -> None:
        raw = memoryview(buffer)[offset : offset + 8 * self.N_WORDS]
        self._ints = raw.cast("q")
        self._floats = raw.cast("d")
