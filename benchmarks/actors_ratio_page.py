"""Tabulates and plots the results of ``benchmarks.actors_ratio``: docs/replay-ratio.md, docs/images/actors.png."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.actors_ratio import ACTORS, BY_ACTORS, BY_RATIO, Case, runs_of

PAGE: Final = Path("docs/replay-ratio.md")
PICTURE: Final = Path("docs/images/actors.png")


def table(cases: Sequence[Case], first: str) -> str:
    """Medians over the seeds; ``first`` names what differs: actors or ratio."""
    names = {"actors": "actors", "ratio": "replay ratio"}
    lines = [
        f"| {names[first]} | seconds | steps/s | opt steps/s | trainer waits | actors wait | policy lag | score |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case in cases:
        runs = runs_of(case)
        if runs:
            median = {
                key: statistics.median(run[key] for run in runs) for key in runs[0] if key not in ("way", "curve")
            }
            scores = statistics.median(statistics.mean(score for _, score in run["curve"]) for run in runs)
            cells = [
                f"{getattr(case, first)}",
                f"{median['seconds']:.1f}",
                f"{median['steps'] / median['seconds']:,.0f}",
                f"{median['opt_steps'] / median['seconds']:,.0f}",
                f"{median['trainer_waits']:.0%}",
                f"{median['actors_wait']:.0%}",
                f"{median['lag']:.0f}",
                f"{scores:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw() -> None:
    """Draw seconds and shares of waiting by actors, and scores by environment steps."""
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    seconds, waiting, scores = figure.subplots(1, 3)
    titles = {0: "a step takes no time", 5: "a step takes 5 ms"}
    for (step_ms, cases), colour in zip(BY_ACTORS.items(), ("tab:blue", "tab:orange"), strict=True):
        known = [case for case in cases if runs_of(case)]
        actors = [case.actors for case in known]

        def of(key: str, known: Sequence[Case] = known) -> list[float]:
            return [statistics.median(run[key] for run in runs_of(case)) for case in known]

        seconds.plot(actors, of("seconds"), "o-", color=colour, label=titles[step_ms])
        waiting.plot(actors, of("actors_wait"), "o-", color=colour, label=f"actors wait, {titles[step_ms]}")
        waiting.plot(actors, of("trainer_waits"), "x--", color=colour, label=f"trainer waits, {titles[step_ms]}")
    for case in BY_ACTORS[5]:
        runs = runs_of(case)
        if runs:
            curves = np.array([run["curve"] for run in runs])
            scores.plot(*np.median(curves, axis=0).T, label=f"{case.actors} actors")
    seconds.set(title="seconds for 20,000 steps", xlabel="actors", ylim=(0, None))
    waiting.set(title="share of the time that each side waits", xlabel="actors", ylim=(-0.02, 1.02))
    scores.set(title="score at equal steps (a step takes 5 ms)", xlabel="environment steps")
    for panel in (seconds, waiting):
        panel.set_xscale("log", base=2)
        panel.set_xticks(ACTORS, [str(actors) for actors in ACTORS])
    for panel in (seconds, waiting, scores):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    tables = {
        "slow": table(BY_ACTORS[5], "actors"),
        "fast": table(BY_ACTORS[0], "actors"),
        "ratios": table(BY_RATIO, "ratio"),
    }
    text = PAGE.read_text()
    for name, rows in tables.items():
        text = re.sub(rf"(<!-- {name} -->).*?(<!-- end -->)", rf"\g<1>\n{rows}\n\g<2>", text, flags=re.DOTALL)
    PAGE.write_text(text)
    draw()


if __name__ == "__main__":
    main()
