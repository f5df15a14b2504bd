from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from common.data import ModelVersion
from common.wire.chunk import checksum
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CHUNK_BYTES, UNARY_BYTES, version_from_pb
from learner.ingest.model_answers import ModelAnswer, ModelAnswers
from learner.models.publisher import ModelPublisher
from learner.models.slots import Blob, ModelSlots

VERSION = ModelVersion(3, 20)


@pytest.mark.parametrize(
    ("n_bytes", "n_messages"),
    [(1, 1), (127, 1), (128, 1), (16384, 1), (UNARY_BYTES, 1), (UNARY_BYTES + 1, 5), (6 * CHUNK_BYTES - 1, 6)],
)
def test_messages_are_what_protobuf_would_serialise_and_hold_the_model(n_bytes: int, n_messages: int) -> None:
    data = os.urandom(n_bytes)
    answer = ModelAnswer.of(Blob(VERSION, memoryview(data), published_at=1.5))
    assert (answer.version, answer.published_at, answer.n_bytes) == (VERSION, 1.5, n_bytes)
    chunks = [pb.GetModelResponse.FromString(message) for message in answer.messages]
    assert len(chunks) == n_messages
    assert b"".join(chunk.data for chunk in chunks) == data
    offset = 0
    for message, chunk in zip(answer.messages, chunks, strict=True):
        assert len(message) == chunk.ByteSize()
        assert version_from_pb(chunk.version) == VERSION
        assert (chunk.total_bytes, chunk.checksum, chunk.offset) == (n_bytes, checksum(data), offset)
        offset += len(chunk.data)


def test_what_changed_is_worked_out_once_however_many_ask(tmp_path: Path) -> None:
    weights = torch.zeros(1000)
    publisher = ModelPublisher(tmp_path / "models", {"w": weights}, incarnation=3)
    answers = ModelAnswers(ModelSlots(tmp_path / "models", publisher.blob_bytes, create=False), n_bases=1)
    publisher.publish(10)
    answers.whole()
    weights[7] = 1.5
    publisher.publish(20)
    answer = answers.since(ModelVersion(3, 10))
    assert answer.n_bytes < answers.whole().n_bytes == publisher.blob_bytes
    assert answers.since(ModelVersion(3, 10)) is answer


def test_a_model_that_changed_all_over_is_sent_whole() -> None:
    old, new = (ModelAnswer.of(Blob(ModelVersion(3, n), memoryview(os.urandom(1000)), 1.5)) for n in (10, 20))
    assert new.since(old) is new


def test_what_changed_in_a_large_model_comes_in_chunks_of_its_own() -> None:
    base, model = bytes(6 * CHUNK_BYTES), os.urandom(5 * CHUNK_BYTES) + bytes(CHUNK_BYTES)
    old, new = (ModelAnswer.of(Blob(ModelVersion(3, n), memoryview(x), 1.5)) for n, x in ((10, base), (20, model)))
    chunks = [pb.GetModelResponse.FromString(message) for message in new.since(old).messages]
    assert [chunk.offset for chunk in chunks] == [n * CHUNK_BYTES for n in range(6)]
    assert {(chunk.total_bytes, chunk.checksum) for chunk in chunks} == {(len(model), checksum(model))}
    assert {version_from_pb(chunk.base) for chunk in chunks} == {ModelVersion(3, 10)}
