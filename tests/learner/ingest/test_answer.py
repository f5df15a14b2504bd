from __future__ import annotations

import os

import pytest

from common.data import ModelVersion
from common.pb import crossborder_pb2 as pb
from common.rpc import CHUNK_BYTES, UNARY_BYTES, checksum, version_from_pb
from learner.ingest.answer import ModelAnswer
from learner.models import Blob

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
