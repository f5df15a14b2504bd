from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import RunConfig
from common.errors import ConfigError
from common.settings import validate
from learner.ranks.place import Place
from learner.replay.limiter import RatioLimiter
from tests.conftest import counting_values, merged

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
FOURTH = Place(rank=3, local_rank=1, n_ranks=4, n_local=2)


def config_of(**changes: Any) -> RunConfig:
    return validate(RunConfig, merged(counting_values(Path("runs/one")), changes))


def test_without_torchrun_a_process_is_alone_and_its_configuration_is_as_it_was() -> None:
    config = config_of()
    for environment in ({}, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}):
        place = Place.find(environment)
        assert place.is_alone
        assert place.leads
        assert place.adapt(config) is config
        assert place.with_its_shares(config) is config


def test_torchrun_tells_a_process_which_rank_it_is() -> None:
    assert Place.find(TORCHRUN) == FOURTH
    restarts = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert Place.find(TORCHRUN | restarts).restarts_left == 2


@pytest.mark.parametrize("ranks", [TORCHRUN, {}])
def test_only_a_process_that_torchrun_has_started_knows_it(ranks: dict[str, str]) -> None:
    assert Place.find(ranks).torchrun is None, "started by hand"
    assert Place.find({**ranks, "TORCHELASTIC_RUN_ID": "none"}).torchrun == os.getppid()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "four"}, "RANK: expected a number, as torchrun sets it, found 'four'"),
        ({"RANK": "4"}, "torchrun's variables contradict each other"),
        ({"LOCAL_WORLD_SIZE": "1"}, "torchrun's variables contradict each other"),
    ],
)
def test_variables_that_torchrun_would_not_set_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Place.find(TORCHRUN | changes)


def test_a_rank_has_a_directory_ports_and_seeds_of_its_own_and_neither_scores_nor_records() -> None:
    metrics = {"listen": "0.0.0.0:9464"}
    recorder = {"target": "learner.records.tensorboard:TensorBoardRecorder"}
    config = config_of(server={"listen": "[::1]:50051"}, metrics=metrics, seed=5, recorders=[recorder])
    found = FOURTH.adapt(config)
    assert found.run_dir == Path("runs/one/rank-3")
    assert found.server.listen == "[::1]:50052"
    assert found.metrics.listen == "0.0.0.0:9466"
    assert found.seed == 3_000_005
    assert not found.trainer.eval_interval
    assert found.trainer.record_interval == config.trainer.record_interval, "its rates are shown too"
    assert not found.recorders


def test_rank_0_keeps_the_configuration_of_the_run() -> None:
    config = config_of(seed=5)
    assert Place(n_ranks=2, n_local=2).adapt(config) == config


def test_port_0_stays_and_a_port_that_serves_nothing_too() -> None:
    found = FOURTH.adapt(config_of(metrics={"listen": "127.0.0.1:0"}))
    assert found.server.listen == "127.0.0.1:0"
    assert found.metrics.listen == "127.0.0.1:0"
    assert FOURTH.adapt(config_of(metrics={"listen": None})).metrics.listen is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": {"params": {"batch_size": 30}}}, "agent.params.batch_size: expected a multiple of .* found 30"),
        (
            {"server": {"listen": "127.0.0.1:9463"}, "metrics": {"listen": "127.0.0.1:9464"}},
            "expected room for the ports of 2 ranks on this host, found 9463, 9464, 9464, 9466, 9465, 9467",
        ),
        (
            {"metrics": {"listen": "127.0.0.1:65533"}},
            "expected room for the ports of 2 ranks on this host, found 65533, 65535, 65534, 65536",
        ),
        (
            {"replay": {"prioritized": {}, "sources": {"demos": {"dataset": "demos", "share": 0.5}}}},
            "replay.prioritized: expected no replay.sources beside it with several ranks",
        ),
    ],
)
def test_a_setting_that_ranks_cannot_share_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FOURTH.adapt(config_of(**changes))


def test_the_ranks_wait_for_the_warm_up_together() -> None:
    config = config_of(trainer={"warmup_period": 10}, replay={"samples_per_insert": 2.0, "error_buffer": 8.0})
    limiter = RatioLimiter.of(FOURTH.with_its_shares(config))
    assert (limiter.warmup, limiter.error_buffer) == (3, 2.0)
