from __future__ import annotations

from pathlib import Path

import pytest

from common.config.pool_config import PoolConfig
from common.data import MAX_EPISODES, ModelVersion
from common.errors import RefusedError
from common.wire.pb import crossborder_pb2 as pb
from learner.ingest.pool_answers import LOOK_SECONDS, SAVE_SECONDS, PoolAnswers, check_games
from learner.models.model_pool import GAMES, Games, Pool
from tests.clocks import Clock

FIRST, SECOND = ModelVersion(1, 0), ModelVersion(1, 10)


def test_actors_are_told_again_when_the_pool_has_changed_and_get_its_models(tmp_path: Path) -> None:
    pool, clock = Pool(tmp_path / "pool", PoolConfig(), 10), Clock()
    pool.offer(FIRST, lambda: b"first")
    answers = PoolAnswers(pool, clock)
    told = answers.message
    assert [member.version.opt_steps for member in told.members] == [0]
    clock.now += LOOK_SECONDS
    answers.tick()
    assert answers.message is told, "nothing has changed"
    pool.offer(SECOND, lambda: b"second")
    clock.now += LOOK_SECONDS
    answers.tick()
    assert [member.version.opt_steps for member in answers.message.members] == [0, 10]
    answer = answers.answer(SECOND)
    assert answer is not None
    assert b"".join(answer.chunks) == b"second"
    assert answers.answer(ModelVersion(1, 20)) is None


def test_games_are_counted_against_models_of_the_pool_and_saved(tmp_path: Path) -> None:
    pool, clock = Pool(tmp_path / "pool", PoolConfig(), 10), Clock()
    pool.offer(FIRST, lambda: b"first")
    answers = PoolAnswers(pool, clock)
    kinds = [
        pb.PoolGames(player=player, opponent=opponent, result=-1, count=2)
        for player, opponent in ((3, 0), (3, 7), (11, 0))
    ]
    answers.note(kinds, SECOND)
    clock.now += SAVE_SECONDS
    answers.tick()
    assert dict(Games(tmp_path / "pool" / GAMES).results) == {(10, 0): [0, 0, 2]}


def test_games_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool", PoolConfig(), 10)
    pool.offer(FIRST, lambda: b"first")
    answers = PoolAnswers(pool)
    answers.note([pb.PoolGames(player=3, opponent=0, result=1, count=1)], SECOND)
    (tmp_path / "pool").rename(tmp_path / "away")
    answers.save()
    (tmp_path / "away").rename(tmp_path / "pool")
    answers.save()
    assert dict(Games(tmp_path / "pool" / GAMES).results) == {(10, 0): [1, 0, 0]}


@pytest.mark.parametrize(
    "games",
    [
        [pb.PoolGames(result=2, count=1)],
        [pb.PoolGames(result=0, count=MAX_EPISODES + 1)],
        [pb.PoolGames(count=1)] * (MAX_EPISODES + 1),
    ],
    ids=["result", "count", "kinds"],
)
def test_games_that_cannot_be_true_are_refused(games: list[pb.PoolGames]) -> None:
    with pytest.raises(RefusedError, match="report: expected at most 4096 kinds of games"):
        check_games(pb.Report(pool_games=games))
