from __future__ import annotations

from pathlib import Path

import matplotlib.image

from learner.records.csv_recorder import CsvRecorder
from learner.records.curve import plot_learning_curve


def test_evaluations_become_a_picture(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "m.csv")
    for step in range(1, 5):
        score = {"eval_reward": step * 10.0, "eval_reward_min": 0.0, "eval_reward_max": step * 20.0}
        recorder.write(step, {"seconds": step / 2, "samples_total": step * 100.0, **score})
    recorder.write(5, {"loss": 1.0})
    recorder.close()
    assert plot_learning_curve(tmp_path / "m.csv", tmp_path / "curve.png", "a run", target=30.0)
    picture = matplotlib.image.imread(tmp_path / "curve.png")
    assert picture.shape[:2] == (480, 1200)
    assert picture.std() > 0.01, "something is drawn"


def test_a_run_without_evaluations_has_no_picture(tmp_path: Path) -> None:
    CsvRecorder(tmp_path / "m.csv").close()
    assert not plot_learning_curve(tmp_path / "m.csv", tmp_path / "curve.png", "a run", target=None)
    assert not (tmp_path / "curve.png").exists()


def test_an_evaluation_without_a_least_and_a_most_is_drawn_as_a_line_alone(tmp_path: Path) -> None:
    """The evaluator is the user's, and records what it likes."""
    recorder = CsvRecorder(tmp_path / "m.csv")
    for step in range(1, 5):
        recorder.write(step, {"seconds": step / 2, "samples_total": step * 100.0, "eval_reward": step * 10.0})
    recorder.close()
    assert plot_learning_curve(tmp_path / "m.csv", tmp_path / "curve.png", "a run", target=None)
    assert matplotlib.image.imread(tmp_path / "curve.png").std() > 0.01, "something is drawn"
