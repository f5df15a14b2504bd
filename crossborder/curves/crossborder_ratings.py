"""``crossborder-ratings``: how strong each version of a run's policy is, by its games against the run's pool."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from common.config.pool_config import POOL
from common.errors import ConfigError
from common.process.command import Parser, as_output, as_path, command_of
from common.process.standard_streams import answers
from crossborder.curves.picture import plain_style, save_figure
from learner.models.model_pool import GAMES, Games
from learner.shared.drawing import Figure
from learner.storage.rundir import require_run

EXAMPLES = """\
  crossborder-ratings runs/connect_four-20261121-085026-3f2a                       a table, and RUN/ratings.png
  crossborder-ratings runs/connect_four-20261121-085026-3f2a --output ratings.svg
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-ratings", __doc__, EXAMPLES)
    made.add_value("run", "RUN", "the run's directory", as_path)
    made.add_value("--output", "FILE", "the picture (default: RUN/ratings.png)", as_output)
    return made


def _rate(arguments: argparse.Namespace) -> None:
    require_run(arguments.run)
    games = Games(arguments.run / POOL / GAMES)
    if not games.results:
        raise ConfigError(
            f"{arguments.run}: expected games against earlier models of the run, found none: env.params.players names "
            f"no {POOL}, or no game has ended yet"
        )
    answers().write(write_table(games))
    draw(games, arguments.output or arguments.run / "ratings.png")


def write_table(games: Games) -> str:
    """A line for each version: its rating, and how its games as the learner ended."""
    ratings, lines = games.ratings(), [f"{'version':>10} {'rating':>7} {'won':>6} {'drawn':>6} {'lost':>6}\n"]
    for version in sorted(ratings):
        counts = np.sum([c for (player, _), c in games.results.items() if player == version] or [[0, 0, 0]], axis=0)
        won, drawn, lost = counts.tolist()
        lines.append(f"{version:>10} {ratings[version]:>7.0f} {won:>6} {drawn:>6} {lost:>6}\n")
    return "".join(lines)


def draw(games: Games, path: Path) -> None:
    """Draw the rating of each version, and its share of points against each other version.

    Raises:
        ConfigError: the file cannot be written, or has no picture's suffix.
    """
    ratings = games.ratings()
    players, opponents = games.players, sorted({opponent for _, opponent in games.results})
    shares = np.full((len(opponents), len(players)), np.nan)
    for (player, opponent), (won, drawn, lost) in games.results.items():
        shares[opponents.index(opponent), players.index(player)] = (won + drawn / 2) / (won + drawn + lost)
    with plain_style():
        figure = Figure(figsize=(7, 8), layout="constrained")
        above, below = figure.subplots(2, height_ratios=(1, 2))
        above.plot(sorted(ratings), [ratings[version] for version in sorted(ratings)], marker=".")
        above.set(title="Strength by opt steps", ylabel="points of Elo above the first")
        above.grid(alpha=0.3)
        image = below.imshow(shares, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto", origin="lower")
        for axis, versions in ((below.xaxis, players), (below.yaxis, opponents)):
            shown = range(0, len(versions), 1 + len(versions) // 12)
            axis.set_ticks([*shown], [str(versions[i]) for i in shown])
        below.set(xlabel="version of the learner", ylabel="version of the opponent")
        figure.colorbar(image, ax=below, label="the learner's share of points")
        save_figure(figure, path)


main = command_of(parser, _rate)
