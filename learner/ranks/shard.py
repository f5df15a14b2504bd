"""The share of each batch that a rank draws from its own shard of the replay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.data import Items
from common.interfaces import ReplayBuffer
from learner.ranks.group import Group
from learner.ranks.place import Place
from learner.ranks.turns import Turns
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import BufferOver


class ShardBuffer(BufferOver):
    """A ``ReplayBuffer`` that draws this rank's share of a batch, and gives it once all ranks have drawn their shares.

    A share that was drawn while another rank could not draw is kept for the next turn. So rows that are drawn only
    once, as from a queue, are not lost.

    The weights of prioritised draws are those of one replay of all shards. A row whose priority is p, in a shard whose
    priorities have the sum S, begins a draw with the probability ``p / (n S)``, with n ranks. Its weight is
    ``(least / (p / S))^beta``, where the least probability is that of all ranks.

    Args:
        shard: this rank's replay.
        place: of this rank; its share of a batch is the nth part.
        turns: the exchanges of this rank.
        gives_tensors: whether the shard gives tensors and no arrays.
        prioritized: the replay behind ``shard`` that gives weights; None if it gives none.
    """

    def __init__(
        self,
        shard: ReplayBuffer,
        place: Place,
        turns: Turns,
        *,
        gives_tensors: bool = False,
        prioritized: PrioritizedReplay | None = None,
    ) -> None:
        super().__init__(shard)
        self._place, self._turns = place, turns
        self._gives_tensors, self._prioritized = gives_tensors, prioritized
        self._arrays: tuple[int, Items] | None = None
        self._tensors: tuple[int, dict[str, torch.Tensor]] | None = None
        """The number of draws and the batch that no opt step has used yet."""

    def __len__(self) -> int:
        return len(self._buffer) or int(self._arrays is not None or self._tensors is not None)

    def batch(self, size: int) -> Items:
        """Draw this rank's share of ``size`` draws.

        Raises:
            NothingToDrawError: a rank has nothing to draw from, or training ends.
            ConfigError: the ranks cannot have equal shares.
            RankLostError: see ``Turns``.
        """
        share = self._place.share(size)
        with self._drawing():
            if self._arrays is None or self._arrays[0] != share:
                self._arrays = share, self._buffer.batch(share)
        scale = self._agree()
        (_, batch), self._arrays = self._arrays, None
        return batch if scale is None else {**batch, "weight": batch["weight"] * scale}

    def tensors(self, size: int) -> dict[str, torch.Tensor] | None:
        """Draw as ``batch`` does, but tensors on the device; None if the shard gives arrays only."""
        if not self._gives_tensors:
            return None
        share = self._place.share(size)
        with self._drawing():
            if self._tensors is None or self._tensors[0] != share:
                drawn = self._buffer.tensors(share)
                assert drawn is not None, "the shard gives tensors"
                self._tensors = share, drawn
        scale = self._agree()
        (_, batch), self._tensors = self._tensors, None
        return batch if scale is None else {**batch, "weight": batch["weight"] * scale}

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """If this rank has nothing to draw from, tell the others before the error is raised."""
        try:
            yield
        except NothingToDrawError:
            self._turns.ask(has_drawn=False)
            raise

    def _agree(self) -> float | None:
        """Agree with the other ranks to use the drawn shares; return the factor of the weights, if draws have any."""
        own = math.inf if self._prioritized is None else self._prioritized.least_probability
        least = self._turns.ask(has_drawn=True, least=own)
        if least is None:
            raise NothingToDrawError
        return None if self._prioritized is None else (least / own) ** self._prioritized.beta()


def share_updates(shard: ReplayBuffer, group: Group) -> None:
    """Give prioritised shards the number of updates of rank 0, so that the exponents of their weights are the same.

    The checkpoints of the ranks may be of different opt steps, and a new shard has none.

    Raises:
        RankLostError: a rank has ended.
    """
    if isinstance(shard, PrioritizedReplay):
        shard.updates = int(group.broadcast(str(shard.updates).encode()))
