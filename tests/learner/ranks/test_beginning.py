from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from common.errors import RunDirectoryError
from learner.loop.run import open_rank
from learner.ranks.beginning import Beginning, warn_of_idle_shards
from learner.storage.rundir import RunDir
from learner.storage.training_state import Moment
from tests.conftest import MakeConfig

Pair = Sequence[dict[str, Any]]


def test_a_shard_takes_the_identity_of_the_run_and_goes_on_from_the_opt_step_of_rank_0(tmp_path: Path) -> None:
    leading, shard = RunDir(tmp_path / "run"), RunDir(tmp_path / "run" / "rank-1")
    beginning = Beginning.of(leading, Moment(7, 100, 2.5))
    beginning.adopt(shard, 1)
    assert shard.identity == leading.identity
    assert beginning.moment(Moment(3, 40, 1.0)) == Moment(7, 40, 2.5), "steps are the shard's own"
    for directory in (shard, leading):
        directory.close()


def test_the_shard_of_another_run_is_refused(tmp_path: Path) -> None:
    earlier = RunDir(tmp_path / "rank-1")
    earlier.begin()
    (tmp_path / "rank-1" / "checkpoints" / "0").mkdir(parents=True)
    earlier.close()
    leading, shard = RunDir(tmp_path / "run"), RunDir(tmp_path / "rank-1", resume=True)
    with pytest.raises(RunDirectoryError, match=f"expected the shard of run {leading.identity.run_id}.*--node-rank"):
        Beginning.of(leading, None).adopt(shard, 1)
    for directory in (shard, leading):
        directory.close()


def test_a_rank_that_has_lost_its_shard_does_not_begin_without_it(tmp_path: Path) -> None:
    begun = RunDir(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "0").mkdir(parents=True)
    begun.begin()
    begun.note_ranks(2)
    begun.close()
    leading = RunDir(tmp_path / "run", resume=True)
    beginning, shard, new = Beginning.of(leading, None), RunDir(tmp_path / "rank-1"), RunDir(tmp_path / "rank-2")
    with pytest.raises(RunDirectoryError, match=r"expected the shard of rank 1, .* has begun with 2 ranks, found none"):
        beginning.adopt(shard, 1)
    beginning.adopt(new, 2)
    assert new.identity == leading.identity, "a third rank is new"
    for directory in (new, shard, leading):
        directory.close()


def test_a_rank_begins_only_when_rank_0_has_begun(pair: Pair) -> None:
    assert [found["begins"] for found in pair] == [[[True], [2]]] * 2


def test_with_fewer_ranks_the_shards_that_nobody_draws_from_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in (1, 2, 10):
        (tmp_path / f"rank-{rank}").mkdir()
    with caplog.at_level(logging.WARNING):
        warn_of_idle_shards(tmp_path, 2)
    assert "the number of ranks is 2: nobody draws from the rows of the ranks [2, 10]" in caplog.text


def test_a_learner_alone_names_the_shards_of_earlier_ranks_too(
    tmp_path: Path, make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run" / "rank-1").mkdir(parents=True)
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        open_rank(make_config(), stack, None)
    assert "the number of ranks is 1: nobody draws from the rows of the ranks [1]" in caplog.text
