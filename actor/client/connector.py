"""Joins a learner, once or again. It tries again after random delays, but ends at once if no retry can help."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from importlib.metadata import version

import grpc

from actor.client.join_answer import JoinAnswer, read_join
from common.errors import LearnerUnreachableError
from common.process.clocks import Backoff, Deadline
from common.process.log import identify
from common.wire.channel import get_model, open_channel, push_items, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION, StoppingError, describe, typed_error
from common.wire.trust import Trust

log = logging.getLogger(__name__)
JOIN_SECONDS = 5.0


def new_incarnation() -> int:
    """A random number that is not 0 and fits 64 bits."""
    return secrets.randbits(63) + 1


class Connector:
    """A channel to one learner, on which an actor joins.

    Not thread-safe: while there is a pusher, only the pusher's thread uses it.

    Args:
        address: HOST:PORT.
        incarnation: random and not 0; see ``new_incarnation``.
        patience: seconds to keep trying.
        cancelled: set from outside to give up.
        trust: how to check the learner and what to prove to it; the default suits only a learner on this host.
        evaluates: whether the actor scores the trainer's candidates and records no steps.

    Raises:
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """

    def __init__(
        self,
        address: str,
        incarnation: int,
        patience: float,
        cancelled: threading.Event,
        trust: Trust | None = None,
        *,
        evaluates: bool = False,
    ) -> None:
        self._address, self.incarnation, self._patience = address, incarnation, patience
        self._former, self._evaluates = 0, evaluates
        self._cancelled = cancelled
        self._credentials = watch_credentials(address, trust or Trust())
        self._open()

    def _open(self) -> None:
        self._opened_with = self._credentials.get()
        self._channel = open_channel(self._address, self._opened_with)
        self.stub = pb_grpc.LearnerServiceStub(self._channel)
        self.get_model, self.push_items = get_model(self._channel), push_items(self._channel)

    def refresh(self) -> None:
        """Open another channel, and with it other calls, if certificates have changed."""
        if self._credentials.get() is not self._opened_with:
            self.close()
            self._open()

    def renew(self, *, keeps_place: bool) -> None:
        """Take another incarnation; with ``keeps_place`` it takes over the id and the figures of the present one."""
        self._former = self.incarnation if keeps_place else 0
        self.incarnation = new_incarnation()

    def join(self) -> JoinAnswer:
        """Join, trying for ``patience`` seconds.

        Raises:
            LearnerUnreachableError: nobody answered.
            StoppingError: ``cancelled`` was set.
            AuthenticationError: actor and learner do not trust each other.
            CrossborderError: the learner refused for good, or its answer is not valid.
        """
        deadline, backoff = Deadline(self._patience), Backoff()
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self.incarnation,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            version=version("crossborder")[:32],
            former_incarnation=self._former,
            evaluates=self._evaluates,
        )
        is_logged = False
        while True:
            try:
                answer = read_join(self.stub.Join(request, timeout=min(JOIN_SECONDS, deadline.remaining() + 0.1)))
                identify(run_id=answer.run_id, actor_id=answer.actor_id)
                return answer
            except grpc.RpcError as error:
                permanent = typed_error(error)
                if permanent is not None:
                    raise permanent from error
                reason = describe(error)
            if self._cancelled.wait(min(backoff.next_delay(), deadline.remaining())):
                raise StoppingError(f"{self._address}: told to stop while looking for the learner")
            if deadline.passed():
                raise LearnerUnreachableError(
                    f"{self._address}: no learner for {self._patience:g} s: {reason}{_hint(reason)}"
                )
            if not is_logged:
                log.info("waiting for the learner at %s: %s", self._address, reason)
                is_logged = True

    def close(self) -> None:
        self._channel.close()


def _hint(reason: str) -> str:
    """A learner that asks for TLS or a certificate, and gets none, closes the connection and does not say why."""
    return "; does it expect TLS (--ca) or a certificate (--certificate, --key)?" if "Socket closed" in reason else ""
