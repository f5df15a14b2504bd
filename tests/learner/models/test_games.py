from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.errors import RunDirectoryError
from learner.models.games import MAX_PLAYERS, Games, prefer_losses, rate


def test_a_player_who_wins_ten_times_as_often_is_400_points_stronger() -> None:
    points = np.zeros((2, 2))
    points[0, 1], points[1, 0] = 10_000, 1_000
    assert rate(points)[0] - rate(points)[1] == pytest.approx(400, abs=1)


def test_ratings_compare_players_who_never_met() -> None:
    points = np.zeros((3, 3))
    points[0, 1], points[1, 0] = 10_000, 1_000
    points[1, 2], points[2, 1] = 10_000, 1_000
    ratings = rate(points)
    assert ratings[0] - ratings[2] == pytest.approx(800, rel=0.02)


def test_who_won_all_games_has_a_finite_rating() -> None:
    assert np.isfinite(rate(np.array([[0.0, 50.0], [0.0, 0.0]]))).all()


def test_games_are_there_again_after_they_were_saved(tmp_path: Path) -> None:
    games = Games(tmp_path / "games.json")
    assert games.record() == {}
    for result, count in ((1, 6), (0, 2), (-1, 2)):
        games.add(10, 0, result, count)
    games.save()
    again = Games(tmp_path / "games.json")
    assert dict(again.results) == {(10, 0): [6, 2, 2]}
    assert again.record()["pool_win_rate"] == 0.7
    assert again.record()["pool_rating"] > 0
    assert again.ratings()[0] == 0


def test_the_share_of_recent_points_is_that_of_the_two_newest_versions(tmp_path: Path) -> None:
    games = Games(tmp_path / "games.json")
    for player, result in ((10, -1), (20, 1), (30, 0)):
        games.add(player, 0, result, 4)
    assert games.recent() == {0: (6.0, 8)}


def test_only_games_of_the_newest_versions_are_kept(tmp_path: Path) -> None:
    games = Games(tmp_path / "games.json")
    for player in range(MAX_PLAYERS + 5):
        games.add(player, 0, 1)
    games.save()
    assert Games(tmp_path / "games.json").players == [*range(5, MAX_PLAYERS + 5)]


def test_later_games_are_forgotten(tmp_path: Path) -> None:
    games = Games(tmp_path / "games.json")
    for pair in ((10, 0), (20, 10), (20, 20)):
        games.add(*pair, 1)
    games.forget_after(10)
    assert [*games.results] == [(10, 0)]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[[1]]", '[["a", 0, 1, 2, 3]]', "[3]", "[[10, 0, 1e400, 0, 0]]", "[[10, 0, NaN, 0, 0]]"),
        *("[[10, 0, 1.5, 0, 0]]", "[[10, 0, -1, 0, 0]]", f"[[10, 0, {10**400}, 0, 0]]"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "games.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"games\.json: expected the results of games, found .*remove the file"):
        Games(tmp_path / "games.json")


def test_an_opponent_that_wins_is_preferred() -> None:
    recent = {1: (90.0, 98), 2: (8.0, 98)}  # Half of all points.
    assert prefer_losses(recent, [1, 2, 3]) == pytest.approx([0.09**2, 0.91**2, 0.5**2])


def test_a_learner_that_wins_most_games_prefers_those_who_beat_it_to_those_whom_it_has_not_met() -> None:
    recent = {1: (60.0, 100)} | dict.fromkeys(range(2, 10), (98.0, 100))
    beats, unknown = prefer_losses(recent, [1, 10])
    assert beats > 10 * unknown > 0
    assert prefer_losses({}, [1]) == [0.25]
