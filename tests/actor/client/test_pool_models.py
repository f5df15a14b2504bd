from __future__ import annotations

import math
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from safetensors.numpy import save

from actor.client.assembly import ModelFile
from actor.client.pool_models import PoolModels
from actor.client.shared_models import find_shared_models
from common.config.pool_config import MAX_POOL
from common.data import Model, ModelVersion
from common.wire.tensor_file import read_tensors

ONE, TWO, THREE = (ModelVersion(1, opt_steps) for opt_steps in (1, 2, 3))


def file_of(version: ModelVersion) -> ModelFile:
    data = np.frombuffer(save({"w": np.full(3, version.opt_steps, np.float32)}), np.uint8).copy()
    return ModelFile(Model(version, read_tensors(data)), data)


def alone() -> PoolModels:
    return PoolModels(lambda version: None)


def test_what_is_announced_is_missing_until_it_has_come_the_newest_first() -> None:
    pool = alone()
    assert pool.missing() is None
    pool.announce({ONE: 1.0, TWO: 2.0})
    assert (pool.missing(), pool.has_any) == (TWO, False)
    pool.fetch(TWO, 1000, lambda: file_of(TWO))
    assert (pool.missing(), pool.has_any) == (ONE, True)
    assert pool.weights() == {TWO: 2.0}
    pool.fetch(ONE, 1000, lambda: file_of(ONE))
    assert pool.missing() is None
    assert pool.weights() == {ONE: 1.0, TWO: 2.0}
    assert pool.load(ONE).params["w"].tolist() == [1, 1, 1]


def test_a_model_that_is_gone_is_asked_for_again_only_if_it_is_announced_again() -> None:
    pool = alone()
    pool.announce({ONE: 1.0})
    pool.fetch(ONE, 1000, lambda: None)
    assert pool.missing() is None
    pool.announce({ONE: 1.0})
    assert pool.missing() == ONE


def test_another_model_than_the_one_asked_for_does_not_play() -> None:
    pool = alone()
    pool.announce({ONE: 1.0})
    pool.fetch(ONE, 1000, lambda: file_of(TWO))
    assert not pool.has_any


def test_models_that_left_the_pool_play_on_until_a_later_one_has_come() -> None:
    pool = alone()
    pool.announce({ONE: 1.0})
    pool.fetch(ONE, 1000, lambda: file_of(ONE))
    pool.announce({TWO: 1.0, THREE: 1.0})
    assert pool.weights() == {ONE: 1.0}
    pool.load(ONE)
    pool.fetch(THREE, 1000, lambda: file_of(THREE))
    assert pool.weights() == {THREE: 1.0}
    with pytest.raises(KeyError):
        pool.load(ONE)


def test_a_learner_cannot_announce_so_many_models_or_such_weights_that_the_actor_fails() -> None:
    pool = alone()
    pool.announce(
        {ModelVersion(1, i): weight for i, weight in enumerate([1.0] * MAX_POOL + [math.nan, -1.0, math.inf])}
    )
    for _ in range(MAX_POOL):
        version = pool.missing()
        assert version is not None
        pool.fetch(version, 1000, lambda version=version: file_of(version))  # type: ignore[misc]
    assert pool.missing() is None
    assert [*pool.weights().values()].count(0.0) == 3
    assert len(pool.weights()) == MAX_POOL


def test_the_workers_of_a_host_fetch_a_model_once_and_its_file_goes_when_it_left_the_pool(tmp_path: Path) -> None:
    workers = [
        PoolModels(lambda version: find_shared_models(tmp_path, "run", Event(), opponent=version)) for _ in range(3)
    ]
    fetched = list[ModelVersion]()

    def fetch(version: ModelVersion) -> ModelFile:
        fetched.append(version)
        return file_of(version)

    for announced in ({ONE: 1.0, TWO: 1.0}, {TWO: 1.0, THREE: 1.0}):
        for worker in workers:
            worker.announce(announced)
            while (version := worker.missing()) is not None:
                worker.fetch(version, 1000, lambda version=version: fetch(version))  # type: ignore[misc]
            assert worker.weights() == announced
    assert sorted(fetched) == [ONE, TWO, THREE]
    assert not [path.name for path in tmp_path.iterdir() if "-1-1" in path.name]
    assert find_shared_models(None, "run", Event(), opponent=ONE) is None
