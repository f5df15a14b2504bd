"""The learning curve of a run as a picture, from its ``metrics.csv``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from learner.records.csv_recorder import Row, read_numbers, read_rows

_SCORE: Final = "eval_reward"
_LEAST: Final = "eval_reward_min"
_MOST: Final = "eval_reward_max"
_MARGINS: Final = {"left": 0.1, "right": 0.98, "bottom": 0.23, "top": 0.9, "wspace": 0.05}


def plot_learning_curve(metrics: Path, picture: Path, title: str, target: float | None) -> bool:
    """Plot the evaluation return over wall-clock seconds and steps; return False if no evaluation gave a picture.

    The picture also shows the lowest and the highest return of each evaluation that has recorded both.

    Args:
        metrics: the run's ``metrics.csv``.
        picture: the PNG file to write.
        title: above the picture.
        target: a return at which a line is drawn; None draws none.

    Returns:
        Whether there is a picture; there is none of a run without evaluations.

    Raises:
        OSError: a file cannot be read or written.
        ConfigError: ``metrics`` is no CSV file, or has a value that is no number.
    """
    # The import of matplotlib takes a quarter of a second, so a run does not import it when it begins.
    from learner.shared.drawing import Figure

    scored = [row for row in read_rows(metrics)[1] if row.get(_SCORE)]
    if not scored:
        return False
    bounded = [row for row in scored if row.get(_LEAST) and row.get(_MOST)]

    def numbers(rows: list[Row], column: str) -> list[float]:
        return read_numbers(metrics, rows, column)

    # The same scores twice: how long they took, and how many steps.
    figure = Figure(figsize=(10, 4))  # matplotlib's own layouts would draw it twice.
    axes = figure.subplots(1, 2, sharey=True, gridspec_kw=_MARGINS)
    for axis, key, label in zip(axes, ("seconds", "samples_total"), ("wall-clock (s)", "steps"), strict=True):
        if bounded:
            least, most = numbers(bounded, _LEAST), numbers(bounded, _MOST)
            axis.fill_between(numbers(bounded, key), least, most, alpha=0.2, label="min-max")
        axis.plot(numbers(scored, key), numbers(scored, _SCORE), marker=".", label="mean return")
        if target is not None:
            axis.axhline(target, color="grey", linestyle="--", linewidth=1, label=f"target {target:g}")
        axis.set_xlabel(label)
        axis.locator_params("x", nbins=6)  # More numbers of six digits would run into each other.
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("evaluation return")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3)
    figure.suptitle(title)
    figure.savefig(picture, dpi=120)
    return True
