"""A copy of the replay's rows on the learner's device, so that batches are gathered where the agent learns."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from common.agents.network_agent import to_tensors
from common.data import Array, Items
from common.errors import ConfigError
from common.interfaces import ReplayBuffer
from common.shared.mapped import fence
from learner.replay.memory import ReplayMemory
from learner.replay.reader import TRIES, NothingToDrawError
from learner.replay.shared_buffer import SharedReplay
from learner.replay.sources import SHIFT, SOURCE, MixedReplay
from learner.replay.view import Plan


class ResidentRows:
    """A copy of the rows of a replay memory on a device, in the same slots.

    Args:
        memory: read only here.
        device: holds the copy.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, memory: ReplayMemory, device: torch.device) -> None:
        self.memory = memory
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
        for column in self.columns.values():
            column.copy(begin, end)
        self._end = end
        fence()  # The caller checks afterwards which rows were overwritten during the copy.


class ResidentReplay(ReplayBuffer):
    """A ``ReplayBuffer`` with the same draws as another buffer, gathered from a copy of its rows on a device.

    Args:
        replay: chooses the draws of each batch.
        device: holds the copy, which is brought up to date at each draw.
        rows: the copy, if another buffer has already made a copy of the same rows.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, replay: SharedReplay, device: torch.device, rows: ResidentRows | None = None) -> None:
        self._replay, self._reader, self._device = replay, replay.reader, device
        self._rows = rows or ResidentRows(replay.reader.memory, device)

    @property
    def inserted(self) -> int:
        """Steps accepted so far."""
        return self._replay.inserted

    @property
    def sampled(self) -> int:
        """Steps drawn so far."""
        return self._replay.sampled

    def __len__(self) -> int:
        return len(self._replay)

    def batch(self, size: int) -> Items:
        """Draw a batch of arrays from the other buffer."""
        return self._replay.batch(size)

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws new priorities in the other buffer."""
        self._replay.update_priority(index, td_error)

    def tensors(self, size: int) -> dict[str, torch.Tensor]:
        """Draw ``size`` times and gather the batch on the device: columns ``[size, …]``.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """
        draws = self._replay.make_draws(size)
        batch, spoilt = self._gather(draws.plan)
        for _ in range(TRIES):
            if not len(spoilt):
                break
            others = self._replay.make_draws(len(spoilt))
            fresh, again = self._gather(others.plan)
            at = torch.from_numpy(spoilt).to(self._device)
            for name, column in fresh.items():
                batch[name][at] = column
            draws.replace(spoilt, others)
            spoilt = spoilt[again]
        else:
            raise NothingToDrawError
        self._replay.note_drawn(draws)
        columns = self._rows.columns
        stored = {name: columns[column].restore(batch[name]) for name, (column, _) in draws.plan.takes.items()}
        return {**stored, **to_tensors({**draws.plan.made, **self._replay.finish(draws)}, self._device)}

    def _gather(self, plan: Plan) -> tuple[dict[str, torch.Tensor], Array]:
        """Gather the columns that a plan takes; return them and the positions ``[k]`` of draws that may be torn.

        Ingest may overwrite rows before they are copied. It raises ``first()`` above a row before it overwrites the
        row. So draws with a row below ``first()`` after the copy may be torn. The copy itself changes only here.
        """
        self._rows.catch_up()
        spoilt = self._reader.find_spoilt(plan)
        slots: dict[int, torch.Tensor] = {}
        batch: dict[str, torch.Tensor] = {}
        for name, (column, index) in plan.takes.items():
            if id(index) not in slots:
                slots[id(index)] = torch.from_numpy(index % self._rows.memory.n_slots).to(self._device)
            batch[name] = self._rows.columns[column].take(slots[id(index)])
        return batch, spoilt


class MixedResidentReplay(ReplayBuffer):
    """A ``MixedReplay`` with a copy of all rows on a device.

    Args:
        mixed: chooses how many draws come from each replay.
        device: holds the copies.

    Raises:
        ConfigError: the device has not enough room.
    """

    def __init__(self, mixed: MixedReplay, device: torch.device) -> None:
        self._mixed, self._device = mixed, device
        memories = {id(memory): memory for memory in (part.reader.memory for part in mixed.parts)}
        rows = {key: ResidentRows(memory, device) for key, memory in memories.items()}
        self._parts = [ResidentReplay(part, device, rows[id(part.reader.memory)]) for part in mixed.parts]

    @property
    def inserted(self) -> int:
        """Steps of the actors accepted so far."""
        return self._mixed.inserted

    @property
    def sampled(self) -> int:
        """Steps drawn so far, from all sources."""
        return self._mixed.sampled

    def __len__(self) -> int:
        return len(self._mixed)

    def batch(self, size: int) -> Items:
        """Draw a batch of arrays."""
        return self._mixed.batch(size)

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws new priorities in the replays from which they came."""
        self._mixed.update_priority(index, td_error)

    def tensors(self, size: int) -> dict[str, torch.Tensor]:
        """Draw as ``MixedReplay.batch`` does, and gather the batch on the device: columns ``[size, …]``."""
        counts, batches = self._mixed.draw_each(size, lambda i, n: self._parts[i].tensors(n))
        batch = {name: torch.cat([each[name] for each in batches]) for name in batches[0]}
        repeats = torch.tensor(counts)
        batch[SOURCE] = torch.from_numpy(self._mixed.numbers).repeat_interleave(repeats).to(self._device)
        if "index" in batch:
            batch["index"] |= torch.arange(len(counts)).repeat_interleave(repeats).to(self._device) << SHIFT
        return batch


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
            self._resident[part].copy_(self._mapped[part])

    def take(self, slots: torch.Tensor) -> torch.Tensor:
        """The rows in these slots ``[…]``, ``[…, *shape]``; unsigned integers come as signed integers."""
        rows = self._resident.index_select(0, slots.flatten())
        return rows.reshape(*slots.shape, *rows.shape[1:])

    def restore(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows that ``take`` gave, with the dtype of the column."""
        return rows.view(self._dtype) if self._is_unsigned else rows
