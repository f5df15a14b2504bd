"""``PushItemsRequest`` with its payload read and written by hand, see ``common.wire.large_field``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from common.wire import large_field
from common.wire.pb import crossborder_pb2 as pb

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
            DecodeError: it is no ``PushItemsRequest``, or it has a payload twice.
        """
        try:
            rest, payload = large_field.split(message, _PAYLOAD)
        except ValueError as error:
            raise DecodeError(str(error)) from error
        return Request(pb.PushItemsRequest.FromString(rest), (payload,))
