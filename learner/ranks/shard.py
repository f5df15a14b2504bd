"""The share of each batch that a rank draws from its own shard of the replay."""

from __future__ import annotations

import math
from typing import Any

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
        self._kept = dict[str, tuple[int, Any]]()
        """By method, the number of draws and the batch that no opt step has used yet."""

    def __len__(self) -> int:
        return len(self._buffer) or int(bool(self._kept))

    def batch(self, size: int) -> Items:
        """Draw this rank's share of ``size`` draws.

        Raises:
            NothingToDrawError: a rank has nothing to draw from, or training ends.
            ConfigError: the ranks cannot have equal shares.
            RankLostError: see ``Turns``.
        """
        items: Items = self._draw("batch", size)
        return items

    def tensors(self, size: int) -> dict[str, torch.Tensor] | None:
        """Draw as ``batch`` does, but tensors on the device; None if the shard gives arrays only."""
        return self._draw("tensors", size) if self._gives_tensors else None

    def _draw(self, method: str, size: int) -> Any:
        """Draw by a method of the shard, or take what is kept; if there is nothing, tell the others before raising."""
        share = self._place.share(size)
        if method not in self._kept or self._kept[method][0] != share:
            try:
                self._kept[method] = share, getattr(self._buffer, method)(share)
            except NothingToDrawError:
                self._turns.ask(has_drawn=False)
                raise
        scale = self._agree()
        _, batch = self._kept.pop(method)
        return batch if scale is None else {**batch, "weight": batch["weight"] * scale}

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
