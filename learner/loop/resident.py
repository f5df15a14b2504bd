"""A copy of the replay's rows on the learner's device, so that batches are gathered where the agent learns."""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np
import torch

from common.agents.machinery.gradient_step import to_tensors
from common.data import Array, Items
from common.errors import ConfigError
from common.shared.mapped import fence
from learner.replay.memory import ReplayMemory
from learner.replay.mixed_replay import MixedReplay
from learner.replay.reader import Draws, Gatherer, MakeDraws, ReplayReader
from learner.replay.shared_buffer import BufferOver, SharedReplay, read_size
from learner.replay.view import Plan


class ResidentRows:
    """A copy of the rows of a replay memory on a device, in the same slots.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, memory: ReplayMemory, device: torch.device) -> None:
        self.memory = memory
        self.whole_from = 0
        """The oldest row that counted when ``catch_up`` ended: rows before it may have been overwritten meanwhile."""
        self._end = 0
        try:
            self.columns = {name: _Ring(column, device) for name, column in memory.columns.items()}
        except RuntimeError as error:
            raise ConfigError(
                f"replay.resident: expected room for {memory.n_bytes} bytes on {device}, found too little: {error}"
            ) from error

    def catch_up(self) -> None:
        """Copy the rows that were stored since the last call."""
        begin, end = max(self._end, self.memory.first()), self.memory.committed
        fence()
        if begin < end:
            for column in self.columns.values():
                column.copy(begin, end)
            self._end = end
        fence()
        self.whole_from = self.memory.first()


class ResidentReader(Gatherer[torch.Tensor]):
    """Gathers the draws of a reader from a copy of its rows on a device."""

    AHEAD_BYTES = 64 << 20

    def __init__(self, reader: ReplayReader, rows: ResidentRows, device: torch.device) -> None:
        self._reader, self._rows, self._device = reader, rows, device

    def gather(self, make: MakeDraws, size: int) -> tuple[Draws, dict[str, torch.Tensor]]:
        draws, batch = super().gather(make, size)
        columns = self._rows.columns
        stored = {name: columns[column].restore(batch[name]) for name, (column, _) in draws.plan.takes.items()}
        return draws, {**batch, **stored}

    def fill(self, plan: Plan, *, afresh: bool = False) -> dict[str, torch.Tensor]:  # noqa: ARG002 - it always is
        self._rows.catch_up()
        names = {id(index): name for name, (_, index) in plan.takes.items()}  # Columns may share an index.
        slots = self.place({name: plan.takes[name][1] % self._rows.memory.n_slots for name in names.values()})
        return {
            name: self._rows.columns[column].take(slots[names[id(index)]])
            for name, (column, index) in plan.takes.items()
        }

    def find_spoilt(self, plan: Plan) -> Array:
        """See ``Gatherer``. Ingest overwrites rows of the memory alone; those of the copy change only in ``fill``."""
        return self._reader.find_spoilt(plan, self._rows.whole_from)

    def place(self, columns: Items) -> dict[str, torch.Tensor]:
        return to_tensors(columns, self._device)


class ResidentReplay(BufferOver):
    """A ``ReplayBuffer`` with the same draws as another buffer, gathered from a copy of its rows on a device.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, replay: SharedReplay | MixedReplay, device: torch.device) -> None:
        super().__init__(replay)
        self._replay, self._device = replay, device
        self._parts = replay.parts if isinstance(replay, MixedReplay) else (replay,)
        memories = {id(memory): memory for memory in (part.reader.memory for part in self._parts)}
        rows = {key: ResidentRows(memory, device) for key, memory in memories.items()}
        self._readers = [ResidentReader(part.reader, rows[id(part.reader.memory)], device) for part in self._parts]

    def tensors(self, size: int) -> dict[str, torch.Tensor]:
        if not isinstance(self._replay, MixedReplay):
            return self._draw(0, read_size(size))
        return self._replay.join(size, self._draw, torch.cat, lambda column: torch.from_numpy(column).to(self._device))

    def _draw(self, i: int, size: int) -> dict[str, torch.Tensor]:
        return self._parts[i].take_batch(size, self._readers[i])


PINNED_BYTES: Final = 4 << 20
"""The most bytes that are copied to a GPU through pinned memory, so that the host need not wait for the GPU."""


class _Ring:
    """The slots of a mapped array, and their copy on a device."""

    def __init__(self, mapped: Array, device: torch.device) -> None:
        # Torch cannot index unsigned integers of more than one byte; signed integers have the same bits.
        self._is_unsigned = mapped.dtype.kind == "u" and mapped.dtype.itemsize > 1
        whole = mapped.view(f"<i{mapped.dtype.itemsize}") if self._is_unsigned else mapped
        self._dtype = torch.from_numpy(np.empty(0, mapped.dtype)).dtype
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Torch warns of arrays that are mapped for reading only.
            self._mapped = torch.from_numpy(whole)
        self._resident = torch.empty_like(self._mapped, device=device)
        self._length = len(mapped)

    def copy(self, begin: int, end: int) -> None:
        """Copy the rows with absolute indices ``[begin, end)``, at most as many as the ring has slots."""
        slot = begin % self._length
        stop = slot + max(0, end - begin)
        for part in slice(slot, min(stop, self._length)), slice(0, max(0, stop - self._length)):
            rows = self._mapped[part]
            if not len(rows):
                continue
            if self._resident.is_cuda and rows.nbytes <= PINNED_BYTES:
                self._resident[part].copy_(rows.pin_memory(), non_blocking=True)
            else:
                self._resident[part].copy_(rows)

    def take(self, slots: torch.Tensor) -> torch.Tensor:
        """The rows in these slots ``[…]``, ``[…, *shape]``; unsigned integers come as signed integers."""
        rows = self._resident.index_select(0, slots.flatten())
        return rows.reshape(*slots.shape, *rows.shape[1:])

    def restore(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows that ``take`` gave, with the dtype of the column."""
        return rows.view(self._dtype) if self._is_unsigned else rows
