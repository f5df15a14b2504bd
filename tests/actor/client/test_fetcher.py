from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
import torch
from safetensors.numpy import save

from actor.client.assembly import MAX_MODEL_BYTES, ModelFile
from actor.client.fetcher import ModelFetcher, PoolModels
from actor.client.shared_models import NeighbourModels
from common.config.pool_config import MAX_POOL
from common.data import NO_MODEL, Model, ModelVersion
from common.errors import CheckpointError, LearnerUnreachableError
from common.wire.channel import get_model
from common.wire.compression import make_delta
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CLIENT_OPTIONS, SLOWEST_LINK, version_to_pb
from common.wire.tensor_file import read_tensors
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.actor.client.test_assembly import NEXT, NEXT_DATA, PARAMS, VERSION, assert_is_the_model, chunks, delta_chunks
from tests.conftest import PATIENCE, wait_for

ONE, TWO, THREE = (ModelVersion(1, opt_steps) for opt_steps in (1, 2, 3))
Fetch = Callable[[ScriptedLearner], ModelFetcher]


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
    pool, impossible = alone(), [math.nan, -1.0, math.inf, 1e308, 1e308]
    pool.announce({ModelVersion(1, i): weight for i, weight in enumerate([1.0] * MAX_POOL + impossible)})
    for _ in range(MAX_POOL):
        version = pool.missing()
        assert version is not None
        pool.fetch(version, 1000, lambda version=version: file_of(version))  # type: ignore[misc]
    assert pool.missing() is None
    assert [*pool.weights().values()].count(0.0) == len(impossible)
    assert len(pool.weights()) == MAX_POOL


