"""The answer to ``GetModel``, serialised once a version: every actor is sent the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

from common.data import ModelVersion
from common.pb import crossborder_pb2 as pb
from common.rpc import CHUNK_BYTES, UNARY_BYTES, checksum, version_to_pb
from learner.models import Blob

_DATA_TAG = bytes([pb.GetModelResponse.DATA_FIELD_NUMBER << 3 | 2])  # Length-delimited.


@dataclass(frozen=True)
class ModelAnswer:
    """A model as it is sent.

    Args:
        messages: serialised ``GetModelResponse``.
    """

    version: ModelVersion
    published_at: float
    n_bytes: int
    messages: tuple[bytes, ...]

    @classmethod
    def of(cls, blob: Blob) -> ModelAnswer:
        """Copies the model once."""
        total, version, whole = len(blob.data), version_to_pb(blob.version), checksum(blob.data)
        size = total if total <= UNARY_BYTES else CHUNK_BYTES
        messages = tuple(
            _with_data(
                pb.GetModelResponse(version=version, total_bytes=total, checksum=whole, offset=offset),
                blob.data[offset : offset + size],
            )
            for offset in range(0, total, size)
        )
        return cls(blob.version, blob.published_at, total, messages)


def _with_data(message: pb.GetModelResponse, data: memoryview) -> bytes:
    """Serialised; protobuf itself would copy ``data`` three times."""
    return b"".join((message.SerializeToString(), _DATA_TAG, _varint(len(data)), data))


def _varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    low = b""
    while number >> 7:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])
