"""The share of each batch that a rank draws from its own shard of the replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from common.data import Items
from common.interfaces import ReplayBuffer
from learner.ranks.group import Group
from learner.ranks.place import Place
from learner.ranks.turns import Turns
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import BufferOver

Draw: TypeAlias = Callable[[int], Mapping[str, Any] | None]
"""``batch`` or ``tensors`` of a shard."""


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
        self._kept = dict[Draw, tuple[int, Mapping[str, Any]]]()
        """By method of the shard: the number of draws, and their batch, which no opt step has used yet."""

    def __len__(self) -> int:
        return len(self._buffer) or int(bool(self._kept))

    def batch(self, size: int) -> Items:
        """Draw this rank's share of ``size`` draws.

        Raises:
            NothingToDrawError: a rank has nothing to draw from, or training ends.
            ConfigError: the ranks cannot have equal shares.
            RankLostError: see ``Turns``.
        """
        return self._draw(self._buffer.batch, size)

    def tensors(self, size: int) -> dict[str, torch.Tensor] | None:
        """Draw as ``batch`` does, but tensors on the device; None if the shard gives arrays only."""
        return self._draw(self._buffer.tensors, size) if self._gives_tensors else None

    def _draw(self, draw: Draw, size: int) -> dict[str, Any]:
        """This rank's share of ``size`` draws by a method of the shard, which may be kept from before.

        If there is nothing to draw from, the other ranks are told before the error is raised.
        """
        share = self._place.share(size)
        if draw not in self._kept or self._kept[draw][0] != share:
            try:
                batch = draw(share)
            except NothingToDrawError:
                self._turns.ask(has_drawn=False)
                raise
            assert batch is not None, "the shard gives tensors"
            self._kept[draw] = share, batch
        scale = self._agree()
        drawn = dict(self._kept.pop(draw)[1])
        if scale is not None:
            drawn["weight"] = drawn["weight"] * scale
        return drawn

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
