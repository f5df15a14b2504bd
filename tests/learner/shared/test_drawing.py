from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner.records.csv_recorder import CsvRecorder

DRAW = """
import sys
from pathlib import Path
import numpy as np
from learner.records.curve import plot_learning_curve
from crossborder.curves.picture import draw_picture
from crossborder.curves.bands import Band

here = Path(sys.argv[1])
assert plot_learning_curve(here / "m.csv", here / "curve.png", "a run", target=None)
line = np.arange(3.0)
band = Band(x=line, middle=line, low=line, high=line, runs=1)
draw_picture({"a": band}, here / "groups.png", title="t", x_label="x", y_label="y")
import matplotlib
print("matplotlib.pyplot" in sys.modules, matplotlib.rcParams._get_backend_or_none())
"""


def draw(directory: Path, *, backend: str | None) -> str:
    """Draw both pictures in a new process, whose environment names a backend; return what it prints."""
    recorder = CsvRecorder(directory / "m.csv")
    for step in range(1, 4):
        recorder.write(step, {"seconds": step / 2, "samples_total": step * 100.0, "eval_reward": step * 10.0})
    recorder.close()
    env = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    env |= {"MPLBACKEND": backend} if backend else {}
    done = subprocess.run(
        [sys.executable, "-c", DRAW, str(directory)],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert {path.name for path in directory.glob("*.png")} == {"curve.png", "groups.png"}
    return done.stdout.strip()


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "no_such_backend"])
def test_pictures_need_no_backend_of_the_environment(tmp_path: Path, backend: str) -> None:
    """A notebook names its own backend in MPLBACKEND, and processes that it starts inherit it."""
    assert draw(tmp_path, backend=backend) == "False None"


def test_the_backend_of_a_notebook_stays(tmp_path: Path) -> None:
    """A process that has chosen no backend still has none; one that has chosen TkAgg still has TkAgg."""
    assert draw(tmp_path, backend=None) == "False None"
    assert draw(tmp_path, backend="TkAgg") == "False TkAgg"
