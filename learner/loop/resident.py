"""A copy of the replay's items on the learner's device, so that batches are gathered where the agent learns."""

from __future__ import annotations

import torch

from common.agents.network_agent import to_tensors
from common.data import Array, Items
from common.errors import ConfigError
from common.interfaces import ReplayBuffer
from learner.replay.memory import ReplayMemory
from learner.replay.shared_buffer import SharedReplay
from learner.shared.mapped import fence


class ResidentReplay(ReplayBuffer):
    """A ``ReplayBuffer`` over another one, with a copy of its items on a device. It draws the same items.

    Args:
        replay: chooses the items of each batch.
        memory: of ``replay``; read only here.
        device: holds the copy, in the same slots; the copy is brought up to date at each draw.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, replay: SharedReplay, memory: ReplayMemory, device: torch.device) -> None:
        self._replay, self._memory, self._device = replay, memory, device
        self._end = self._frames_end = 0
        try:
            self._columns = {c.name: _Ring(memory.columns[c.name], device) for c in memory.schema.columns}
            if memory.frames is not None:
                self._frames, self._bases = _Ring(memory.frames.frames, device), _Ring(memory.frames.bases, device)
        except RuntimeError as error:
            raise ConfigError(
                f"replay.resident: expected room for {memory.n_bytes} bytes on {device}, found too little: {error}"
            ) from error

    @property
    def inserted(self) -> int:
        """Items accepted so far."""
        return self._replay.inserted

    @property
    def sampled(self) -> int:
        """Items drawn so far."""
        return self._replay.sampled

    def __len__(self) -> int:
        return len(self._replay)

    def batch(self, size: int) -> Items:
        """Draw a batch of arrays from the other buffer."""
        return self._replay.batch(size)

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give drawn items new priorities in the other buffer."""
        self._replay.update_priority(index, td_error)

    def tensors(self, size: int) -> dict[str, torch.Tensor]:
        """Draw ``size`` items and gather them on the device: columns ``[size, *shape]``.

        Ingest may overwrite rows before they are copied. It raises ``first()`` above a row before it touches the row.
        So if an index is below ``first()`` after the copy, its row may be torn, and another batch is drawn.

        Raises:
            IndexError: there is nothing to draw from.
        """
        index, beside = self._replay.draw_allowed(size)
        self._catch_up()
        while (index < self._memory.first()).any():
            index, beside = self._replay.draw_allowed(size)
            self._catch_up()
        self._replay.note_drawn(index)
        return {**self._gather(index), **to_tensors(beside, self._device)}

    def _catch_up(self) -> None:
        """Copy the items and frames that were stored since the last call."""
        memory = self._memory
        begin, end = max(self._end, memory.first()), memory.committed
        fence()  # The writer counts frames before the rows that refer to them, so all frames of these rows are there.
        frames_end = int(memory.header.frames_end)
        for column in self._columns.values():
            column.copy(begin, end)
        if memory.frames is not None:
            self._bases.copy(begin, end)
            self._frames.copy(max(self._frames_end, frames_end - self._frames.length), frames_end)
        self._end, self._frames_end = end, frames_end
        fence()  # The caller looks afterwards which rows were overwritten during the copy.

    def _gather(self, index: Array) -> dict[str, torch.Tensor]:
        slots = torch.from_numpy(index % self._memory.n_slots).to(self._device)
        rows = {name: column.take(slots) for name, column in self._columns.items()}
        for column in self._memory.schema.frame_columns:
            numbers = self._bases.take(slots)[:, None] + rows[column.name].long()
            frames = self._frames.take(numbers.flatten() % self._frames.length)
            rows[column.name] = frames.reshape(len(index), *column.shape)
        return rows


class _Ring:
    """The slots of a mapped array, and their copy on a device."""

    def __init__(self, mapped: Array, device: torch.device) -> None:
        self._mapped = torch.from_numpy(mapped)
        self._resident = torch.empty_like(self._mapped, device=device)
        self.length = len(mapped)

    def copy(self, begin: int, end: int) -> None:
        """Copy the rows with absolute indices ``[begin, end)``, at most as many as the ring has slots."""
        slot = begin % self.length
        stop = slot + max(0, end - begin)
        for part in slice(slot, min(stop, self.length)), slice(0, max(0, stop - self.length)):
            self._resident[part].copy_(self._mapped[part])

    def take(self, slots: torch.Tensor) -> torch.Tensor:
        return self._resident.index_select(0, slots)
