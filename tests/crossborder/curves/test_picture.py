from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError
from crossborder.curves.bands import Band
from crossborder.curves.picture import FORMATS, draw_picture

X = np.array([1.0, 2.0])
BANDS = {"one": Band(X, X, X, X, 1), "many": Band(X, X + 1, X, X + 2, 5)}
BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def draw(path: Path) -> bytes:
    draw_picture(BANDS, path, title="Title", x_label="steps", y_label="return")
    return path.read_bytes()


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_suffix_is_the_format(tmp_path: Path, suffix: str) -> None:
    assert draw(tmp_path / f"curves{suffix}").startswith(BEGINNINGS[suffix])


def test_the_same_curves_give_the_same_picture(tmp_path: Path) -> None:
    assert draw(tmp_path / "a.svg") == draw(tmp_path / "b.svg")


def test_titles_and_labels_are_plain_text(tmp_path: Path) -> None:
    """matplotlib takes text between two dollars for a formula, and refuses one that is wrong, such as ``$x^$``."""
    path = tmp_path / "curves.svg"
    draw_picture({"$a^$": BANDS["one"]}, path, title="$b^$", x_label="$c^$", y_label="$d^$")
    comments = set(re.findall("<!-- (.*) -->", path.read_text()))
    assert comments >= {"$a^$ (1)", "$b^$", "$c^$", "$d^$"}, "an SVG has each text beside its glyphs"


def test_each_group_is_in_the_legend_whatever_its_name(tmp_path: Path) -> None:
    """matplotlib leaves out of a legend those labels that begin with an underscore."""
    path = tmp_path / "curves.svg"
    draw_picture({"_a": BANDS["one"], "b": BANDS["many"]}, path, title="Title", x_label="steps", y_label="return")
    assert set(re.findall("<!-- (.*) -->", path.read_text())) >= {"_a (1)", "b (5)"}


def test_another_suffix_and_a_missing_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of \.png, \.svg, \.pdf, found '\.bmp'"):
        draw(tmp_path / "curves.bmp")
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        draw(tmp_path / "missing" / "curves.png")
