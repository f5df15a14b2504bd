"""One forward pass for the lanes of many sessions: steps are gathered for a short time, and answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from common.data import Array, Leaves
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.leaves import pick_lanes
from crossborder.serving.figures import Figures


class Player(Protocol):
    """Chooses actions. A saved policy is one (``learner.evaluation.policy:Policy``)."""

    @property
    def spec(self) -> EnvSpec:
        """The spaces of one lane, as clients have them."""

    @property
    def opt_steps(self) -> int:
        """Opt steps of the model that acts now."""

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        """Actions ``[k, *shape]`` for observations ``[k, *shape]`` of these lanes, ``[k]`` int64, all different."""


class Choice(NamedTuple):
    """The actions of some lanes, ``[k, *shape]``, and the opt steps of the model that chose them."""

    actions: Leaves
    opt_steps: int


@dataclass(frozen=True)
class _Waiting:
    """Lanes that wait for actions."""

    lanes: Array
    obs: Leaves
    begins: Array
    came: float
    tell: Callable[[Choice], None]


class Batcher:
    """Gathers lanes that wait. A batch goes when all connected lanes wait, when it is full, or when the wait is over.

    The player chooses in the event loop's thread: a thread of its own would wait for Python's lock longer than most
    policies compute. Steps that arrive meanwhile wait in their sockets, and make the next batch.

    Args:
        player: chooses actions.
        max_rows: lanes in one batch, unless one step alone has more.
        max_wait: the longest time in seconds that a step waits for others.
        count_lanes: how many lanes are connected now.
        figures: counts batches.
    """

    def __init__(
        self, player: Player, *, max_rows: int, max_wait: float, count_lanes: Callable[[], int], figures: Figures
    ) -> None:
        self._player, self._max_rows, self._max_wait = player, max_rows, max_wait
        self._count_lanes, self._figures = count_lanes, figures
        self._waiting = deque[_Waiting]()
        self._n_rows = 0
        self._changed = asyncio.Event()

    def submit(self, lanes: Array, obs: Leaves, begins: Array, tell: Callable[[Choice], None]) -> None:
        """Ask for actions. If the service ends before, nothing is told.

        Args:
            lanes: ``[k]`` int64, all different, at least one; none of them waits already.
            obs: their observations, ``[k, *shape]``.
            begins: where episodes begin, ``[k]`` bool.
            tell: is called with the actions, later.
        """
        self._waiting.append(_Waiting(lanes, obs, begins, asyncio.get_running_loop().time(), tell))
        self._n_rows += len(lanes)
        if len(self._waiting) == 1 or self._is_complete():
            self._changed.set()

    async def run(self) -> NoReturn:
        """Answer until cancelled.

        Raises:
            PluginError: the player failed.
        """
        while True:
            await self._gather()
            batch = self._take()
            _share(batch, self._choose(batch))

    async def _gather(self) -> None:
        """Wait until a batch may go."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        loop, deadline = asyncio.get_running_loop(), self._waiting[0].came + self._max_wait
        await asyncio.sleep(0)  # Steps that have been received already come along.
        while not self._is_complete() and loop.time() < deadline:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

    def _is_complete(self) -> bool:
        return self._n_rows >= min(self._max_rows, self._count_lanes())

    def _take(self) -> list[_Waiting]:
        """The next batch: as many of the steps that wait longest as have room, but at least one."""
        now, batch, rows = asyncio.get_running_loop().time(), list[_Waiting](), 0
        while self._waiting and (not batch or rows + len(self._waiting[0].lanes) <= self._max_rows):
            batch.append(self._waiting.popleft())
            rows += len(batch[-1].lanes)
            self._figures.wait_seconds.observe(now - batch[-1].came)
        self._n_rows -= rows
        self._figures.batch_lanes.observe(rows)
        return batch

    def _choose(self, batch: Sequence[_Waiting]) -> Choice:
        lanes = np.concatenate([one.lanes for one in batch])
        begins = np.concatenate([one.begins for one in batch])
        obs, opt_steps = _join([one.obs for one in batch]), self._player.opt_steps
        try:
            return Choice(self._player.sample(obs, begins, lanes), opt_steps)
        except Exception as error:  # A user's agent may raise anything.
            raise PluginError(f"the policy failed: {type(error).__name__}: {error}") from error


def _join(parts: Sequence[Leaves]) -> Leaves:
    first = parts[0]
    if isinstance(first, dict):
        return {path: np.concatenate([part[path] for part in parts]) for path in first}
    return np.concatenate(parts)  # type: ignore[arg-type] # no part is a dict


def _share(batch: Sequence[_Waiting], choice: Choice) -> None:
    """Give each step the actions of its lanes."""
    begin = 0
    for one in batch:
        end = begin + len(one.lanes)
        one.tell(Choice(pick_lanes(choice.actions, slice(begin, end)), choice.opt_steps))
        begin = end
