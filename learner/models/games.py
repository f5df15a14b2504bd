"""How games between versions of a run's policy ended, and the strength of each version by these games.

Versions are named by their opt steps. The policy that learns changes while it plays, so its games count for the version
of the pool that it was about to become.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from common.depth import parse_json
from common.errors import RunDirectoryError
from learner.shared.durable import replace_text

MAX_PLAYERS: Final = 100
"""The newest versions whose games are kept."""
RECENT: Final = 2
"""A share of recent games is over the games of this many newest versions."""
_ITERATIONS: Final = 200


class Games:
    """The results of games by the learner's version and the opponent's; see ``learner.models.model_pool``.

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
