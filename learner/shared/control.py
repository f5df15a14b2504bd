"""The control block: single words of memory that the trainer and its ingest process write for each other.

Nothing is pickled or queued between the processes, and no lock is needed (see ``common.shared.mapped``). The block lies
in a file of the run directory, so it outlives all processes.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from common.shared.mapped import Word, Words, map_file


class RatioSlot(Words):
    """A replay ratio, and the counts at which it took effect; see ``learner.replay.ratio``."""

    N_WORDS = 3
    samples_per_insert = Word(0, float)
    """0: both sides run free."""
    inserted = Word(1)
    sampled = Word(2)


class ControlBlock(Words):
    """All words that trainer and ingest write for each other."""

    N_WORDS = 40
    # Written by the trainer.
    stopping = Word(0)
    """1: training is over; ingest announces that to the actors and ends. 2: the run has reached its end, too."""
    sampled = Word(1)
    """Steps drawn from the replay."""
    trainer_waits_for = Word(2)
    """The number of stored steps for which the trainer waits, one more than it has seen; 0: it does not wait. While it
    waits, ingest rings the trainer's bell when it has committed rows."""
    incarnation = Word(3)
    """That of the run's present start: 1 at its first start, and a higher number at each later start."""
    divergences = Word(5)
    """Times that training ended because a loss or a score was not finite, in all lives of the run."""
    trainer_wait_seconds = Word(4, float)
    """Seconds that the trainer has waited for rows."""
    trainer_beats = Word(6)
    """Signs of life of the training loop so far: opt steps, steps of evaluations, and waits."""
    # Written by ingest.
    ingest_beats = Word(7)
    """Signs of life of ingest so far, several a second."""
    release_at = Word(8)
    """The trainer rings ingest's bell when ``sampled`` reaches this; 0: ingest does not wait."""
    batches = Word(9)
    """Batches stored; batches that came in one message count as one."""
    payload_bytes = Word(10)
    """Bytes of payload stored."""
    duplicates = Word(11)
    """Batches acknowledged again and not stored."""
    model_bytes_sent = Word(12)
    """Bytes of models sent."""
    fetches = Word(13)
    """Models sent."""
    not_modified = Word(14)
    """Model requests answered with not modified."""
    joins = Word(15)
    """Successful joins."""
    actors_online = Word(16)
    """Actors with an open stream."""
    env_steps = Word(17)
    """Environment steps that all actors have reported."""
    episodes = Word(18)
    """Episodes that all actors have reported."""
    return_mean = Word(19, float)
    """Mean return of the last 100 episodes; 0 before the first."""
    policy_lag = Word(20, float)
    """Exponential mean of opt steps between the newest model and the model that chose an action."""
    actor_hold_seconds = Word(21, float)
    """Seconds for which acknowledgements have been held back to keep the replay ratio or equal shares."""
    length_mean = Word(22, float)
    """Mean length of the same episodes as ``return_mean``."""
    oldest_item_at = Word(23, float)
    """The time at which the oldest item that can be drawn came, on the host's monotonic clock."""
    # Written by the trainer before ingest starts, then by ingest.
    ratio_changes = Word(24)
    """Times the replay ratio has been set; the last one lies in ``ratio_slots[ratio_changes % 2]``."""
    ratio_configured = Word(25, float)
    """The replay ratio in the configuration when the trainer began; 0: both sides run free."""
    _RATIO_SLOTS = 26
    # Written by the trainer.
    opt_steps = Word(32)
    """Opt steps that the trainer has taken."""
    batch_steps = Word(38)
    """Steps of a batch of which actors in step with the trainer give equal shares; 0: they need not."""
    # Written by ingest.
    success_mean = Word(33, float)
    """Share of successes among the last 100 episodes that say whether they succeeded."""
    success_episodes = Word(34)
    """Episodes that said whether they succeeded."""
    scores = Word(35)
    """Scores that evaluating actors have given; the newest lies in ``score.json``."""
    actors_present = Word(36)
    """Actors that hold an id: those online, and those that build their parts or are away for a moment."""
    acting_incarnation = Word(37)
    """The highest incarnation in the versions of models that have acted, in all lives of the run."""

    def __init__(self, buffer: mmap.mmap) -> None:
        super().__init__(buffer)
        starts = [8 * (self._RATIO_SLOTS + i * RatioSlot.N_WORDS) for i in range(2)]
        self.ratio_slots = [RatioSlot(buffer, start) for start in starts]

    def episode_record(self) -> dict[str, float]:
        """Means of the actors' last 100 episodes, by the keys of records; only of figures that episodes reported."""
        returns = {"train_return": self.return_mean, "train_length": self.length_mean} if self.episodes else {}
        return returns | ({"train_success": self.success_mean} if self.success_episodes else {})

    def show_life(self) -> None:
        """Let ingest see that training goes on; called for each opt step, wait and step of an evaluation."""
        self.trainer_beats += 1

    def start(self, incarnation: int, sampled: int) -> None:
        """Set the words of this life of the run to their first values; an earlier trainer and its ingest left others.

        Ingest does not run yet, so the trainer sets some of ingest's words too.
        """
        self.incarnation, self.sampled = incarnation, sampled
        self.stopping = self.trainer_waits_for = self.release_at = self.actors_online = self.actors_present = (
            self.trainer_beats
        ) = 0

    @classmethod
    def open(cls, directory: Path, *, create: bool = False, writable: bool = True) -> ControlBlock:
        """The control block of a run.

        Args:
            directory: of the run's shared files.
            create: make a new file; otherwise open an existing one.
            writable: otherwise it is opened for reading only.

        Raises:
            RunDirectoryError: the file cannot be made or opened.
        """
        mapped = map_file(directory / "control", 8 * cls.N_WORDS, create=create, writable=writable)
        return cls(mapped)
