"""Runs that benchmarks keep in ``benchmarks/results/NAME.json``, and the tables of pages that are made of them.

A run is a mapping: ``way`` and ``seed`` name it, and the other keys are what was measured.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from crossborder.curves.learning_curve import Curve

RESULTS: Final = Path(__file__).parent / "results"
Run = dict[str, Any]


def runs_of(name: str, **values: object) -> list[Run]:
    """The runs that are kept and have these values, in the order of ways and seeds."""
    path = RESULTS / f"{name}.json"
    runs: list[Run] = json.loads(path.read_text()) if path.exists() else []
    return [run for run in runs if values.items() <= run.items()]


def keep(name: str, run: Run) -> None:
    """Write a run to its file; it replaces an older run of the same way and seed."""
    RESULTS.mkdir(exist_ok=True)
    others = [old for old in runs_of(name) if (old["way"], old["seed"]) != (run["way"], run["seed"])]
    lines = [json.dumps(each) for each in sorted([*others, run], key=lambda each: (each["way"], each["seed"]))]
    (RESULTS / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def train_missing(name: str, ways: Mapping[str, Callable[[int], Run]], seeds: Iterable[int]) -> None:
    """Train all ways with one seed after another, but for the runs that are kept already; keep and print each run."""
    for seed in seeds:
        for way, train in ways.items():
            if not runs_of(name, way=way, seed=seed):
                run = {"way": way, "seed": seed, **train(seed)}
                keep(name, run)
                sys.stdout.write(json.dumps(run) + "\n")
                sys.stdout.flush()


def curve_of(run: Run) -> Curve:
    """The scores of a run over its environment steps."""
    steps, scores = np.array(run["curve"], float).T
    return Curve(Path(f"{run['way']}-{run['seed']}"), steps, scores)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and the least and the greatest value in brackets."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page, each between the comments ``<!-- NAME -->`` and ``<!-- end -->``."""
    text = page.read_text()
    for name, rows in tables.items():
        text = re.sub(rf"(<!-- {name} -->).*?(<!-- end -->)", rf"\g<1>\n{rows}\n\g<2>", text, flags=re.DOTALL)
    page.write_text(text)
