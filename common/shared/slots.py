"""The model slots: a writer copies models in, and other processes of the host copy whole models out.

On a learner host the trainer writes (``learner/models/publisher.py``); ingest and local actors read. On an actor host
the worker that has fetched a model writes it for its neighbours (``actor/client/shared_models.py``).

Shared memory holds three slots. Each has the layout of a safetensors file, so that a slot's bytes *are* the model on
the wire, and one memcpy serves every actor.

The writer never waits for readers: it writes model n into slot ``n mod 3``, the slot that was written longest ago. So a
reader usually copies the newest model while the writer fills another slot. The writer overwrites the slot that is read
only if it publishes two more models during one copy and begins a third. The slot's ticket shows this: the writer sets
it to 0 before it writes, and to the model's number afterwards. A reader compares the ticket before and after its copy.
If the tickets differ, it drops the copy and reads the newest model instead.

A writer that is killed while it fills a slot has not counted that model yet. The slot keeps ticket 0 until the next
writer fills the same slot, and readers read the previous model.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from common.data import NO_MODEL, ModelVersion
from common.errors import RunDirectoryError
from common.shared.mapped import Word, Words, fence, map_file

N_SLOTS: Final = 3
T = TypeVar("T")


class _Header(Words):
    N_WORDS = 8
    published = Word(0)
    """Models published so far; model n lies in slot ``n mod N_SLOTS``. 0: none yet."""
    blob_bytes = Word(1)
    """The size of one serialised model."""
    run_key = Word(2)
    """The key of the run whose models these are, see ``key_of``; 0 if the file's readers know the run."""


class _SlotHeader(Words):
    N_WORDS = 4
    ticket = Word(0)
    """The number of the model in the slot; 0 while the slot is written."""
    incarnation = Word(1)
    opt_steps = Word(2)
    published_at = Word(3, float)
    """On the host's monotonic clock."""


@dataclass(frozen=True)
class Blob:
    """A serialised model, as it lies in its slot."""

    version: ModelVersion
    data: memoryview
    published_at: float


def key_of(run_id: str) -> int:
    """A number of 63 bits, not 0, for a run's id."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8]) >> 1 or 1


class ModelSlots:
    """The mapped file of the slots.

    Args:
        path: the file.
        blob_bytes: size of one serialised model.
        create: make a new file; otherwise open an existing one.
        run_id: with ``create``, the run whose models these are, for readers that check it; None: they know the run.
        writable: otherwise the file is opened for reading only.

    Raises:
        RunDirectoryError: the file cannot be made or opened, or has another size.
    """

    def __init__(
        self, path: Path, blob_bytes: int, *, create: bool, run_id: str | None = None, writable: bool = True
    ) -> None:
        stride = -(-(8 * _SlotHeader.N_WORDS + blob_bytes) // 64) * 64
        head = 8 * _Header.N_WORDS
        buffer = map_file(path, head + N_SLOTS * stride, create=create, writable=writable)
        self.blob_bytes = blob_bytes
        self.header = _Header(buffer)
        if create:
            self.header.run_key = 0 if run_id is None else key_of(run_id)
            self.header.blob_bytes = blob_bytes
        starts = [head + i * stride for i in range(N_SLOTS)]
        self.slots = [_SlotHeader(buffer, start) for start in starts]
        data = [start + 8 * _SlotHeader.N_WORDS for start in starts]
        self.data = [memoryview(buffer)[start : start + blob_bytes] for start in data]

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> ModelSlots:
        """Open a file of slots whose models have any size.

        Raises:
            RunDirectoryError: the file is not there, or is no file of slots.
        """
        try:
            with path.open("rb") as file:
                head = memoryview(file.read(8 * _Header.N_WORDS)).cast("q")
            blob_bytes = head[1]
        except (OSError, TypeError, IndexError) as error:
            raise RunDirectoryError(f"{path}: expected a file of model slots: {error}") from error
        return cls(path, blob_bytes, create=False, writable=writable)

    def write(self, version: ModelVersion, fill: Callable[[int], object]) -> None:
        """Make a model the newest. At most one thread of one process may be here at a time.

        Args:
            version: of the model.
            fill: writes the model into the slot whose number it is given.
        """
        # A reader may still copy from this slot, which holds the third newest model. The reader must see ticket 0
        # before it can see the first new byte, and the new ticket only after the last new byte: two fences.
        number = self.header.published + 1
        slot = self.slots[number % N_SLOTS]
        slot.ticket = 0
        fence()
        fill(number % N_SLOTS)
        slot.incarnation, slot.opt_steps = version.incarnation, version.opt_steps
        slot.published_at = time.monotonic()
        fence()
        slot.ticket = number
        self.header.published = number

    def newest(self) -> ModelVersion:
        """The newest version, or ``NO_MODEL``."""
        published = self.header.published
        if not published:
            return NO_MODEL
        slot = self.slots[published % N_SLOTS]
        return ModelVersion(slot.incarnation, slot.opt_steps)

    def read(self, copy: Callable[[Blob], T]) -> T | None:
        """Copy the newest model, whole.

        Args:
            copy: makes the copy. It may be called several times, and must not keep a view of the slot.

        Returns:
            The result of ``copy``, or None before the first model.
        """
        while published := self.header.published:
            slot, data = self.slots[published % N_SLOTS], self.data[published % N_SLOTS]
            ticket = slot.ticket
            if ticket == published:
                fence()  # The ticket must be read before the copy is: on ARM a later read may come first.
                blob = Blob(ModelVersion(slot.incarnation, slot.opt_steps), data, slot.published_at)
                copied = copy(blob)
                fence()  # The copy must be read before the ticket is read again.
                if slot.ticket == ticket:
                    return copied
        return None
