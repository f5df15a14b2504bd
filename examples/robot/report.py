"""Makes a table of the results of ``examples.robot.compare``.

    python -m examples.robot.report examples/robot/results.jsonl

A cell has the median over the seeds and, in brackets, the least and the greatest value.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TITLES: Final = {
    "all": "two robots, demonstrations, a person",
    "one-robot": "one robot",
    "four-robots": "four robots",
    "no-demonstrations": "without demonstrations",
    "no-interventions": "without the person",
    "neither": "without both",
}
HEAD: Final = "| run | seconds to success | success at the end | steps | opt steps | seeds |\n|---|--:|--:|--:|--:|--:|"


def spread(values: Sequence[float | None], form: str) -> str:
    """The median and the range of some values; None stands for a value that was never reached."""
    numbers = sorted(math.inf if value is None else value for value in values)
    low, middle, high = (
        "never" if value == math.inf else format(value, form)
        for value in (numbers[0], statistics.median_high(numbers), numbers[-1])
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def row_of(variant: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The line of the table for one variant."""
    cells = [
        TITLES[variant],
        spread([run["seconds_to_success"] for run in runs], ".0f"),
        spread([run["success_at_the_end"] for run in runs], ".2f"),
        spread([run["steps"] for run in runs], ",.0f"),
        spread([run["opt_steps"] for run in runs], ",.0f"),
        str(len(runs)),
    ]
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.jsonl, as compare writes it")
    runs = [json.loads(line) for line in parser.parse_args(argv).results.read_text().splitlines()]
    lines = [row_of(name, found) for name in TITLES if (found := [run for run in runs if run["variant"] == name])]
    print("\n".join([HEAD, *lines]))  # noqa: T201


if __name__ == "__main__":
    main()
