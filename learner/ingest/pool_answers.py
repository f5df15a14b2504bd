"""The pool at the learner's door: which models it has, its models for actors, and the games that actors report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

from common.config.run_config import RunConfig
from common.data import MAX_EPISODES, ModelVersion
from common.errors import RefusedError
from common.shared.slots import Blob
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb
from learner.ingest.model_answers import ModelAnswer
from learner.models.model_pool import Pool

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
"""How often the models and weights of the pool are looked at."""
SAVE_SECONDS: Final = 5.0
"""How often games are written; those of a killed ingest process since then are lost."""


class PoolAnswers:
    """What actors hear of the pool, and what ingest hears from them.

    Args:
        pool: whose games only ingest writes.
        clock: seconds, monotonic.
    """

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._clock = pool, clock
        self._looked_at = self._saved_at = clock()
        self._weights = pool.weights()
        self.message = self._make_message()
        """The pool as actors are told; another object when it has changed."""

    @classmethod
    def of(cls, config: RunConfig, run_dir: Path) -> Self | None:
        """The pool of a run; None if nobody plays against earlier models."""
        pool = Pool.of(config, run_dir)
        return None if pool is None else cls(pool)

    def _make_message(self) -> pb.Pool:
        members = [
            pb.PoolMember(version=version_to_pb(version), weight=weight) for version, weight in self._weights.items()
        ]
        return pb.Pool(members=members)

    def tick(self) -> None:
        """Look at the models and save games, if it is time; called a few times a second."""
        now = self._clock()
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, weights = now, self._pool.weights()
            if weights != self._weights:
                self._weights = weights
                self.message = self._make_message()
        if now >= self._saved_at + SAVE_SECONDS:
            self._saved_at = now
            self.save()

    def save(self) -> None:
        """Write the games that have come; an error is logged, and the games are kept for the next time."""
        try:
            self._pool.save()
        except OSError as error:
            log.error("the results of the newest games cannot be written: %s", error)

    def answer(self, version: ModelVersion) -> ModelAnswer | None:
        """A model of the pool, whole; None if the pool does not have it any more."""
        file = self._pool.read(version)
        return None if file is None else ModelAnswer.of(Blob(version, memoryview(file), 0.0))

    def note(self, games: Iterable[pb.PoolGames], newest: ModelVersion) -> None:
        """Count the games of a report, by models up to the newest one, against models that the pool has.

        Others cannot have been played in this life of the run, and an actor must not fill the memory with them.
        """
        known = {version.opt_steps for version in self._weights}
        for kind in games:
            if kind.opponent in known and kind.player <= newest.opt_steps:
                self._pool.note(kind.player, kind.opponent, kind.result, kind.count)


def check_games(report: pb.Report) -> None:
    """Check the games of a report.

    Raises:
        RefusedError: a figure cannot be true.
    """
    games = report.pool_games
    if len(games) > MAX_EPISODES or any(abs(kind.result) > 1 or kind.count > MAX_EPISODES for kind in games):
        raise RefusedError(
            f"report: expected at most {MAX_EPISODES} kinds of games, each with a result from -1 to 1 and at most "
            f"{MAX_EPISODES} games, found {len(games)} kinds",
            "report",
        )
