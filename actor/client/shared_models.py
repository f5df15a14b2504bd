"""Models that the processes of one host share, so that a host need not receive each model several times.

Local actors of a learner host read the trainer's slots. The workers of an actor host share slots in a directory of
their own: a worker that needs a newer model takes a lock, fetches the model over gRPC and writes it into the slots, and
its neighbours read the slots.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from actor.client.assembly import ModelFile
from common.data import Array, Model, ModelVersion
from common.errors import RunDirectoryError
from common.process.clocks import Deadline
from common.shared.slots import Blob, ModelSlots, key_of
from common.wire.rpc import transfer_seconds
from common.wire.tensor_file import read_tensors

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.002
"""A worker looks this often whether its neighbour has fetched the model, since flock(2) cannot wait with a deadline."""
Fetch = Callable[[], ModelFile | None]


class SharedModels(Protocol):
    """Models that another process of this host may have already."""

    def get(self, at_least: ModelVersion, max_bytes: int, fetch: Fetch) -> ModelFile | None:
        """A model of this version or a newer one.

        Args:
            at_least: the version that the learner has announced.
            max_bytes: a model whose file is larger is refused.
            fetch: fetches the newest model over gRPC; None: the learner has none that is newer than this actor's.

        Raises:
            ValueError: the model is too large or damaged.
            grpc.RpcError: ``fetch`` failed.
        """


class SlotReader:
    """Reads models from a file of slots, which may be replaced by a new file at any time.

    Args:
        path: the file. A process that maps it keeps the former file when it is replaced, so each read looks whether
            ``path`` still leads to the mapped file.
        run_id: models of other runs are not read.
        writable: open the slots for writing too.
    """

    def __init__(self, path: Path, run_id: str, *, writable: bool = False) -> None:
        self._path, self._run_key, self._writable = path, key_of(run_id), writable
        self._slots: ModelSlots | None = None
        self._mapped: tuple[int, int] | None = None

    def open(self) -> ModelSlots | None:
        """The slots of the run; None if there are none at ``path`` now."""
        try:
            found = self._path.stat()
            if (found.st_dev, found.st_ino) != self._mapped:
                self._slots, self._mapped = None, None
                self._slots = ModelSlots.open(self._path, writable=self._writable)
                self._mapped = found.st_dev, found.st_ino
        except (OSError, RunDirectoryError):
            self._slots, self._mapped = None, None  # Its writer has not made it yet, or is making another one.
        slots = self._slots
        return slots if slots is not None and slots.header.run_key == self._run_key else None

    def read(self, at_least: ModelVersion, max_bytes: int) -> ModelFile | None:
        """The newest model, copied once; None if there is none of this version or a newer one.

        Raises:
            ValueError: its file has more than ``max_bytes``, or is no safetensors file.
        """
        slots = self.open()
        if slots is None:
            return None

        def copy(blob: Blob) -> tuple[ModelVersion, Array] | None:
            if blob.version < at_least:
                return None
            if len(blob.data) > max_bytes:
                raise ValueError(
                    f"model: expected up to {max_bytes} bytes for this actor's agent, found {len(blob.data)}"
                )
            return blob.version, np.frombuffer(blob.data, np.uint8).copy()

        found = slots.read(copy)
        if found is None:
            return None
        version, data = found
        return ModelFile(Model(version, read_tensors(data)), data)


class TrainerModels:
    """The file of slots of the trainer on this host. Its models are the newest there are."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._reader = SlotReader(path, run_id)

    def get(self, at_least: ModelVersion, max_bytes: int, fetch: Fetch) -> ModelFile | None:
        return self._reader.read(at_least, max_bytes) or fetch()


class NeighbourModels:
    """Slots that the workers of an actor host share: the first worker that needs a newer model fetches it for all.

    The lock is an ``flock``: the kernel releases it when its holder ends or is killed. Readers cope with the slots as
    the holder left them, and the next worker fetches the model.

    Args:
        directory: of the workers.
        run_id: of the run that the actor has joined; each run has a separate file.
        stopped: set when the actor ends.
        candidates: whether the models are candidates, which have a separate file too.
        opponent: the version of the model of the pool that the file is for; None: it is for the newest models.
    """

    def __init__(
        self,
        directory: Path,
        run_id: str,
        stopped: threading.Event,
        *,
        candidates: bool = False,
        opponent: ModelVersion | None = None,
    ) -> None:
        kind = "-candidates" if candidates else "" if opponent is None else f"-{opponent[0]}-{opponent[1]}"
        self._path = directory / f"{key_of(run_id):016x}{kind}"
        self._run_id, self._stopped = run_id, stopped
        self._reader = SlotReader(self._path, run_id, writable=True)
        self._fetches_alone = False
        """Whether the workers cannot share models any longer."""
        self._waits = True
        """Whether to wait for a neighbour's fetch; not after a neighbour, such as a stopped process, that held the lock
        for longer than any fetch takes."""

    def get(self, at_least: ModelVersion, max_bytes: int, fetch: Fetch) -> ModelFile | None:
        deadline = Deadline(transfer_seconds(max_bytes) if self._waits else 0.0)
        while not self._fetches_alone:
            file = self._reader.read(at_least, max_bytes)
            if file is not None or self._stopped.is_set():
                return file
            with self._lock() as is_ours:
                if is_ours:
                    self._waits = True
                    return self._reader.read(at_least, max_bytes) or self._fetch_for_all(fetch)
            if deadline.passed():
                if self._waits:
                    log.warning("another process of this host keeps the lock on models: this one fetches for itself")
                self._waits = False
                break
            self._stopped.wait(LOOK_SECONDS)
        return fetch()

    def remove(self) -> None:
        """Remove the file, which nobody needs any more."""
        for path in (self._path, self._path.with_suffix(".lock")):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """A context in which this worker is the only one that fetches, if the value is True."""
        try:
            fd = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # The directory is gone, or there is no room.
            self._fetches_alone = True
            yield False
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # A process that the environment has forked may hold the file open too.
            os.close(fd)

    def _fetch_for_all(self, fetch: Fetch) -> ModelFile | None:
        file = fetch()
        if file is not None:
            try:
                slots = self._open_for(len(file.data))
                slots.write(file.model.version, lambda i: slots.data[i].__setitem__(slice(None), file.data.data))
            except (OSError, RunDirectoryError) as error:
                log.warning("models cannot be shared with the other workers of this host: %s", error)
                self._fetches_alone = True
        return file

    def _open_for(self, n_bytes: int) -> ModelSlots:
        """The slots for models of this size; new ones if there are none, or models had another size before a resume."""
        slots = self._reader.open()
        if slots is not None and slots.blob_bytes == n_bytes:
            return slots
        self._path.unlink(missing_ok=True)
        ModelSlots(self._path, n_bytes, create=True, run_id=self._run_id)
        slots = self._reader.open()
        if slots is None:
            raise RunDirectoryError(f"{self._path}: it was removed while it was made")
        return slots


def find_shared_models(
    path: Path | None,
    run_id: str,
    stopped: threading.Event,
    *,
    candidates: bool = False,
) -> SharedModels | None:
    """The models at ``path``: a directory of the workers on this host, or the file of the trainer on this host."""
    if path is None:
        return None
    if path.is_dir():
        return NeighbourModels(path, run_id, stopped, candidates=candidates)
    return TrainerModels(path, run_id)
