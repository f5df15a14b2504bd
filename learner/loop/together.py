"""Training with several ranks: the same agent on all of them, and the loop in which they take each opt step together.

Each rank is a complete learner host, with its own actors, ingest and shard of the replay. The ranks agree in each turn
of the loop (``learner.ranks.turns``), and average their gradients in each opt step (``common.agents.averaging``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from common.interfaces import Agent, ReplayBuffer
from learner.loop.intake import Intake
from learner.loop.learner import Learner, Outcome
from learner.loop.rank import Rank
from learner.ranks.addresses import ActorCounts, share_addresses
from learner.ranks.agent_state import RandomState, compute_checksum, find_statistics, share_agent, share_statistics
from learner.ranks.beginning import Beginning, begin_in_order
from learner.ranks.group import Group
from learner.ranks.shard import ShardBuffer, share_updates
from learner.ranks.turns import FAILED, GOES_ON, Measured, Turns
from learner.replay.prioritized import PrioritizedReplay
from learner.shared.control import ControlBlock
from learner.storage.moment import Moment
from learner.storage.resume import Trained

OUTCOMES: Final = tuple(Outcome)
"""A rank sends an outcome to the others as its place in this tuple, counted from 1."""


class Together(Rank):
    """One of several ranks of a run.

    Args:
        group: of all ranks.
        beginning: the facts that rank 0 told about this life of the run.
        shard: the rows of this rank.
        gives_tensors: whether batches are gathered on the device.
        beat: shows ingest a sign of life.
        control: shared with ingest.
    """

    def __init__(
        self,
        group: Group,
        beginning: Beginning,
        shard: ReplayBuffer,
        *,
        gives_tensors: bool,
        beat: Callable[[], None],
        control: ControlBlock,
    ) -> None:
        super().__init__(shard, beat)
        self._group, self._beginning, self._gives_tensors, self._control = group, beginning, gives_tensors, control
        self._turns = Turns(group, self._measure, beat)
        self._counts: ActorCounts | None = None
        self._opt_steps = beginning.opt_steps
        self._checksum = 0
        self._statistics: list[torch.Tensor] = []

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self._group.place.leads

    @property
    def inserted_elsewhere(self) -> int:
        """Steps stored so far by the other ranks, by the last exchange."""
        return self._turns.inserted_elsewhere

    def kept(self, agent: Agent) -> Trained:
        """The part of the agent that this rank's checkpoints keep: rank 0 keeps all, others their random generators."""
        return agent if self.leads else RandomState(agent)

    def begin(self, agent: Agent, moment: Moment) -> Moment:
        """Give all ranks the agent and the count of updates of rank 0, and hear how many steps the other ranks have.

        Raises:
            RankLostError: a rank has ended.
        """
        share_agent(agent, self._group)
        share_updates(self._replay, self._group)
        self._group.begin_averaging()
        self._statistics = find_statistics(agent)
        self._turns.end()
        return self._beginning.moment(moment)

    def begin_run(self, begin: Callable[[], None], note_ranks: Callable[[int], None]) -> None:
        """Begin this life of the run on rank 0 first; see ``begin_in_order``."""
        begin_in_order(self._group, begin, note_ranks)

    def share_draws(self, buffer: ReplayBuffer) -> ReplayBuffer:
        """A buffer that draws this rank's share of each batch from ``buffer``; see ``ShardBuffer``."""
        weighing = self._replay if isinstance(self._replay, PrioritizedReplay) else None
        return ShardBuffer(
            buffer, self._group.place, self._turns, gives_tensors=self._gives_tensors, prioritized=weighing
        )

    def after_opt(self) -> None:
        """Keep the statistics in the networks the same on all ranks, after each opt step."""
        share_statistics(self._statistics)

    def listen(self, learner: Learner, address: str, shared: Path) -> None:
        """Tell the other ranks where this rank listens, before ``train``."""
        self._learner = learner
        self._counts = ActorCounts(share_addresses(self._group, address, shared))

    def show_life(self) -> None:
        """Show ingest and the other ranks a sign of life, while this rank is busy with an evaluation."""
        self._beat()
        self._turns.answer_while_busy()
        learner, ending = self._learner, self._turns.ending
        if ending is not None and learner is not None and learner.outcome is None:  # The last evaluation goes on.
            learner.request_stop()

    def train(
        self,
        intake: Intake,
        after_step: Callable[[], None],
        settle: Callable[[], None],
        failed: Callable[[], bool],
    ) -> None:
        """Take opt steps with the other ranks until one of them ends training; all end with the same outcome.

        Raises:
            RankLostError: another rank has ended, has failed or does not answer.
        """
        learner, turns, counts = self._learner, self._turns, self._counts
        assert learner is not None, "listen comes first"
        assert counts is not None
        try:
            while turns.ending is None:
                self._beat()
                turns.begin(FAILED if failed() else self._number(learner.outcome))
                if learner.outcome is None and intake.may_sample() and learner.step():
                    turns.end()  # An agent that draws nothing in an opt step has taken part in no exchange.
                    after_step()
                else:
                    turns.end()
                    # Ingest holds actors back once a share has been drawn, also while other ranks cannot draw yet.
                    self._control.sampled = self._replay.sampled
                    settle()
                    if not turns.is_ready and turns.ending is None:
                        intake.wait()  # Otherwise the next exchange waits for those ranks that have no rows.
                learner.tick()
                counts.share([said.actors for said in turns.heard])
        except BaseException:
            self._group.close()  # The other ranks see at once that this rank has failed.
            raise
        if turns.ending > GOES_ON:
            learner.outcome = OUTCOMES[turns.ending - 1]

    def _number(self, outcome: Outcome | None) -> int:
        return GOES_ON if outcome is None else OUTCOMES.index(outcome) + 1

    def _measure(self) -> Measured:
        if self._learner is not None and self._learner.opt_steps != self._opt_steps:
            self._opt_steps = self._learner.opt_steps
            self._checksum = compute_checksum(self._learner.agent, self._opt_steps)
        return Measured(self._opt_steps, self._checksum, self._replay.inserted, self._control.actors_present)
