"""The learning curve of a run as a picture, from its ``metrics.csv``."""

from __future__ import annotations

import csv
from pathlib import Path

_NEEDED = ("seconds", "samples_total", "eval_reward", "eval_reward_min", "eval_reward_max")


def plot_learning_curve(metrics: Path, picture: Path, title: str, target: float | None) -> bool:
    """Plot the evaluation return over wall-clock seconds and over samples.

    Args:
        metrics: the run's ``metrics.csv``.
        picture: the PNG file to write.
        title: above the picture.
        target: a return at which a line is drawn; None draws none.

    Returns:
        Whether there is a picture; there is none of a run without evaluations.
    """
    import matplotlib  # It takes a quarter of a second, which a run need not pay when it begins.

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    with metrics.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["eval_reward"]]
    if not rows:
        return False
    column = {key: [float(row[key]) for row in rows] for key in _NEEDED}
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, key, label in zip(axes, ("seconds", "samples_total"), ("wall-clock (s)", "samples (items)"), strict=True):
        axis.fill_between(column[key], column["eval_reward_min"], column["eval_reward_max"], alpha=0.2, label="min-max")
        axis.plot(column[key], column["eval_reward"], marker=".", label="mean return")
        if target is not None:
            axis.axhline(target, color="grey", linestyle="--", linewidth=1, label=f"target {target:g}")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("evaluation return")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(title)
    figure.savefig(picture, dpi=120)
    return True
