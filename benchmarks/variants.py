"""Runs of one configuration in several variants over several seeds: what ``benchmarks.goals`` and others share.

Each run is added to ``benchmarks/results/NAME.json`` as soon as it ends; a run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kept import Run, curve_of, runs_of, spread, train_missing
from common.config.run_config import load_config
from crossborder.curves.bands import bring_together
from crossborder.curves.learning_curve import read_points
from crossborder.curves.picture import draw_picture
from learner.loop.in_turns import train_in_turns
from learner.loop.server import train_async


@dataclass(frozen=True)
class Variant:
    """A way to run a configuration."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """By path, the settings that replace those of the file."""
    actors: int = 0
    """Local actors over the network; 0 trains in turns."""
    config: Path | None = None
    """The file; None: that of the benchmark."""


def train(config: Path, variant: Variant, seed: int) -> dict[str, Any]:
    """One run: its curve over environment steps, opt steps, seconds, and the load of the machine at its end.

    Of an agent that records ``version_age``, its mean is there too.
    """
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "server.listen": "127.0.0.1:0",
            "metrics.listen": "null",
            "seed": seed,
            "run_dir": Path(directory) / "run",
            **variant.settings,
        }
        loaded = load_config(variant.config or config, [f"{key}={value}" for key, value in settings.items()])
        result = train_async(loaded, local_actors=variant.actors) if variant.actors else train_in_turns(loaded)
        points = read_points(result.run_dir, "env-steps")
        with (result.run_dir / "metrics.csv").open(newline="") as file:
            ages = [float(row["version_age"]) for row in csv.DictReader(file) if row.get("version_age")]
    return {
        "opt_steps": result.opt_steps,
        "seconds": round(result.seconds, 1),
        "load": round(os.getloadavg()[0], 1),
        "curve": [[int(x), round(y, 2)] for x, y in points.items()],
    } | ({"version_age": round(statistics.mean(ages), 1)} if ages else {})


def table(name: str) -> str:
    """For each variant the median over seeds of the last and of the best score, the range in brackets."""
    lines = [
        "| variant | last score | best score | environment steps | opt steps | seconds | seeds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for way, runs in _by_variant(name).items():
        cells = [
            spread([run["curve"][-1][1] for run in runs]),
            spread([max(score for _, score in run["curve"]) for run in runs]),
            f"{statistics.median(run['curve'][-1][0] for run in runs):,.0f}",
            f"{statistics.median(run['opt_steps'] for run in runs):,.0f}",
            spread([run["seconds"] for run in runs]),
            str(len(runs)),
        ]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(name: str, title: str) -> Path:
    """Draw the curves of all variants, as ``crossborder-plot`` does; returns the picture's path."""
    bands = {way: bring_together([curve_of(run) for run in runs]) for way, runs in _by_variant(name).items()}
    path = Path(f"docs/images/{name}.png")
    draw_picture(bands, path, title=title, x_label="environment steps", y_label="score of an evaluation")
    return path


def show_curves(name: str, title: str) -> str:
    """Draw the curves; return the table and the picture's path."""
    return f"{table(name)}\n{draw(name, title)}"


def main(
    name: str,
    title: str,
    config: Path,
    variants: Mapping[str, Variant],
    description: str,
    *,
    show: Callable[[str, str], str] = show_curves,
) -> None:
    """Run the variants that are asked for, then draw the picture and write the table; ``show`` does both."""
    parser = argparse.ArgumentParser(f"benchmarks.{name}", description=description)
    parser.add_argument("--variants", nargs="*", default=list(variants), choices=list(variants), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--config", type=Path, default=config)
    arguments = parser.parse_args()
    ways = {way: partial(train, arguments.config, variants[way]) for way in arguments.variants}
    train_missing(name, ways, range(arguments.seeds))
    sys.stdout.write(f"{show(name, title)}\n")


def _by_variant(name: str) -> dict[str, Sequence[Run]]:
    runs = runs_of(name)
    return {way: [run for run in runs if run["way"] == way] for way in dict.fromkeys(run["way"] for run in runs)}
