from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from common.wire.batch import Request
from common.wire.large_field import MOST_FIELDS
from common.wire.pb import crossborder_pb2 as pb

HEAD = pb.PushItemsRequest(incarnation=2**63, seq=300, rows=7, report=pb.Report(env_steps=5), after_drop=True)


@pytest.mark.parametrize("pieces", [(), (b"",), (b"payload",), (b"pay", memoryview(b"load")), (bytes(1 << 20), b"x")])
def test_a_request_is_the_message_that_protobuf_knows(pieces: tuple[bytes, ...]) -> None:
    whole = pb.PushItemsRequest.FromString(Request(HEAD, pieces).serialize())
    expected = pb.PushItemsRequest(payload=b"".join(pieces))
    expected.MergeFrom(HEAD)
    assert whole == expected


@pytest.mark.parametrize("payload", [b"", b"payload", bytes(1 << 20)])
def test_a_request_that_protobuf_has_written_is_read(payload: bytes) -> None:
    message = pb.PushItemsRequest(payload=payload)
    message.MergeFrom(HEAD)
    found = Request.parse(message.SerializeToString())
    assert found.head == HEAD
    assert b"".join(found.payload) == payload


@pytest.mark.parametrize("message", [b"\xff", b"\x08", b"\x2a\x05abc", Request(HEAD, (b"once",)).serialize() * 2])
def test_other_bytes_and_a_payload_that_comes_twice_are_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        Request.parse(message)


def test_a_message_of_very_many_fields_is_refused_before_they_are_looked_at() -> None:
    payload = Request(pb.PushItemsRequest(), (b"payload",)).serialize()
    unknown = b"\xf8\x07\x01"  # A field of a later protocol.
    assert Request.parse(unknown * (MOST_FIELDS - 1) + payload).payload == (b"payload",)
    with pytest.raises(DecodeError, match=f"expected at most {MOST_FIELDS} fields, found more"):
        Request.parse(unknown * MOST_FIELDS + payload)
