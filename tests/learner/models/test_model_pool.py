from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.config.pool_config import POOL, PoolConfig
from common.data import ModelVersion
from common.errors import RunDirectoryError
from learner.models.model_pool import GAMES, MAX_PLAYERS, Games, Pool, prefer_losses, rate


def make_pool(directory: Path, **settings: object) -> Pool:
    return Pool(directory / "pool", PoolConfig.model_validate(settings), 10)


def offered(pool: Pool, *opt_steps: int) -> list[int]:
    for each in opt_steps:
        pool.offer(ModelVersion(1, each), lambda each=each: str(each).encode())  # type: ignore[misc]
    return [version.opt_steps for version in pool.versions()]


def test_the_first_model_joins_and_then_one_in_each_interval_until_the_oldest_go(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, size=3)
    assert offered(pool, 0, 5, 9) == [0]
    assert offered(pool, 10, 11, 25, 29) == [0, 10, 25]
    assert offered(pool, 30, 40) == [25, 30, 40]
    assert pool.read(ModelVersion(1, 30)) == b"30"
    assert pool.read(ModelVersion(1, 0)) is None
    assert pool.read(ModelVersion(2, 30)) is None


def test_another_process_sees_what_joins_and_goes(tmp_path: Path) -> None:
    pool, other = make_pool(tmp_path, size=2), make_pool(tmp_path, size=2)
    assert other.versions() == []
    for opt_steps in (0, 10, 20, 30):
        offered(pool, opt_steps)
        assert other.versions() == pool.versions()


def test_files_of_other_names_lie_beside_the_models_and_are_no_models(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    assert offered(pool, 0) == [0]
    others = ["a-b", "1-2-3", "1-", "²-3", "01-20", f"1-{2**64}", "1-20.part"]
    for name in others:
        (tmp_path / "pool" / f"{name}.safetensors").write_bytes(b"")
    assert [version.opt_steps for version in make_pool(tmp_path).versions()] == [0]
    pool.go_back_to(0)
    assert {path.stem for path in (tmp_path / "pool").glob("*.safetensors")} == {"1-0", *others}


def test_a_resumed_run_makes_the_later_models_again(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    offered(pool, 0, 10, 20)
    for player, opponent in ((3, 0), (15, 10), (21, 20)):
        pool.note(player, opponent, 1)
    pool.save()
    again = make_pool(tmp_path)
    again.go_back_to(15)
    assert offered(again) == [0, 10]
    assert [*make_pool(tmp_path).games.results] == [(10, 0), (20, 10)], "15 was about to become 20"
    again.offer(ModelVersion(2, 20), lambda: b"another")
    assert again.versions()[-1] == ModelVersion(2, 20)


def test_a_smaller_pool_than_before_keeps_the_newest(tmp_path: Path) -> None:
    offered(make_pool(tmp_path, size=4), 0, 10, 20, 30)
    assert offered(make_pool(tmp_path, size=2), 40) == [30, 40]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"draw": "uniform"}, {0: 1.0, 10: 1.0, 20: 1.0}),
        ({"draw": "uniform", "size": 2}, {10: 1.0, 20: 1.0}),
        ({"draw": "losses"}, {0: 1 / 36, 10: 25 / 36, 20: 1 / 4}),
    ],
    ids=str,
)
def test_how_likely_a_model_is_drawn(tmp_path: Path, settings: dict[str, object], expected: dict[int, float]) -> None:
    pool = make_pool(tmp_path, **settings)
    offered(pool, 0, 10, 20)
    pool.note(25, 0, 1, 4)
    pool.note(25, 10, -1, 4)
    found = {version.opt_steps: weight for version, weight in pool.weights().items()}
    assert found == pytest.approx(expected)


def test_the_trainer_reads_what_another_process_has_written(tmp_path: Path) -> None:
    trainer, ingest = make_pool(tmp_path), make_pool(tmp_path)
    offered(trainer, 0)
    assert trainer.record() == {}
    ingest.note(3, 0, 1, 3)
    ingest.note(3, 0, -1)
    ingest.save()
    assert trainer.record()["pool_win_rate"] == 0.75


@pytest.mark.parametrize("damage", [lambda file: file.write_text("{"), lambda file: (file.unlink(), file.mkdir())])
def test_records_keep_the_results_that_were_read_while_the_file_cannot_be_read(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    trainer, ingest = make_pool(tmp_path), make_pool(tmp_path)
    offered(trainer, 0)
    ingest.note(3, 0, 1)
    ingest.save()
    before = trainer.record()
    damage(tmp_path / POOL / GAMES)
    assert trainer.record() == before != {}
    assert "records have the results of games as they were" in caplog.text


# Games.


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
