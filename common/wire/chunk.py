"""``GetModelResponse`` by hand: protobuf would copy its ``data`` three times in writing and twice in reading.

Messages are one field after another, in any order (https://protobuf.dev/programming-guides/encoding); ``data`` comes
once, and there are no groups, which are no longer written.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from common.wire.pb import crossborder_pb2 as pb

_VARINT, _LENGTH = 0, 2
_FIXED: Final = {1: 8, 5: 4}  # Bytes.
_DATA_TAG: Final = pb.GetModelResponse.DATA_FIELD_NUMBER << 3 | _LENGTH


def with_data(head: pb.GetModelResponse, data: bytes | memoryview) -> bytes:
    """A message serialised, with these data."""
    return b"".join((head.SerializeToString(), _varint(_DATA_TAG), _varint(len(data)), data))


def taken_apart(message: bytes) -> tuple[pb.GetModelResponse, memoryview]:
    """A serialised message without its data, and these where they lie.

    Raises:
        ValueError: it is no such message.
    """
    at = 0
    data, rest = memoryview(b""), message
    try:
        while at < len(message):
            tag, begin, end = _field(message, at)
            if tag == _DATA_TAG and end <= len(message):
                data, rest = memoryview(message)[begin:end], message[:at] + message[end:]
                break
            at = end
        head = pb.GetModelResponse.FromString(rest)
    except (DecodeError, IndexError, KeyError) as error:
        raise ValueError(f"expected a GetModelResponse, found {len(message)} other bytes") from error
    if head.data:
        raise ValueError("expected a GetModelResponse with data once, found them twice")
    return head, data


def _field(message: bytes, at: int) -> tuple[int, int, int]:
    """Of the field that begins at a place, its tag, and where its value begins and ends."""
    tag, at = _read_varint(message, at)
    kind = tag & 7
    if kind == _VARINT:
        return tag, at, _read_varint(message, at)[1]
    if kind == _LENGTH:
        size, at = _read_varint(message, at)
        return tag, at, at + size
    return tag, at, at + _FIXED[kind]


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low = b""
    while number >> 7:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for place in range(10):
        byte = message[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise IndexError("a number without end")
