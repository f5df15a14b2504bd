"""The pool of a run: earlier models on disk, which play as opponents, and how the games against them ended.

The directory ``pool/`` has a safetensors file for each model, as it travels to actors, and ``games.json``. The trainer
adds and removes models. Where there is an ingest process, it hears of games and writes ``games.json``, and the trainer
only reads it; in turns the trainer does both.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from common.config.pool_config import POOL, PoolConfig, has_pool
from common.config.run_config import RunConfig
from common.data import ModelVersion
from common.depth import parse_json
from common.errors import RunDirectoryError
from common.process.log import LogThrottle
from learner.shared.durable import replace_bytes, replace_text

log = logging.getLogger(__name__)
UNREAD_LOGGED_EVERY: Final = 60.0
GAMES: Final = "games.json"
"""The name of the file in it that has the results of games."""
_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})\.safetensors")
"""Of the file of a model: its version. Other files may lie beside it."""
SETTLED_NS: Final = 1_000_000_000
"""A directory that changed less long ago is listed at each look."""
MAX_PLAYERS: Final = 100
"""The newest versions whose games are kept."""
RECENT: Final = 2
"""A share of recent games is over the games of this many newest versions."""
_ITERATIONS: Final = 200
"""Of ``rate``."""


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


class Games:
    """The results of games by the learner's version and the opponent's, and the strength of each version by them.

    Versions are named by their opt steps. The policy that learns changes while it plays, so its games count for the
    version of the pool that it was about to become.

    Raises:
        RunDirectoryError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        """By versions of learner and opponent, the games that the learner won, drew and lost."""
        self.has_changed = False
        """Whether games came since ``save``."""
        try:
            for player, opponent, won, drawn, lost in parse_json(path.read_text()) if path.exists() else []:
                if any(type(number) is not int or number < 0 for number in (player, opponent, won, drawn, lost)):
                    raise ValueError(f"expected whole numbers from 0, found {[player, opponent, won, drawn, lost]}")
                self.results[player, opponent] = [won, drawn, lost]
        except (OSError, ValueError, TypeError) as error:
            message = f"{path}: expected the results of games, found {error!r}; remove the file"
            raise RunDirectoryError(message) from error

    def add(self, player: int, opponent: int, result: int, count: int = 1) -> None:
        """Count games with the same result, 1, 0 or -1 for the learner."""
        self.results[player, opponent][1 - result] += count
        self.has_changed = True

    def forget_after(self, opt_steps: int) -> None:
        """Forget the games of later versions."""
        for versions in [*self.results]:
            if max(versions) > opt_steps:
                del self.results[versions]

    def save(self) -> None:
        """Write the results of the newest versions.

        Raises:
            OSError: they cannot be written.
        """
        kept = {*self.players[-MAX_PLAYERS:]}
        for versions in [versions for versions in self.results if versions[0] not in kept]:
            del self.results[versions]
        replace_text(self._path, json.dumps([[*versions, *counts] for versions, counts in self.results.items()]) + "\n")
        self.has_changed = False

    @property
    def players(self) -> list[int]:
        """The versions that have played as the learner, ascending."""
        return sorted({player for player, _ in self.results})

    def recent(self) -> dict[int, tuple[float, int]]:
        """By opponent, the points of the newest versions against it, of which a draw is half of one, and the games."""
        newest, found = self.players[-RECENT:], dict[int, tuple[float, int]]()
        for (player, opponent), counts in self.results.items():
            if player in newest:
                points, games = found.get(opponent, (0.0, 0))
                found[opponent] = points + counts[0] + counts[1] / 2, games + sum(counts)
        return found

    def ratings(self) -> dict[int, float]:
        """By version, its strength in points of Elo above the oldest version; see ``rate``."""
        versions = sorted({version for pair in self.results for version in pair})
        if not versions:
            return {}
        at = {version: i for i, version in enumerate(versions)}
        points = np.zeros((len(versions), len(versions)))
        for (player, opponent), (won, drawn, lost) in self.results.items():
            if player != opponent:
                points[at[player], at[opponent]] += won + drawn / 2
                points[at[opponent], at[player]] += lost + drawn / 2
        rated = rate(points)
        return dict(zip(versions, (rated - rated[0]).tolist(), strict=True))

    def record(self) -> dict[str, float]:
        """The keys of records: the learner's share of recent points, and the rating of its newest version."""
        recent = self.recent().values()
        if not recent:
            return {}
        share = sum(points for points, _ in recent) / sum(games for _, games in recent)
        return {"pool_win_rate": share, "pool_rating": self.ratings()[self.players[-1]]}


def rate(points: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Elo ratings of players who do not change: the most likely ones of Bradley and Terry's model.

    They do not depend on the order of the games. Hunter, MM algorithms for generalized Bradley-Terry models, Annals of
    Statistics 32 (2004), equation 3. Each player has also drawn one game against a player of rating 0, so that one who
    won all games has a rating too.

    Args:
        points: ``[n, n]``, those of player i against player j; a win is 1, a draw 0.5.

    Returns:
        ``[n]``; a player with 400 more wins 10 times as often as the other one.
    """
    games, won = points + points.T, points.sum(axis=1) + 0.5
    strength = np.ones(len(points))
    for _ in range(_ITERATIONS):
        expected = (games / (strength[:, None] + strength)).sum(axis=1) + 1 / (strength + 1)
        strength = won / expected
    ratings: np.ndarray[tuple[int], np.dtype[np.float64]] = 400 * np.log10(strength)
    return ratings


def prefer_losses(recent: Mapping[int, tuple[float, int]], opponents: Sequence[int]) -> list[float]:
    """How much to prefer each opponent: (1 - x)², where x is the learner's share of points against it.

    Source: the hard weighting of prioritised fictitious self-play, Vinyals et al., Grandmaster level in StarCraft II
    using multi-agent reinforcement learning, Nature 575 (2019). Two more games count against each, with the share of
    all opponents: otherwise a learner that wins most games would mostly play those whom it has not met recently.
    """
    mean = (sum(points for points, _ in recent.values()) + 1) / (sum(games for _, games in recent.values()) + 2)
    found = (recent.get(opponent, (0.0, 0)) for opponent in opponents)
    return [float((1 - (points + 2 * mean) / (games + 2)) ** 2) for points, games in found]
