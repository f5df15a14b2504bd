"""One connection of ``PushItems``, from its opening to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from actor.client.requests import Requests, WaitingBatch
from actor.spool import Spool
from common.wire.channel import PushItems
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import NotJoinedError, describe, typed_error

log = logging.getLogger(__name__)
HEARTBEAT_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 15.0
"""A learner that is silent for longer is gone: it answers every heartbeat, even while it holds actors back."""


class PushStream:
    """Opens a stream that sends the batches of a spool, until it breaks or the spool is closed and empty.

    Two threads work on it. The thread that calls ``run`` hears responses, and a gRPC thread pulls requests out of a
    generator. The threads share ``has_left`` and the time of the last response; each of the two has one writer.

    Args:
        push_items: of the learner.
        incarnation: the actor's.
        spool: gives the batches. Opening the stream connects it.
        requests: makes the messages.
    """

    def __init__(
        self,
        push_items: PushItems,
        incarnation: int,
        spool: Spool[WaitingBatch],
        requests: Requests,
    ) -> None:
        self._incarnation, self._spool, self._requests = incarnation, spool, requests
        self._epoch = spool.connect()
        self._heard_at = time.monotonic()
        self.has_left = False
        """Whether the actor has said goodbye."""
        self._call: Any = push_items(self._messages())

    def run(self, hear: Callable[[pb.PushItemsResponse], None]) -> str | None:
        """Pass responses to ``hear`` until the stream ends. Return why it broke; None if the learner ended it in order.

        Raises:
            CrossborderError: the learner refused for good.
        """
        try:
            for response in self._call:
                self._heard_at = time.monotonic()
                hear(response)
        except grpc.RpcError as error:
            typed = typed_error(error)
            if typed is not None and not isinstance(typed, NotJoinedError):
                raise typed from error
            return describe(error)
        return None

    def cancel(self) -> None:
        """End the stream; from any thread."""
        self._call.cancel()

    def _messages(self) -> Iterator[Request]:
        yield self._requests.make_heartbeat(self._incarnation)
        while True:
            if time.monotonic() - self._heard_at > SILENCE_SECONDS:
                log.warning("the learner has been silent for %g s", SILENCE_SECONDS)
                self.cancel()
                return
            unsent = self._spool.next_unsent(self._epoch, HEARTBEAT_SECONDS)
            if unsent is not None:
                yield self._requests.make_message(self._incarnation, *unsent)
            elif not self._spool.is_current(self._epoch):
                return
            elif self._spool.drained:
                self.has_left = True
                yield self._requests.make_heartbeat(self._incarnation, leaving=True)
                return
            else:
                yield self._requests.make_heartbeat(self._incarnation)