def test_the_workers_of_a_host_fetch_a_model_once_and_its_file_goes_when_it_left_the_pool(tmp_path: Path) -> None:
    workers = [
        PoolModels(lambda version: NeighbourModels(tmp_path, "run", threading.Event(), opponent=version))
        for _ in range(3)
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


@pytest.fixture
def fetch(serve: Serve) -> Iterator[Fetch]:
    """Makes a fetcher of a scripted learner; it is ended at the end."""
    made: list[tuple[ModelFetcher, grpc.Channel, threading.Event]] = []

    def _fetch(learner: ScriptedLearner) -> ModelFetcher:
        channel = grpc.insecure_channel(f"127.0.0.1:{serve(learner)}", options=CLIENT_OPTIONS)
        stopped = threading.Event()
        made.append((ModelFetcher(get_model(channel), stopped), channel, stopped))
        return made[-1][0]

    yield _fetch
    for fetcher, channel, stopped in made:
        stopped.set()
        fetcher.end(PATIENCE)
        channel.close()


def scripted(*answers: list[pb.GetModelResponse]) -> ScriptedLearner:
    return ScriptedLearner(pb.JoinResponse(), list(answers))


def holds(fetcher: ModelFetcher, version: ModelVersion) -> bool:
    model = fetcher.newer_than(NO_MODEL)
    return model is not None and model.version == version


def test_an_announced_model_is_fetched(fetch: Fetch) -> None:
    fetcher = fetch(scripted(chunks()))
    fetcher.announce(VERSION)
    assert_is_the_model(fetcher.first(PATIENCE))


def test_a_model_is_given_only_to_those_who_have_an_older_one(fetch: Fetch) -> None:
    fetcher = fetch(scripted(chunks()))
    assert fetcher.newer_than(NO_MODEL) is None
    fetcher.announce(VERSION)
    fetcher.first(PATIENCE)
    assert_is_the_model(fetcher.newer_than(ModelVersion(2, 29)))
    assert_is_the_model(fetcher.newer_than(ModelVersion(1, 900)))
    assert fetcher.newer_than(VERSION) is None
    assert fetcher.newer_than(ModelVersion(3, 0)) is None


def test_a_newer_announcement_fetches_again_and_names_the_model_that_the_actor_has(fetch: Fetch) -> None:
    newer = ModelVersion(2, 40)
    learner = scripted(chunks(), chunks(version=newer))
    fetcher = fetch(learner)
    fetcher.announce(VERSION)
    fetcher.first(PATIENCE)
    fetcher.announce(ModelVersion(1, 999))
    fetcher.announce(newer)
    wait_for(lambda: fetcher.newer_than(VERSION), "the newer model")
    assert_is_the_model(fetcher.newer_than(VERSION), newer)
    assert learner.had == [version_to_pb(NO_MODEL), version_to_pb(VERSION)]


def test_a_damaged_transfer_is_tried_again(fetch: Fetch, caplog: pytest.LogCaptureFixture) -> None:
    fetcher = fetch(scripted(chunks()[:-1], chunks()[1:], chunks()))
    fetcher.announce(VERSION)
    assert_is_the_model(fetcher.first(PATIENCE))
    assert caplog.text.count("a model could not be fetched and is tried again") == 2


@pytest.mark.parametrize(("shape", "found"), [((3, 3), r"w: expected \[3, 3\], found \[2, 3\]"), (None, "found none")])
def test_a_model_that_does_not_fit_the_agent_of_the_actor_ends_it_with_the_tensor(
    fetch: Fetch, shape: tuple[int, int] | None, found: str
) -> None:
    fetcher = fetch(scripted(chunks()))
    own = {name: torch.zeros(values.shape) for name, values in PARAMS.items()}
    fetcher.allow({**own, **({"w": torch.zeros(shape)} if shape else {"more": torch.zeros(1)})})
    fetcher.announce(VERSION)
    assert fetcher.first(PATIENCE) is None
    assert isinstance(fetcher.failure, CheckpointError)
    assert re.search(found, str(fetcher.failure))


def test_a_model_that_fits_the_agent_of_the_actor_is_adopted(fetch: Fetch) -> None:
    fetcher = fetch(scripted(chunks()))
    fetcher.allow({name: torch.zeros(values.shape) for name, values in PARAMS.items()})
    fetcher.announce(VERSION)
    assert_is_the_model(fetcher.first(PATIENCE))


def test_a_model_older_than_the_present_one_is_not_adopted(fetch: Fetch) -> None:
    newest = ModelVersion(2, 50)
    learner = scripted(chunks(), chunks(version=ModelVersion(2, 20)), chunks(version=newest))
    fetcher = fetch(learner)
    fetcher.announce(VERSION)
    fetcher.first(PATIENCE)
    fetcher.announce(newest)
    wait_for(lambda: fetcher.newer_than(VERSION), "the newest model")
    assert_is_the_model(fetcher.newer_than(VERSION), newest)
    assert learner.had == [version_to_pb(version) for version in (NO_MODEL, VERSION, VERSION)]


def test_a_delta_is_applied_to_the_present_model(fetch: Fetch) -> None:
    learner = scripted(chunks(), delta_chunks())
    fetcher = fetch(learner)
    for version in (VERSION, NEXT):
        fetcher.announce(version)
        wait_for(lambda version=version: holds(fetcher, version), f"model {version}")  # type: ignore[misc]
    assert learner.had == [version_to_pb(version) for version in (NO_MODEL, VERSION)]


def test_after_a_delta_that_makes_another_model_the_next_is_fetched_whole_and_then_deltas_again(
    fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    last, wrong = ModelVersion(2, 50), make_delta(NEXT_DATA, NEXT_DATA)
    answers = [chunks(), delta_chunks(delta=wrong), chunks(version=NEXT, data=NEXT_DATA), chunks(version=last)]
    learner = scripted(*answers)
    fetcher = fetch(learner)
    for version in (VERSION, NEXT, last):
        fetcher.announce(version)
        wait_for(lambda version=version: holds(fetcher, version), f"model {version}")  # type: ignore[misc]
    assert learner.had == [version_to_pb(version) for version in (NO_MODEL, VERSION, NO_MODEL, NEXT)]
    assert caplog.text.count("a model could not be fetched and is tried again") == 1


def test_waiting_for_a_first_model_that_is_never_announced_ends_with_an_error(fetch: Fetch) -> None:
    with pytest.raises(LearnerUnreachableError, match=r"no model came within 0\.05 s"):
        fetch(scripted(chunks())).first(0.05)


class SlowLearner(ScriptedLearner):
    """Sends the first chunk of a model, and the rest when ``rest`` is set."""

    def __init__(self) -> None:
        super().__init__(pb.JoinResponse(), [])
        self.rest, self.asked = threading.Event(), threading.Event()
        self.seconds = 0.0
        """The time that the actor gives the transfer."""

    def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetModelResponse]:
        first, *others = chunks()
        self.seconds = context.time_remaining()
        self.asked.set()
        yield first
        assert self.rest.wait(PATIENCE)
        yield from others


def test_a_first_model_that_is_on_its_way_is_waited_for_longer(fetch: Fetch) -> None:
    learner = SlowLearner()
    fetcher = fetch(learner)
    fetcher.announce(VERSION)
    assert learner.asked.wait(PATIENCE)
    threading.Timer(0.2, learner.rest.set).start()
    assert_is_the_model(fetcher.first(0.0))


def test_a_larger_model_may_travel_for_longer(fetch: Fetch) -> None:
    learner = SlowLearner()
    learner.rest.set()
    fetcher = fetch(learner)  # Of up to ``MAX_MODEL_BYTES``.
    fetcher.announce(VERSION)
    assert_is_the_model(fetcher.first(PATIENCE))
    assert learner.seconds > MAX_MODEL_BYTES / SLOWEST_LINK


def test_a_model_is_confirmed_whenever_the_learner_names_no_newer_one(fetch: Fetch) -> None:
    fetcher = fetch(scripted(chunks()))
    fetcher.announce(VERSION)
    fetcher.first(PATIENCE)
    fetched = fetcher.confirmed_at(VERSION)
    assert fetched is not None
    fetcher.announce(VERSION)
    confirmed = fetcher.confirmed_at(VERSION)
    assert confirmed is not None
    assert confirmed > fetched
    fetcher.announce(ModelVersion(2, 999))
    assert fetcher.confirmed_at(VERSION) == confirmed
    assert fetcher.confirmed_at(NO_MODEL) is None, "another model was fetched"


def test_an_actor_that_has_to_end_stops_waiting_for_a_first_model() -> None:
    stopped, given = threading.Event(), list[object]()
    fetcher = ModelFetcher(cast("Any", lambda *_, **__: iter(())), stopped)
    waiting = threading.Thread(target=lambda: given.append(fetcher.first(10 * PATIENCE)), daemon=True)
    waiting.start()
    stopped.set()
    waiting.join(PATIENCE)
    assert given == [None]


@pytest.mark.parametrize("fits", [True, False])
def test_a_fetcher_that_was_ended_in_a_long_transfer_does_no_more_when_its_actor_starts_anew(*, fits: bool) -> None:
    stopped, in_transfer, goes_on = threading.Event(), threading.Event(), threading.Event()

    def answer(*_: object, **__: object) -> Iterator[bytes]:
        in_transfer.set()
        assert goes_on.wait(PATIENCE)
        return iter(chunk.SerializeToString() for chunk in chunks())

    others = {*threading.enumerate()}
    fetcher = ModelFetcher(cast("Any", answer), stopped)
    (thread,) = {*threading.enumerate()} - others
    fetcher.allow({name: torch.zeros(values.shape if fits else 7) for name, values in PARAMS.items()})
    fetcher.announce(VERSION)
    assert in_transfer.wait(PATIENCE)
    stopped.set()
    fetcher.end(0.0)
    stopped.clear()
    goes_on.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not stopped.is_set(), "the next life of the actor goes on"


def test_the_first_wait_is_for_an_opponent_too_and_each_is_asked_for_by_its_version(serve: Serve) -> None:
    older = ModelVersion(1, 7)
    learner = scripted(chunks(), chunks(version=older))
    stopped, pool = threading.Event(), PoolModels(lambda _: None)
    with grpc.insecure_channel(f"127.0.0.1:{serve(learner)}", options=CLIENT_OPTIONS) as channel:
        fetcher = ModelFetcher(get_model(channel), stopped, pool=pool)
        fetcher.announce(VERSION)
        wait_for(lambda: fetcher.newer_than(NO_MODEL), "the newest model")
        fetcher.announce_pool({older: 1.0})
        assert_is_the_model(fetcher.first(PATIENCE))
        assert pool.weights() == {older: 1.0}
        assert_is_the_model(pool.load(older), older)
        assert [request.opt_steps for request in learner.versions] == [0, 7]
        stopped.set()
        fetcher.end(PATIENCE)
