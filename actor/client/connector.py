"""Joining a learner, and joining it again: retries with jitter, fails fast on what cannot mend itself."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc

from actor.client.join_answer import check_join, checked_schema, config_from_json
from common.config.nested import flatten
from common.config.run_config import ActorConfig
from common.data import ModelVersion, Schema
from common.errors import LearnerUnreachableError
from common.process.clocks import Deadline
from common.process.log import identify
from common.wire.channel import get_model, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION, Backoff, StoppingError, describe, typed_error, version_from_pb
from common.wire.trust import Trust

log = logging.getLogger(__name__)
JOIN_SECONDS = 5.0


def new_incarnation() -> int:
    """A random number that is not 0 and fits 64 bits."""
    return secrets.randbits(63) + 1


@dataclass(frozen=True)
class Joined:
    """What the learner told us at Join."""

    actor_id: int
    run_id: str
    seed: int
    epsilon: float
    schema: Schema
    config: ActorConfig
    last_seq: int
    newest: ModelVersion
    max_rows: int
    max_message_bytes: int
    """Both of one message."""
    takes_zstd: bool
    """The learner takes compressed payloads."""

    def changes(self, later: Joined) -> list[str]:
        """The settings of this actor's parts that are different in a later answer, as ``key: before → now``."""
        before, now = self._settings(), later._settings()
        keys = sorted(before.keys() | now.keys())
        return [f"{key}: {before.get(key)} → {now.get(key)}" for key in keys if before.get(key) != now.get(key)]

    def _settings(self) -> Mapping[str, Any]:
        return {**flatten(self.config.model_dump(mode="json")), "exploration epsilon": self.epsilon}


class Connector:
    """A channel to one learner and the handshake on it.

    Args:
        address: HOST:PORT.
        incarnation: random and not 0; see ``new_incarnation``.
        patience: seconds to keep trying.
        cancelled: set from outside to give up.
        trust: how to check it and what to prove; by default only fit for a learner on this host.

    Raises:
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """

    def __init__(
        self, address: str, incarnation: int, patience: float, cancelled: threading.Event, trust: Trust | None = None
    ) -> None:
        self._address, self.incarnation, self._patience = address, incarnation, patience
        self._former = 0
        self._cancelled = cancelled
        self._credentials = watch_credentials(address, trust or Trust())
        self._open()

    def _open(self) -> None:
        self._opened_with = self._credentials.get()
        self._channel = open_channel(self._address, self._opened_with)
        self.stub = pb_grpc.LearnerServiceStub(self._channel)
        self.get_model = get_model(self._channel)

    def refresh(self) -> None:
        """Open another channel, and with it other ``stub`` and ``get_model``, if certificates have changed."""
        if self._credentials.get() is not self._opened_with:
            self.close()
            self._open()

    def renew(self, *, keeps_place: bool) -> None:
        """Take another incarnation; with ``keeps_place`` it has the id and the figures of the present one."""
        self._former = self.incarnation if keeps_place else 0
        self.incarnation = new_incarnation()

    def join(self) -> Joined:
        """Join, trying for ``patience`` seconds.

        Raises:
            LearnerUnreachableError: nobody answered.
            StoppingError: ``cancelled`` was set.
            AuthenticationError: the two do not trust each other.
            CrossborderError: the learner refused for good.
        """
        deadline, backoff = Deadline(self._patience), Backoff()
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self.incarnation,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            version=version("crossborder")[:32],
            former_incarnation=self._former,
        )
        told = False
        while True:
            try:
                joined = _joined(self.stub.Join(request, timeout=min(JOIN_SECONDS, deadline.remaining() + 0.1)))
                identify(run_id=joined.run_id, actor_id=joined.actor_id)
                return joined
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
            if not told:
                log.info("waiting for the learner at %s: %s", self._address, reason)
                told = True

    def close(self) -> None:
        self._channel.close()


def _hint(reason: str) -> str:
    """A learner that misses something of ours in the handshake closes the connection and does not say why."""
    return "; does it expect TLS (--ca) or a certificate (--certificate, --key)?" if "Socket closed" in reason else ""


def _joined(response: pb.JoinResponse) -> Joined:
    """What the learner told us.

    Raises:
        ConfigError, ProtocolMismatchError: it told us what cannot be.
    """
    check_join(response)
    return Joined(
        actor_id=response.actor_id,
        run_id=response.run_id,
        seed=response.seed,
        epsilon=response.epsilon,
        schema=checked_schema(response.schema),
        config=config_from_json(response.config_json),
        last_seq=response.last_seq,
        newest=version_from_pb(response.newest),
        max_rows=response.limits.max_rows,
        max_message_bytes=response.limits.max_message_bytes,
        takes_zstd=pb.COMPRESSION_ZSTD in response.limits.compressions,
    )
