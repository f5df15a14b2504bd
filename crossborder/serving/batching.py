"""One forward pass for the lanes of many sessions: steps are gathered for a short time, and answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from common.data import Array, Leaves
from common.errors import naming_failed_part
from common.interfaces import EnvSpec
from common.lanes.lanes import Round
from common.leaves import capacity_for, empty_leaves, pick_leaves, put_leaves
from common.wire.acting_payloads import Description
from crossborder.serving.client_steps import ClientSteps, join_steps
from crossborder.serving.figures import PolicyFigures
from crossborder.serving.recording_player import RecordingPlayer


class Player(Protocol):
    """Chooses actions. A saved policy is one (``common.lanes.policy:Policy``), ``RecordingPlayer`` another."""

    @property
    def spec(self) -> EnvSpec:
        """The spaces of one lane, as clients have them."""

    @property
    def opt_steps(self) -> int:
        """Opt steps of the model that acts now."""

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        """Actions ``[k, *shape]`` for observations ``[k, *shape]`` of these lanes, ``[k]`` int64, all different."""


class Choice(NamedTuple):
    """The actions of some lanes as they travel, the opt steps of the model that chose them, and the time until then."""

    action: bytes
    opt_steps: int
    seconds: float


class _Waiting(NamedTuple):
    """Lanes that wait for actions."""

    steps: ClientSteps
    came: float
    tell: Callable[[Choice], None]


class Batcher:
    """Gathers lanes that wait. A batch goes when all connected lanes wait, when it is full, or when the wait is over.

    The player chooses in the event loop's thread: a thread of its own would wait for Python's lock longer than most
    policies compute. Steps that arrive meanwhile wait in their sockets, and make the next batch.

    Args:
        player: chooses actions.
        description: of the actions as they travel.
        max_rows: lanes in one batch, unless one step alone has more.
        max_wait: the longest time in seconds that a step waits for others.
        count_lanes: how many lanes are connected now.
        figures: counts batches and episodes.
        sink: takes the steps; None: nobody does.
    """

    def __init__(
        self,
        player: Player,
        description: Description,
        *,
        max_rows: int,
        max_wait: float,
        count_lanes: Callable[[], int],
        figures: PolicyFigures,
        sink: RecordingPlayer | None = None,
    ) -> None:
        self._player, self._description, self._max_rows, self._max_wait = player, description, max_rows, max_wait
        self._count_lanes, self._figures, self._sink = count_lanes, figures, sink
        self._outcomes = _Outcomes()
        self._waiting = deque[_Waiting]()
        self._n_rows = 0
        self._changed = asyncio.Event()

    def submit(self, steps: ClientSteps, tell: Callable[[Choice], None]) -> None:
        """Ask for actions. If the service ends before, nothing is told.

        Args:
            steps: of at least one lane; none of them waits already.
            tell: is called with the actions, later. Those of lanes whose episode has ended have no meaning.
        """
        self._waiting.append(_Waiting(steps, asyncio.get_running_loop().time(), tell))
        self._n_rows += len(steps.lanes)
        if len(self._waiting) == 1 or self._is_complete():
            self._changed.set()

    async def run(self) -> NoReturn:
        """Answer until cancelled.

        Raises:
            PluginError: the player failed.
            CrossborderError: the steps could not be handed over.
        """
        while True:
            await self._gather()
            if self._waiting:
                self._answer(self._take())
            if self._sink is not None:
                await self._sink.hand_over()

    def tick(self) -> None:
        """Let the ``RecordingPlayer`` hand over its rows, even while no lane acts; called a few times a second."""
        self._changed.set()

    async def _gather(self) -> None:
        """Wait until a batch may go, or until the next tick if no lane waits."""
        if self._waiting:
            await asyncio.sleep(0)  # Clients may send between two batches.
        else:
            self._changed.clear()
            await self._changed.wait()  # All steps that were received with the first one are submitted before it ends.
        if not self._waiting:
            return
        loop, deadline = asyncio.get_running_loop(), self._waiting[0].came + self._max_wait
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
        while self._waiting and (not batch or rows + len(self._waiting[0].steps.lanes) <= self._max_rows):
            batch.append(self._waiting.popleft())
            rows += len(batch[-1].steps.lanes)
            self._figures.wait_seconds.observe(now - batch[-1].came)
        self._n_rows -= rows
        return batch

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        """Give each step the actions of its lanes."""
        steps = join_steps([one.steps for one in batch], self._player.spec.action_space)
        actions, opt_steps, now = self._choose(steps), self._player.opt_steps, asyncio.get_running_loop().time()
        payloads = self._description.write_actions(actions, [len(one.steps.lanes) for one in batch])
        for one, payload in zip(batch, payloads, strict=True):
            one.tell(Choice(payload, opt_steps, now - one.came))
            self._figures.answer_seconds.observe(now - one.came)

    def _choose(self, steps: ClientSteps) -> Leaves:
        """Choose actions for these lanes, after the steps before have been noted."""
        outcome = self._outcomes.note(steps)
        self._figures.episodes += len(outcome.returns)
        self._figures.return_sum += sum(outcome.returns)
        with naming_failed_part("the policy failed"):
            if self._sink is not None:
                self._sink.note(steps, outcome)
            return self._sample(steps)

    def _sample(self, steps: ClientSteps) -> Leaves:
        """Choose actions; lanes whose episode has ended get zeros."""
        acts, player = ~steps.ends, self._player
        n_acting = int(np.count_nonzero(acts))
        if n_acting:
            self._figures.actions += n_acting
            self._figures.batch_lanes.observe(n_acting)
        if n_acting == len(acts):
            return player.sample(steps.obs, steps.begins, steps.lanes)
        actions = empty_leaves(player.spec.action_space, len(acts))
        if n_acting:
            chosen = player.sample(pick_leaves(steps.obs, acts), steps.begins[acts], steps.lanes[acts])
            put_leaves(actions, acts, chosen)
        return actions


class _Outcomes:
    """What the steps of lanes came to, as an actor notes it of its own environments; keeps returns and lengths."""

    def __init__(self) -> None:
        self._returns: Array = np.zeros(0)
        self._lengths: Array = np.zeros(0, np.int64)

    def note(self, steps: ClientSteps) -> Round:
        """The outcome of the steps before these; a lane whose episode begins has taken none."""
        lanes, begins = steps.lanes, steps.begins
        if (more := capacity_for(lanes, len(self._returns)) - len(self._returns)) > 0:
            self._returns, self._lengths = np.pad(self._returns, (0, more)), np.pad(self._lengths, (0, more))
        returns, lengths = self._returns[lanes] + steps.reward, self._lengths[lanes] + 1
        outcome = Round(steps.reward, steps.terminated, steps.truncated, steps.obs)
        if np.count_nonzero(begins):
            returns[begins], lengths[begins] = 0.0, 0
            outcome.taken = ~begins
        self._returns[lanes], self._lengths[lanes] = returns, lengths
        if steps.executed is not None and np.count_nonzero(steps.intervened):
            outcome.action, outcome.intervened = steps.executed, steps.intervened
        ended = np.flatnonzero(steps.ends)
        if len(ended):
            outcome.ended, outcome.final_obs = ended, pick_leaves(steps.obs, ended)
            outcome.returns, outcome.lengths = returns[ended].tolist(), lengths[ended].tolist()
            outcome.success = [None] * len(ended)
        return outcome
