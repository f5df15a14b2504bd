"""Training with several ranks: the same agent on all of them, and the loop in which they take each opt step together.

Each rank is a complete learner host, with its own actors, ingest and shard of the replay. The ranks agree in each turn
of the loop (``learner.ranks.turns``), and average their gradients in each opt step (``common.agents.averaging``). Each
also tells its ingest where all ranks listen and how many actors each has, so that new actors go to ranks with fewer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from common.interfaces import Agent, ReplayBuffer
from common.process.clocks import Deadline
from common.wire.address import join_address, split_address
from learner.loop.intake import Intake
from learner.loop.learner import Learner, Outcome
from learner.loop.opt_traces import OptTraces
from learner.models.publisher import ModelPublisher
from learner.ranks.agent_state import compute_checksum, find_statistics, share_agent, share_statistics
from learner.ranks.beginning import Beginning
from learner.ranks.group import Group
from learner.ranks.shard import ShardBuffer, share_updates
from learner.ranks.turns import FAILED, GOES_ON, Measured, Turns
from learner.replay.prioritized import PrioritizedReplay
from learner.shared.control import ControlBlock
from learner.shared.rank_table import RankTable
from learner.storage.training_state import Moment

OUTCOMES: Final = tuple(Outcome)
"""A rank sends an outcome to the others as its place in this tuple, counted from 1."""
ADDRESS_BYTES: Final = 300
SHARE_SECONDS: Final = 1.0
"""After so many seconds, ingest is told again how many actors each rank has."""


class Together:
    """One of several ranks of a run, and what it shares with the others.

    Args:
        group: of all ranks.
        beginning: the facts that rank 0 told about this life of the run.
        shard: the rows of this rank.
        gives_tensors: whether batches are gathered on the device.
        control: shared with ingest.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        group: Group,
        beginning: Beginning,
        shard: ReplayBuffer,
        *,
        gives_tensors: bool,
        control: ControlBlock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group, self._beginning, self._shard = group, beginning, shard
        self._gives_tensors, self._control = gives_tensors, control
        self._learner: Learner | None = None
        self._turns = Turns(group, self._measure, control.show_life)
        self._table: RankTable | None = None
        self._clock = clock
        self._next_counts = Deadline(0, clock)
        self._opt_steps = beginning.opt_steps
        self._checksum = 0
        self._statistics: list[torch.Tensor] = []

    @property
    def inserted_elsewhere(self) -> int:
        """Steps stored so far by the other ranks, by the last exchange."""
        return self._turns.inserted_elsewhere

    @property
    def inserted(self) -> int:
        """Steps stored so far by all ranks."""
        return self._shard.inserted + self.inserted_elsewhere

    def share_beginning(self, agent: Agent, moment: Moment) -> Moment:
        """Give all ranks the agent and the count of updates of rank 0, and hear how many steps the other ranks have.

        Args:
            agent: restored as far as this rank's checkpoint goes.
            moment: at which this rank's replay goes on.

        Returns:
            The moment at which this rank goes on.

        Raises:
            RankLostError: a rank has ended.
        """
        share_agent(agent, self.group)
        share_updates(self._shard, self.group)
        self.group.begin_averaging(agent)
        self._statistics = find_statistics(agent)
        self._turns.end()
        return self._beginning.moment(moment)

    def share_draws(self, buffer: ReplayBuffer) -> ReplayBuffer:
        """A buffer that draws this rank's share of each batch from ``buffer``; see ``ShardBuffer``."""
        weighing = self._shard if isinstance(self._shard, PrioritizedReplay) else None
        return ShardBuffer(
            buffer, self.group.place, self._turns, gives_tensors=self._gives_tensors, prioritized=weighing
        )

    def after_opt(self) -> None:
        """Keep the statistics in the networks the same on all ranks, after each opt step."""
        share_statistics(self._statistics)

    def listen(self, learner: Learner, address: str, shared: Path) -> None:
        """Take the learner that ``train`` trains, and tell the other ranks where this rank listens."""
        self._learner = learner
        self._table = share_addresses(self.group, address, shared)

    def show_life(self) -> None:
        """Show ingest and the other ranks a sign of life, while this rank is busy with an evaluation."""
        self._control.show_life()
        self._turns.answer_while_busy()
        learner, ending = self._learner, self._turns.ending
        if ending is not None and learner is not None and learner.outcome is None:  # The last evaluation goes on.
            learner.request_stop()

    def train(self, learner: Learner, intake: Intake, publisher: ModelPublisher, traces: OptTraces) -> None:
        """Take opt steps with the other ranks until one of them ends training; all end with the same outcome.

        ``listen`` comes first. Without other ranks, ``learner.loop.loop.train`` is this loop.

        Raises:
            RankLostError: another rank has ended, has failed or does not answer.
        """
        turns, table = self._turns, self._table
        assert table is not None, "listen comes first"
        try:
            while turns.ending is None:
                intake.show_life()
                turns.begin(self._number(learner))
                if learner.outcome is None and intake.may_sample() and learner.step():
                    turns.end()  # An agent that draws nothing in an opt step has taken part in no exchange.
                    intake.note_step(learner.opt_steps)
                    publisher.settle()
                    traces.note_opt()
                else:
                    turns.end()
                    # Ingest holds actors back once a share has been drawn, also while other ranks cannot draw yet.
                    self._control.sampled = self._shard.sampled
                    publisher.settle(wait=True)
                    if not turns.is_ready and turns.ending is None:
                        intake.wait()  # Otherwise the next exchange waits for those ranks that have no rows.
                learner.tick()
                if turns.heard and self._next_counts.passed():
                    self._next_counts = Deadline(SHARE_SECONDS, self._clock)
                    table.actors[:] = [said.actors for said in turns.heard]
        except BaseException:
            self.group.close()  # The other ranks see at once that this rank has failed.
            raise
        if turns.ending > GOES_ON:
            learner.outcome = OUTCOMES[turns.ending - 1]

    def _number(self, learner: Learner) -> int:
        """Why this rank ends training, as it tells the others (``Said.outcome``)."""
        if learner.life.failure is not None:
            return FAILED
        return GOES_ON if learner.outcome is None else OUTCOMES.index(learner.outcome) + 1

    def _measure(self) -> Measured:
        if self._learner is not None and self._learner.opt_steps != self._opt_steps:
            self._opt_steps = self._learner.opt_steps
            self._checksum = compute_checksum(self._learner.agent, self._opt_steps)
        return Measured(self._opt_steps, self._checksum, self._shard.inserted, self._control.actors_present)


def share_addresses(group: Group, address: str, shared: Path) -> RankTable:
    """Exchange the addresses of all ranks, and write them for ingest.

    Raises:
        RankLostError: a rank has ended.
        RunDirectoryError: the table cannot be written.
    """
    host, port = split_address(address)
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = socket.gethostname()
    own = join_address(host, port)
    addresses = [data.decode() for data in group.gather(own.encode(), ADDRESS_BYTES)]
    return RankTable.create(shared, group.place.rank, addresses)
