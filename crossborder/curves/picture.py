"""Curves of groups of runs as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.errors import ConfigError
from crossborder.curves.bands import Band
from learner.shared.drawing import Figure, mpl
from learner.shared.durable import replace_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

FORMATS: Final = (".png", ".svg", ".pdf")


def draw_band(axes: Axes, band: Band, label: str, colour: str | None = None) -> Line2D:
    """Draw a group: its interquartile mean as a line, which is returned, the interval as a shade around it."""
    (line,) = axes.plot(
        band.x, band.middle, label=f"{label} ({band.runs})", color=colour, marker="." if len(band.x) <= 25 else ""
    )
    if band.runs > 1:
        axes.fill_between(band.x, band.low, band.high, alpha=0.18, color=line.get_color(), linewidth=0)
    return line


def draw_picture(bands: Mapping[str, Band], path: Path, *, title: str, x_label: str, y_label: str) -> None:
    """Draw all groups into one picture.

    Raises:
        ConfigError: the format is unknown, or the file cannot be written.
    """
    with plain_style():
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        lines = [draw_band(axes, band, name) for name, band in bands.items()]
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.3)
        # Without its lines, the legend would leave out labels that begin with an underscore.
        figure.legend(handles=lines, loc="outside lower center", ncols=min(3, len(bands)))
        save_figure(figure, path)


def plain_style() -> AbstractContextManager[None]:
    """A context in which text is drawn as it is given, without formulas between dollars."""
    return mpl.rc_context({"text.parse_math": False, "svg.hashsalt": "crossborder"})


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure that was made in ``plain_style``; the same curves give the same file.

    Raises:
        ConfigError: the format is unknown, or the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: expected a picture's suffix, one of {', '.join(FORMATS)}, found '{path.suffix}'")
    picture, metadata = BytesIO(), {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(picture, format=path.suffix[1:], dpi=120, metadata=metadata)
    try:
        replace_bytes(path, picture.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
