from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError, RunDirectoryError
from crossborder.curves.crossborder_ratings import main
from learner.models.model_pool import Games


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "pool").mkdir()
    games = Games(tmp_path / "pool" / "games.json")
    for player, opponent, won, lost in ((10, 0, 8, 2), (20, 0, 9, 1), (20, 10, 6, 4)):
        games.add(player, opponent, 1, won)
        games.add(player, opponent, -1, lost)
    games.save()
    return tmp_path


def test_a_table_and_a_picture(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    heading, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading == ["version", "rating", "won", "drawn", "lost"]
    assert [line[0] for line in lines] == ["0", "10", "20"]
    ratings = [int(line[1]) for line in lines]
    assert ratings[0] == 0 < ratings[1] < ratings[2]
    assert lines[2][2:] == ["15", "0", "5"]
    assert (run / "ratings.png").read_bytes().startswith(b"\x89PNG")


def test_a_path_that_is_no_directory_is_named_with_what_was_expected(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run / "pol")]) == RunDirectoryError.exit_code
    told = f"{run / 'pol'}: expected a run's directory, found none (did you mean '{run / 'pool'}'?)"
    assert told in capsys.readouterr().err
    assert main([str(run / "pool" / "games.json")]) == RunDirectoryError.exit_code
    assert "games.json: expected a run's directory, found a file" in capsys.readouterr().err


def test_the_picture_has_the_format_of_its_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--output", str(run / "strength.svg")]) == 0
    assert "<svg" in (run / "strength.svg").read_text()
    assert main([str(run), "--output", str(run / "strength.txt")]) == ConfigError.exit_code
    assert "strength.txt: expected a picture's suffix" in capsys.readouterr().err


def test_a_run_without_games_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == ConfigError.exit_code
    assert "expected games against earlier models of the run, found none" in capsys.readouterr().err
