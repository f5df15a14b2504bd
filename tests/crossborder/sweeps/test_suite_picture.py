from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crossborder.curves.bands import Band
from crossborder.curves.picture import draw_band
from crossborder.sweeps import suite_picture
from crossborder.sweeps.suite_picture import draw_suite
from crossborder.sweeps.suite_results import SuiteRun, group_runs
from tests.crossborder.sweeps.suites import make_suite
from tests.crossborder.sweeps.test_suite_results import run


def test_the_picture_has_the_curves_of_each_task_and_the_profile_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, Band]] = []

    def draw(axes: Any, band: Band, label: str, colour: str | None = None) -> Any:
        drawn.append((f"{axes.get_title()}: {label}", band))
        return draw_band(axes, band, label, colour)

    monkeypatch.setattr(suite_picture, "draw_band", draw)
    suite = make_suite(tmp_path)
    late = SuiteRun(agent="bad", task="easy", curve=((20, 1.0), (30, 2.0)))
    diverged = [late, run("bad", "easy", has_diverged=True), run("bad", "easy", 1, has_diverged=True)]
    runs = [
        run("good", "easy", 0, 90),
        run("good", "hard", 0, 30),
        run("bad", "easy", 9),
        *diverged,
        run("peer", "easy", 5, runs=3),
    ]
    draw_suite(suite, group_runs(suite, runs), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert [name for name, _ in drawn] == ["easy: good", "easy: bad", "hard: good", "performance profile: good"]
    profile = drawn[-1][1]
    at = dict(zip(profile.x.round(2).tolist(), profile.middle.tolist(), strict=True))
    assert (at[0.0], at[0.5], at[0.51], at[1.0]) == (1.0, 1.0, 0.5, 0.5)
