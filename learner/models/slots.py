"""The model slots: the trainer copies parameters in (``learner/models/publisher.py``), ingest copies whole models out.

Three slots in shared memory, each laid out as a safetensors file, so that a slot's bytes *are* the model on the wire
and one memcpy serves every actor.

The trainer never waits for ingest: it writes model n into slot ``n mod 3``, the slot that was written longest ago. So a
reader usually copies the newest model while the trainer fills another slot. Only when the trainer publishes two further
models during one copy and begins a third does it overwrite the very slot that is read. The slot's ticket shows that:
the trainer sets it to 0 before it writes and to the model's number afterwards. A reader that finds another ticket after
its copy than before drops the copy and reads the newest model instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from common.data import NO_MODEL, ModelVersion
from learner.shared.control import Word, Words
from learner.shared.mapped import fence, map_file

N_SLOTS: Final = 3
T = TypeVar("T")


class _Header(Words):
    N_WORDS = 8
    published = Word(0)
    """Models published so far; model n lies in slot ``n mod N_SLOTS``. 0: none yet."""


class _SlotHeader(Words):
    N_WORDS = 4
    ticket = Word(0)
    """The number of the model in the slot; 0 while the trainer writes the slot."""
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


class ModelSlots:
    """The mapped file of the slots.

    Args:
        path: the file.
        blob_bytes: size of one serialised model.
        create: make a new file; otherwise open an existing one.
    """

    def __init__(self, path: Path, blob_bytes: int, *, create: bool) -> None:
        stride = -(-(8 * _SlotHeader.N_WORDS + blob_bytes) // 64) * 64
        head = 8 * _Header.N_WORDS
        buffer = map_file(path, head + N_SLOTS * stride, create=create)
        self.header = _Header(buffer, 0, _Header.N_WORDS)
        starts = [head + i * stride for i in range(N_SLOTS)]
        self.slots = [_SlotHeader(buffer, start, _SlotHeader.N_WORDS) for start in starts]
        data = [start + 8 * _SlotHeader.N_WORDS for start in starts]
        self.data = [memoryview(buffer)[start : start + blob_bytes] for start in data]

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
            copy: makes the copy. It may be called several times, and may keep no view of the slot.

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
