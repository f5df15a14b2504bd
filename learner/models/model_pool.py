"""The pool of a run: earlier models on disk, which play as opponents, and how the games against them ended.

The directory ``pool/`` has a safetensors file for each model, as it travels to actors, and ``games.json``. The trainer
adds and removes models. Where there is an ingest process, it hears of games and writes ``games.json``, and the trainer
only reads it; in turns the trainer does both.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from common.config.pool_config import POOL, PoolConfig, has_pool
from common.config.run_config import RunConfig
from common.data import ModelVersion
from common.errors import RunDirectoryError
from common.process.log import LogThrottle
from learner.models.games import Games, prefer_losses
from learner.shared.durable import replace_bytes

log = logging.getLogger(__name__)
UNREAD_LOGGED_EVERY: Final = 60.0
GAMES: Final = "games.json"
"""The name of the file in it that has the results of games."""
_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})\.safetensors")
"""Of the file of a model: its version. Other files may lie beside it."""
SETTLED_NS: Final = 1_000_000_000
"""A directory that changed less long ago is listed at each look."""


class Pool:
    """The models of a pool, and the games against them.

    Args:
        directory: of the pool; it need not exist.
        config: says which models join, and how likely each is drawn.
        interval: opt steps between two models that join.

    Raises:
        RunDirectoryError: ``games.json`` is damaged.
    """

    def __init__(self, directory: Path, config: PoolConfig, interval: int) -> None:
        self._directory, self._config, self._interval = directory, config, interval
        self.games = Games(directory / GAMES)
        self._versions: list[ModelVersion] = []
        self._listed_at: int | None = None
        self._read_at: int | None = None
        self._unread_log = LogThrottle(UNREAD_LOGGED_EVERY)

    @classmethod
    def of(cls, config: RunConfig, run_dir: Path) -> Pool | None:
        """The pool of a run; None if nobody plays against earlier models."""
        if not has_pool(config.env.params):
            return None
        interval = (config.trainer.sync_interval or 1) * config.pool.every
        return cls(run_dir / POOL, config.pool, interval)

    def versions(self) -> list[ModelVersion]:
        """The models, the oldest first."""
        try:
            changed_at = self._directory.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        # A change at the same tick of the file system's clock as the last look would not be seen.
        if changed_at != self._listed_at or time.time_ns() - changed_at < SETTLED_NS:
            names = [_NAME.fullmatch(path.name) for path in self._directory.glob("*.safetensors")]
            found = [ModelVersion(int(name[1]), int(name[2])) for name in names if name is not None]
            self._versions, self._listed_at = sorted(found, key=lambda version: version.opt_steps), changed_at
        return self._versions

    def _path(self, version: ModelVersion) -> Path:
        return self._directory / f"{version.incarnation}-{version.opt_steps}.safetensors"

    def offer(self, version: ModelVersion, make_file: Callable[[], bytes]) -> None:
        """Have a published model join if it is time, in the place of the oldest.

        Raises:
            OSError: it cannot be written.
        """
        known = self.versions()
        if known and version.opt_steps // self._interval <= known[-1].opt_steps // self._interval:
            return
        self._directory.mkdir(exist_ok=True)
        replace_bytes(self._path(version), make_file())
        for old in known[: max(0, len(known) + 1 - self._config.size)]:
            self._path(old).unlink()

    def read(self, version: ModelVersion) -> bytes | None:
        """The file of a model; None if the pool does not have it any more."""
        with suppress(FileNotFoundError):
            return self._path(version).read_bytes()
        return None

    def go_back_to(self, opt_steps: int) -> None:
        """Remove the models and games after the opt steps from which a run is resumed: it makes others."""
        for version in self.versions():
            if version.opt_steps > opt_steps:
                self._path(version).unlink()
        self.games.forget_after(self._becomes(opt_steps))
        if self._directory.exists():
            self.games.save()

    def note(self, player: int, opponent: int, result: int, count: int = 1) -> None:
        """Count games of the learner's model ``player`` against the model ``opponent``, both by their opt steps."""
        self.games.add(self._becomes(player), opponent, result, count)

    def _becomes(self, opt_steps: int) -> int:
        """The version of the pool that a model is, or that it is about to become."""
        return -(-opt_steps // self._interval) * self._interval

    def weights(self) -> dict[ModelVersion, float]:
        """How likely each model is drawn; the weights need not add up to 1."""
        versions = self.versions()
        if self._config.draw == "losses":
            opponents = [version.opt_steps for version in versions]
            return dict(zip(versions, prefer_losses(self.games.recent(), opponents), strict=True))
        return dict.fromkeys(versions, 1.0)

    def save(self) -> None:
        """Write ``games.json`` if games have come.

        Raises:
            OSError: it cannot be written.
        """
        if self.games.has_changed:
            self.games.save()

    def record(self) -> dict[str, float]:
        """The keys of records, from ``games.json`` if another process writes it and it can be read."""
        if not self.games.has_changed:
            try:
                written_at = (self._directory / GAMES).stat().st_mtime_ns
                if written_at != self._read_at:
                    self.games, self._read_at = Games(self._directory / GAMES), written_at
            except FileNotFoundError:
                pass  # No game has ended yet.
            except (OSError, RunDirectoryError) as error:
                if (missed := self._unread_log.due()) is not None:
                    log.warning("%s (%d more); records have the results of games as they were", error, missed)
        return self.games.record()
