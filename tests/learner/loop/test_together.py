"""How the numbers of actors reach ingest; the loop of several ranks is tested in ``tests/e2e/test_ranks.py``."""

from __future__ import annotations

from pathlib import Path

from learner.loop.together import SHARE_SECONDS, ActorCounts
from learner.shared.rank_table import RankTable


def test_ingest_reads_the_numbers_of_actors_about_once_a_second(tmp_path: Path) -> None:
    now = [0.0]
    counts = ActorCounts(RankTable.create(tmp_path, 0, ["a:1", "b:1"]), lambda: now[0])
    seen = RankTable.open(tmp_path).actors
    counts.share([])
    assert seen.tolist() == [0, 0], "the ranks have exchanged nothing yet"
    counts.share([1.0, 2.0])
    counts.share([3.0, 4.0])
    assert seen.tolist() == [1, 2]
    now[0] += SHARE_SECONDS
    counts.share([3.0, 4.0])
    assert seen.tolist() == [3, 4]
