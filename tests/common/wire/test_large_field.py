from __future__ import annotations

import itertools
import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from common.wire.large_field import MOST_FIELDS, Request, checksum, parse_chunk, serialize_chunk
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


HEAD_OF_CHUNK = pb.GetModelResponse(
    version=pb.ModelVersion(incarnation=2, opt_steps=30),
    total_bytes=1 << 40,
    checksum=1 << 63,
    offset=300,
    base=pb.ModelVersion(incarnation=1),
)


@given(st.binary(max_size=300))
def test_protobuf_reads_a_message_that_is_written_by_hand(data: bytes) -> None:
    whole = pb.GetModelResponse.FromString(serialize_chunk(HEAD_OF_CHUNK, data))
    assert whole.data == data
    whole.ClearField("data")
    assert whole == HEAD_OF_CHUNK


@pytest.mark.parametrize("data", [b"", b"x", b"\x32\x01x" * 100])
def test_a_message_is_parsed_whatever_the_order_of_its_fields(data: bytes) -> None:
    fields = [
        pb.GetModelResponse(version=HEAD_OF_CHUNK.version),
        pb.GetModelResponse(checksum=7),
        pb.GetModelResponse(offset=8),
    ]
    pieces = [*(field.SerializeToString() for field in fields), serialize_chunk(pb.GetModelResponse(), data)]
    for order in itertools.permutations(pieces):
        head, found = parse_chunk(b"".join(order))
        assert found.tobytes() == data
        assert head == pb.GetModelResponse(version=HEAD_OF_CHUNK.version, checksum=7, offset=8)


def test_unknown_fields_of_a_later_protocol_are_ignored() -> None:
    later = b"\xf8\x07\x01" + b"\xfa\x07\x02xx" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4)
    head, found = parse_chunk(later + serialize_chunk(HEAD_OF_CHUNK, b"data"))
    assert found.tobytes() == b"data"
    assert head.offset == HEAD_OF_CHUNK.offset


def test_a_message_without_data_has_empty_data() -> None:
    head, found = parse_chunk(pb.GetModelResponse(not_modified=True).SerializeToString())
    assert head.not_modified
    assert found.tobytes() == b""


def data_of(message: bytes) -> bytes | None:
    """The data of a message; None if the message is refused."""
    try:
        return parse_chunk(message)[1].tobytes()
    except ValueError:
        return None


@pytest.mark.parametrize("length", range(len(serialize_chunk(HEAD_OF_CHUNK, b"data"))))
def test_a_message_that_was_cut_off_never_gives_half_of_its_data(length: int) -> None:
    assert not data_of(serialize_chunk(HEAD_OF_CHUNK, b"data")[:length])


@pytest.mark.parametrize("message", [b"\x80" * 1000, b"\x32" + b"\x80" * 1000, b"\x33", b"\x32\x05data", b"\x08"])
def test_other_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=f"expected a GetModelResponse, found {len(message)} other bytes"):
        parse_chunk(message)


def test_a_message_with_data_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the large field once, found it twice"):
        parse_chunk(serialize_chunk(HEAD_OF_CHUNK, b"one") + serialize_chunk(HEAD_OF_CHUNK, b"two"))


FIELDS = [
    HEAD_OF_CHUNK.SerializeToString(),
    b"\x32\x04data",
    b"\xfa\x07\x02xx",
    b"\xf9\x07" + bytes(8),
    b"\x28\x96\x01",
    b"\x32",
]


@given(st.lists(st.sampled_from(FIELDS) | st.binary(max_size=3), max_size=6).map(b"".join))
def test_protobuf_parses_the_same_from_every_message_that_is_accepted(message: bytes) -> None:
    if (data := data_of(message)) is not None:
        whole, head = pb.GetModelResponse.FromString(message), parse_chunk(message)[0]
        assert whole.data == data
        whole.ClearField("data")
        assert whole == head


@given(st.binary(max_size=40), st.integers(0, 39), st.integers(1, 255))
def test_a_checksum_adds_up_words_and_sees_a_changed_byte(data: bytes, place: int, change: int) -> None:
    padded = data + bytes(-len(data) % 8)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    assert checksum(data) == sum(words) % 2**64
    if place < len(data):
        changed = data[:place] + bytes([data[place] ^ change]) + data[place + 1 :]
        assert checksum(changed) != checksum(data)
