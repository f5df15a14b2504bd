"""``GetModelResponse`` written and read by hand: protobuf would copy its ``data`` three times at either end.

Messages are a field after the other, in any order: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from common.pb import crossborder_pb2 as pb

VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
DATA_TAG: Final = pb.GetModelResponse.DATA_FIELD_NUMBER << 3 | LENGTH


def with_data(head: pb.GetModelResponse, data: bytes | memoryview) -> bytes:
    """A message serialised, with these data."""
    return b"".join((head.SerializeToString(), _varint(DATA_TAG), _varint(len(data)), data))


def taken_apart(message: bytes) -> tuple[pb.GetModelResponse, memoryview]:
    """A serialised message without its data, and these where they lie.

    Raises:
        ValueError: it is no such message.
    """
    at = 0
    try:
        while at < len(message):
            tag, begin, end = _field(message, at)
            if tag == DATA_TAG and end <= len(message):
                return pb.GetModelResponse.FromString(message[:at] + message[end:]), memoryview(message)[begin:end]
            at = end
        return pb.GetModelResponse.FromString(message), memoryview(b"")
    except (DecodeError, LookupError) as error:
        raise ValueError(f"expected a GetModelResponse, found other bytes: {error}") from error


def _field(message: bytes, at: int) -> tuple[int, int, int]:
    """Of the field that begins at a place, its tag, and where its value begins and ends."""
    tag, at = _read_varint(message, at)
    kind = tag & 7
    if kind == VARINT:
        return tag, at, _read_varint(message, at)[1]
    if kind == LENGTH:
        size, at = _read_varint(message, at)
        return tag, at, at + size
    return tag, at, at + {FIXED_64: 8, FIXED_32: 4}[kind]


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
    raise LookupError("a number without end")
