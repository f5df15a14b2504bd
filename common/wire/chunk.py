"""``GetModelResponse`` with its data read and written by hand, see ``common.wire.large_field``; and its checksum.

For a model of 7 MB in seven messages this saves about 2 ms of the 6 to 9 ms that a fetch takes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from common.wire import large_field
from common.wire.pb import crossborder_pb2 as pb

_DATA: Final = pb.GetModelResponse.DATA_FIELD_NUMBER


def checksum(data: bytes | memoryview) -> int:
    """``GetModelResponse.checksum``: the sum of all 64-bit words. 7 MB take 0.1 ms; SHA-256 would take 3.7 ms."""
    words = np.frombuffer(data, "<u8", len(data) // 8)
    rest = int.from_bytes(data[words.nbytes :], "little")
    return (int(words.sum()) + rest) % 2**64


def serialize_chunk(head: pb.GetModelResponse, data: bytes | memoryview) -> bytes:
    """The message ``head``, which has no data, with these data."""
    return large_field.serialize(head, _DATA, (data,))


def parse_chunk(message: bytes) -> tuple[pb.GetModelResponse, memoryview]:
    """A serialised message as its other fields and a view of its data.

    Raises:
        ValueError: it is no ``GetModelResponse``, or it has data twice.
    """
    try:
        rest, data = large_field.split(message, _DATA)
        return pb.GetModelResponse.FromString(rest), data
    except (DecodeError, ValueError) as error:
        raise ValueError(f"expected a GetModelResponse, found {len(message)} other bytes: {error}") from error
