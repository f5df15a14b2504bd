"""Tables and a picture of a trial's results, from the lines of JSON that it wrote.

    python -m benchmarks.gpu_host.page trial.jsonl --picture docs/images/gpu_host.png

The tables go to standard output, in Markdown, one for each part of each host; the picture shows the score over minutes
of each task that was trained at full size.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

HOST: Final = ("card", "driver", "torch", "processor", "cores", "date", "device", "share")
LONG: Final = ("curve", "functions", "gpu", "failed", "run_dir")
"""Values that no cell of a table has room for."""
Result = dict[str, Any]


def read_results(path: Path) -> list[Result]:
    """The results of a trial, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def name_host(result: Result) -> str:
    """The host of a result, and its date."""
    share = "" if result["share"] == 1 else f", at 1/{result['share']} of the size"
    return (
        f"{result['card']}, driver {result['driver']}, torch {result['torch']}, {result['cores']} cores of "
        f"{result['processor']}, device {result['device']}{share}, {result['date']}"
    )


def tabulate(results: Sequence[Result]) -> str:
    """One table in Markdown: a row for each result, a column for each of their keys."""
    columns = list(dict.fromkeys(key for found in results for key in found if key not in (*HOST, *LONG, "part")))
    rows = [[show(found.get(column)) for column in columns] for found in results]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(value: object) -> str:
    """A value as a cell shows it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def write_tables(results: Sequence[Result]) -> str:
    """A table for each part of each host, and the lists that no table has room for."""
    texts = []
    for host, part in dict.fromkeys((name_host(found), found["part"]) for found in results):
        own = [found for found in results if (name_host(found), found["part"]) == (host, part)]
        rows = [found for found in own if "ended" not in found]
        texts += [f"### {part}\n\n{host}; {', '.join(found['ended'] for found in own if 'ended' in found)}"]
        texts += [tabulate(rows)] if rows else []
        texts += [f"- {key}: {json.dumps(found[key])}" for found in rows for key in LONG[1:] if found.get(key)]
    return "\n\n".join(texts) + "\n"


def draw_curves(results: Iterable[Result], path: Path) -> None:
    """One panel for each task that was trained at full size: its score over minutes."""
    trained = [found for found in results if found.get("curve") and found["share"] == 1]
    tasks = list(dict.fromkeys(found["task"] for found in trained))
    if not tasks:
        sys.exit("expected a task that was trained at full size and scored, found none: no picture was drawn")
    figure = Figure(figsize=(5.5 * len(tasks), 4.0), layout="constrained")
    for panel, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for found in trained:
            if found["task"] == task:
                seconds, _, scores = zip(*found["curve"], strict=True)
                panel.plot([at / 60 for at in seconds], scores, marker=".", label=f"{found['card']}, {found['date']}")
        panel.set(title=task, xlabel="minutes of training", ylabel="score of greedy episodes")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    results = read_results(given.results)
    sys.stdout.write(write_tables(results))
    if given.picture is not None:
        draw_curves(results, given.picture)


if __name__ == "__main__":
    main()
