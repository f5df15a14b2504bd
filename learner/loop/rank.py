"""A learner host as the only rank of its run; ``learner.loop.together`` is for several ranks."""

# ruff: noqa: ARG002 - the only rank tells nothing to others

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.interfaces import Agent, ReplayBuffer
from learner.loop.intake import Intake
from learner.loop.learner import Learner, do_nothing
from learner.storage.moment import Moment
from learner.storage.resume import Trained


class Rank:
    """The only rank of a run: it shares nothing, and asks nobody. ``Together`` is one of several ranks.

    Args:
        replay: the rows of this rank.
        beat: shows ingest a sign of life.
    """

    def __init__(self, replay: ReplayBuffer, beat: Callable[[], None] = do_nothing) -> None:
        self._replay, self._beat = replay, beat
        self._learner: Learner | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates, records and saves."""
        return True

    @property
    def inserted_elsewhere(self) -> int:
        """Steps stored so far by other ranks."""
        return 0

    @property
    def inserted(self) -> int:
        """Steps stored so far by all ranks."""
        return self._replay.inserted + self.inserted_elsewhere

    def kept(self, agent: Agent) -> Trained:
        """The part of the agent that this rank's checkpoints keep."""
        return agent

    def begin(self, agent: Agent, moment: Moment) -> Moment:
        """Begin with the agent and the count of opt steps that all ranks have.

        Args:
            agent: restored as far as this rank's checkpoint goes.
            moment: at which this rank's replay goes on.

        Returns:
            The moment at which this rank goes on.
        """
        return moment

    def begin_run(self, begin: Callable[[], None], note_ranks: Callable[[int], None]) -> None:
        """Begin this life of the run.

        Args:
            begin: writes the first checkpoint and ``run.json`` of this rank.
            note_ranks: writes the number of ranks into ``run.json``, where there are several.
        """
        begin()

    def share_draws(self, buffer: ReplayBuffer) -> ReplayBuffer:
        """A buffer that draws this rank's share of each batch from ``buffer``."""
        return buffer

    def after_opt(self) -> None:
        """Share the statistics in the networks with other ranks, after each opt step."""

    def listen(self, learner: Learner, address: str, shared: Path) -> None:
        """Take the learner that ``train`` trains, and tell other ranks where this rank listens.

        Args:
            learner: of this rank.
            address: of ingest, HOST:PORT.
            shared: the directory of the files that ingest reads too.
        """
        self._learner = learner

    def show_life(self) -> None:
        """Show a sign of life while this rank is busy with an evaluation."""
        self._beat()

    def train(
        self,
        intake: Intake,
        after_step: Callable[[], None],
        settle: Callable[[], None],
        failed: Callable[[], bool],
    ) -> None:
        """Take opt steps until training ends.

        Args:
            intake: says whether this rank may draw, and waits for rows.
            after_step: called after each opt step.
            settle: called in turns without an opt step.
            failed: whether a part of this rank cannot go on; other ranks then end too.
        """
        learner = self._learner
        assert learner is not None, "listen comes first"
        while learner.outcome is None:
            self._beat()
            if intake.may_sample() and learner.step():
                after_step()
            else:
                settle()  # This takes a moment; waiting for rows may take seconds.
                intake.wait()
            learner.tick()
