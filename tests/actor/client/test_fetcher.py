from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from actor.client.fetcher import ModelFetcher, assemble
from common.data import NO_MODEL, Array, Model, ModelVersion
from common.errors import LearnerUnreachableError
from common.pb import crossborder_pb2 as pb
from common.pb import crossborder_pb2_grpc as pb_grpc
from common.rpc import CLIENT_OPTIONS, checksum, version_to_pb
from tests.actor.client.conftest import ScriptedLearner, Serve
from tests.conftest import PATIENCE, wait_for

PARAMS: dict[str, Array] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array([7], np.int64)}
DATA = save(PARAMS)
VERSION = ModelVersion(2, 30)


def chunks(size: int = 50, data: bytes = DATA, version: ModelVersion = VERSION) -> list[pb.GetModelResponse]:
    """A model in chunks of ``size`` bytes."""
    return [
        pb.GetModelResponse(
            version=version_to_pb(version),
            total_bytes=len(data),
            checksum=checksum(data),
            offset=offset,
            data=data[offset : offset + size],
        )
        for offset in range(0, len(data), size)
    ]


def assert_is_the_model(model: Model | None, version: ModelVersion = VERSION) -> None:
    assert model is not None
    assert model.version == version
    assert model.params.keys() == PARAMS.keys()
    for name, expected in PARAMS.items():
        np.testing.assert_array_equal(model.params[name], expected)
        assert model.params[name].dtype == expected.dtype


# Putting chunks together.


@given(st.integers(1, len(DATA) + 10))
def test_a_model_is_put_together_from_chunks_of_any_size(size: int) -> None:
    assert_is_the_model(assemble(chunks(size)))


def test_not_modified_is_no_model() -> None:
    assert assemble([pb.GetModelResponse(version=version_to_pb(VERSION), not_modified=True)]) is None


def test_torch_adopts_a_model_without_a_warning() -> None:
    model = assemble(chunks())
    assert model is not None
    assert torch.from_numpy(model.params["w"]).tolist() == PARAMS["w"].tolist()


def test_bfloat16_is_widened() -> None:
    data = safetensors.torch.save({"w": torch.tensor([0.5, 1 / 3]).bfloat16(), "steps": torch.tensor(7)})
    model = assemble(chunks(data=data))
    assert model is not None
    assert model.params["w"].dtype == np.float32
    assert model.params["w"].tolist() == [0.5, float(torch.tensor(1 / 3).bfloat16())]
    assert model.params["steps"] == 7


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([], "expected chunks, found none"),
        (chunks()[1:], "expected a chunk at offset 0, found one at 50"),
        ([chunks()[0], chunks()[2]], "expected a chunk at offset 50, found one at 100"),
        ([chunks()[1], chunks()[0]], "expected a chunk at offset 0, found one at 50"),
        ([chunks()[0], chunks()[0]], "expected a chunk at offset 50, found one at 0"),
        (chunks()[:-1], f"expected {len(DATA)} bytes, found {(len(DATA) - 1) // 50 * 50}"),
        (
            [*chunks(), pb.GetModelResponse(offset=len(DATA), data=b"x")],
            f"expected {len(DATA)} bytes, found {len(DATA) + 1}",
        ),
        ([pb.GetModelResponse(total_bytes=1 << 60, data=b"x")], f"no memory for {1 << 60} bytes"),
        ([pb.GetModelResponse(total_bytes=1 << 63, data=b"x")], f"no memory for {1 << 63} bytes"),
    ],
    ids=[
        "none",
        "first missing",
        "middle missing",
        "swapped",
        "repeated",
        "last missing",
        "one too many",
        "more than there is memory",
        "more than can be said",
    ],
)
def test_chunks_that_make_no_whole_model_are_refused(broken: list[pb.GetModelResponse], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assemble(broken)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_single_changed_byte_is_found_out(place: int, change: int) -> None:
    damaged = chunks(len(DATA))
    data = bytearray(DATA)
    data[place] ^= change
    damaged[0].data = bytes(data)
    with pytest.raises(ValueError, match="expected checksum"):
        assemble(damaged)


# Fetching.

Fetch = Callable[[ScriptedLearner], ModelFetcher]


@pytest.fixture
def fetch(serve: Serve) -> Iterator[Fetch]:
    """Makes a fetcher of a scripted learner; it is ended at the end."""
    made: list[tuple[ModelFetcher, grpc.Channel, threading.Event]] = []

    def _fetch(learner: ScriptedLearner) -> ModelFetcher:
        channel = grpc.insecure_channel(f"127.0.0.1:{serve(learner)}", options=CLIENT_OPTIONS)
        stopped = threading.Event()
        made.append((ModelFetcher(pb_grpc.LearnerServiceStub(channel), stopped), channel, stopped))
        return made[-1][0]

    yield _fetch
    for fetcher, channel, stopped in made:
        stopped.set()
        fetcher.join(PATIENCE)
        channel.close()


def scripted(*answers: list[pb.GetModelResponse]) -> ScriptedLearner:
    return ScriptedLearner(pb.JoinResponse(), list(answers))


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


def test_a_newer_announcement_fetches_again_and_says_what_is_there_already(fetch: Fetch) -> None:
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


def test_an_older_model_than_the_one_at_hand_is_not_adopted(fetch: Fetch) -> None:
    newest = ModelVersion(2, 50)
    learner = scripted(chunks(), chunks(version=ModelVersion(2, 20)), chunks(version=newest))
    fetcher = fetch(learner)
    fetcher.announce(VERSION)
    fetcher.first(PATIENCE)
    fetcher.announce(newest)
    wait_for(lambda: fetcher.newer_than(VERSION), "the newest model")
    assert_is_the_model(fetcher.newer_than(VERSION), newest)
    assert learner.had == [version_to_pb(version) for version in (NO_MODEL, VERSION, VERSION)]


def test_a_model_that_nobody_announces_is_missed_in_the_end(fetch: Fetch) -> None:
    with pytest.raises(LearnerUnreachableError, match=r"no model came within 0\.05 s"):
        fetch(scripted(chunks())).first(0.05)
