"""What all replay buffers over shared memory have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.data import Array, Items
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader


@dataclass(frozen=True)
class ReplayState:
    """What draws depend on beside the items."""

    values: Mapping[str, Any]
    """Whatever JSON can hold."""
    arrays: Mapping[str, Array] = field(default_factory=dict)


class SharedReplay(abc.ABC):
    """A ``ReplayBuffer`` whose items come from another process, and that a resumed run takes up again.

    Args:
        memory: read only here.
        seed: of the draws.
    """

    def __init__(self, memory: ReplayMemory, seed: int) -> None:
        self._memory = memory
        self._reader = ReplayReader(memory)
        self._rng = np.random.default_rng(seed)
        self._sampled = 0

    @property
    def inserted(self) -> int:
        """Items accepted so far."""
        return self._memory.committed

    @property
    def sampled(self) -> int:
        """Items drawn so far."""
        return self._sampled

    def __len__(self) -> int:
        return len(self._memory)

    @abc.abstractmethod
    def batch(self, size: int) -> Items:
        """Draw ``size`` items; the arrays are reused by the next call of the same size.

        Raises:
            IndexError: there is nothing to draw from.
        """

    @abc.abstractmethod
    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give items ``[n]`` the priorities of their errors ``[n]``."""

    def state(self) -> ReplayState:
        """What draws depend on beside the items."""
        return ReplayState({"sampled": self._sampled, "rng": self._rng.bit_generator.state})

    def restore(self, state: ReplayState) -> None:
        """Go on as ``state`` says.

        Raises:
            CheckpointError: it is the state of another kind of buffer.
        """
        self._sampled = state.values["sampled"]
        self._rng.bit_generator.state = state.values["rng"]

    def skip(self, n: int) -> None:
        """Count ``n`` items as drawn."""
        self._sampled += n
