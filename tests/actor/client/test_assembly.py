from __future__ import annotations

import itertools

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from actor.client.assembly import ModelFile, assemble, max_file_bytes
from common.data import Array, Model, ModelVersion
from common.wire.compression import compress, make_delta
from common.wire.large_field import checksum
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import version_to_pb

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


def put_together(answer: list[pb.GetModelResponse], base: ModelFile | None = None) -> ModelFile | None:
    return assemble([chunk.SerializeToString() for chunk in answer], base)


def assembled(answer: list[pb.GetModelResponse], base: ModelFile | None = None) -> ModelFile:
    file = put_together(answer, base)
    assert file is not None
    return file


@given(st.integers(1, len(DATA) + 10))
def test_a_model_is_put_together_from_chunks_of_any_size(size: int) -> None:
    assert_is_the_model(assembled(chunks(size)).model)


def test_not_modified_is_no_model() -> None:
    assert put_together([pb.GetModelResponse(version=version_to_pb(VERSION), not_modified=True)]) is None


def test_torch_adopts_a_model_without_a_warning() -> None:
    model = assembled(chunks()).model
    assert torch.from_numpy(model.params["w"]).tolist() == PARAMS["w"].tolist()


def test_bfloat16_is_widened() -> None:
    data = safetensors.torch.save({"w": torch.tensor([0.5, 1 / 3]).bfloat16(), "steps": torch.tensor(7)})
    model = assembled(chunks(data=data)).model
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
        ([pb.GetModelResponse(total_bytes=1 << 60, data=b"x")], f"found {1 << 60} announced"),
        ([pb.GetModelResponse(total_bytes=1 << 63, data=b"x")], f"found {1 << 63} announced"),
        ([pb.GetModelResponse(total_bytes=9)], "expected data in the chunk at offset 0, found none"),
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
        "more than numpy can say",
        "empty",
    ],
)
def test_chunks_that_make_no_whole_model_are_refused(broken: list[pb.GetModelResponse], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        put_together(broken)


def test_bytes_that_are_no_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a GetModelResponse, found \d+ other bytes"):
        assemble([chunks()[0].SerializeToString()[:-1]])


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_single_changed_byte_is_detected(place: int, change: int) -> None:
    damaged = chunks(len(DATA))
    data = bytearray(DATA)
    data[place] ^= change
    damaged[0].data = bytes(data)
    with pytest.raises(ValueError, match="expected checksum"):
        put_together(damaged)


# What changed.

NEXT = ModelVersion(2, 40)
NEXT_DATA = save({"w": PARAMS["w"] / 3, "steps": PARAMS["steps"] + 1})
DELTA = make_delta(DATA, NEXT_DATA)


def delta_chunks(size: int = 10, base: ModelVersion = VERSION, delta: bytes = DELTA) -> list[pb.GetModelResponse]:
    """``NEXT`` as what changed since another, in chunks of ``size`` bytes."""
    return [
        pb.GetModelResponse(
            version=version_to_pb(NEXT),
            total_bytes=len(NEXT_DATA),
            checksum=checksum(NEXT_DATA),
            base=version_to_pb(base),
            offset=chunk.offset,
            data=chunk.data,
        )
        for chunk in chunks(size, delta)
    ]


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_delta_makes_the_model_bit_for_bit_and_leaves_its_base_as_it_is(size: int) -> None:
    base = assembled(chunks())
    file = assembled(delta_chunks(size), base)
    assert (file.model.version, file.data.tobytes()) == (NEXT, NEXT_DATA)
    assert_is_the_model(base.model)
    assert base.data.tobytes() == DATA


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (delta_chunks(base=ModelVersion(2, 29)), r"expected a delta to .*=30\), found one to .*=29\)"),
        (delta_chunks(delta=make_delta(NEXT_DATA, NEXT_DATA)), "expected checksum"),
        (delta_chunks()[:-1], "expected one Zstandard frame"),
        (delta_chunks(delta=compress(bytes(4))), f"delta: expected {len(DATA)} bytes, found 4"),
        (delta_chunks(delta=compress(bytes(1 << 20))), f"expected a content size of up to {len(DATA)} bytes"),
    ],
    ids=["of another model", "of another file", "cut off", "too small", "a bomb"],
)
def test_a_delta_that_makes_another_model_is_refused(broken: list[pb.GetModelResponse], message: str) -> None:
    with pytest.raises(ValueError, match=rf"model .*=40\): .*{message}"):
        put_together(broken, assembled(chunks()))


def test_a_delta_is_refused_where_there_is_no_model() -> None:
    with pytest.raises(ValueError, match="expected a delta to "):
        put_together(delta_chunks())


def test_a_model_larger_than_its_agent_can_take_is_refused_before_it_is_received() -> None:
    room = max_file_bytes({"w": torch.zeros(2, 3), "steps": torch.zeros(1, dtype=torch.int64)})
    messages = [chunk.SerializeToString() for chunk in chunks()]
    assert assemble(messages, max_bytes=room) is not None
    announced = iter([pb.GetModelResponse(total_bytes=room + 1, data=b"x").SerializeToString(), *messages])
    with pytest.raises(ValueError, match=f"expected up to {room} bytes for this actor's agent, found {room + 1}"):
        assemble(announced, max_bytes=room)
    assert len(list(announced)) == len(messages), "no further chunk was taken"


def test_of_an_endless_answer_of_not_modified_only_the_first_message_is_read() -> None:
    message = pb.GetModelResponse(version=version_to_pb(VERSION), not_modified=True).SerializeToString()
    assert assemble(itertools.repeat(message)) is None


def test_an_agent_of_many_small_tensors_has_room_for_their_names() -> None:
    tensors = {f"layers.{i}.{'weight' * 20}": torch.zeros(()) for i in range(5000)}
    assert len(safetensors.torch.save(tensors)) < max_file_bytes(tensors)
