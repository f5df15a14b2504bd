"""``PushItemsRequest`` with its payload read and written by hand, see ``common.wire.large_field``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from common.wire import large_field
from common.wire.pb import crossborder_pb2 as pb

MAX_HEAD_BYTES: Final = 128 << 10
"""The most bytes of a request beside its payload: episodes, a score and an environment's error take less. Longer ones
are refused before they are parsed, which would take seconds for millions of numbers."""
_PAYLOAD: Final = pb.PushItemsRequest.PAYLOAD_FIELD_NUMBER


@dataclass(frozen=True)
class Request:
    """A request of ``PushItems`` and its payload.

    Args:
        head: all other fields.
        payload: in pieces, one after another.
    """

    head: pb.PushItemsRequest
    payload: Sequence[bytes | memoryview] = ()

    def serialize(self) -> bytes:
        return large_field.serialize(self.head, _PAYLOAD, self.payload)

    @staticmethod
    def parse(message: bytes) -> Request:
        """Read a serialised request; its payload is one view of the message.

        Raises:
            DecodeError: it is no ``PushItemsRequest``, it has a payload twice, or all other fields are too long.
        """
        try:
            rest, payload = large_field.split(message, _PAYLOAD)
        except ValueError as error:
            raise DecodeError(str(error)) from error
        if len(rest) > MAX_HEAD_BYTES:
            raise DecodeError(f"expected at most {MAX_HEAD_BYTES} bytes beside the payload, found {len(rest)}")
        return Request(pb.PushItemsRequest.FromString(rest), (payload,))
