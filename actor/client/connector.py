"""Joins a learner, once or again. It tries again after random delays, but ends at once if no retry can help."""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import grpc

from actor.client.join_answer import JoinAnswer, read_join
from common.errors import CrossborderError, LearnerUnreachableError, RefusedError
from common.process.clocks import Backoff, Deadline
from common.process.log import identify
from common.wire.address import is_loopback, join_address, split_address
from common.wire.channel import get_model, hint_at_server, name_proxy, open_channel, push_items, watch_credentials
from common.wire.endpoints import Endpoint, find_endpoints, split_addresses
from common.wire.owners import is_listening, is_own_host
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION, HandshakeError, StoppingError, describe, typed_error
from common.wire.tls import hint_at_expiry
from common.wire.trust import Trust
from common.wire.watched import Watched

log = logging.getLogger(__name__)
JOIN_SECONDS = 5.0
LEAST_JOIN_SECONDS = 1.0
"""Each try gets this time, also if less of the patience is left: the last try tells why nobody was reached."""
UNREACHED_SECONDS = 0.5
"""The longest delay before the next try while nobody answers. Only gRPC connects, after its own delays; a call without
a connection costs the network nothing."""
RESOLVE_SECONDS = 5.0
"""Names are not resolved again within this time."""


def new_incarnation() -> int:
    """A random number that is not 0 and fits 64 bits."""
    return secrets.randbits(63) + 1


class LearnerAwayError(LearnerUnreachableError):
    """The learner that an incarnation has joined stays away, and the run may have other learners."""


class Connector:
    """A channel to one learner, on which an actor joins.

    A new incarnation joins one of several learners, and then stays with it: only that learner knows which batches of
    this incarnation are stored.

    Not thread-safe: while there is a pusher, only the pusher's thread uses it.

    Args:
        addresses: HOST:PORT, or several, separated by commas; see ``find_endpoints``.
        incarnation: random and not 0; see ``new_incarnation``.
        patience: seconds to keep trying.
        cancelled: set from outside to give up.
        trust: how to check the learner and what to prove to it.
        evaluates: whether the actor scores the trainer's candidates and records no steps.
        actor_id: the id that the actor must have; None: the learner chooses it.

    Raises:
        ConfigError: an address is no HOST:PORT, a file of ``trust`` cannot be read, or its settings contradict each
            other.
    """

    def __init__(
        self,
        addresses: str,
        incarnation: int,
        patience: float,
        cancelled: threading.Event,
        trust: Trust,
        *,
        evaluates: bool = False,
        actor_id: int | None = None,
    ) -> None:
        self._addresses = split_addresses(addresses)
        self.incarnation, self._patience, self._cancelled = incarnation, patience, cancelled
        self._former, self._evaluates, self._wanted_id = 0, evaluates, actor_id
        self._trust = trust
        self._watched = dict[bool, Watched[grpc.ChannelCredentials | None]]()
        """The credentials, by whether TLS is spoken. Once read, they stay while a file cannot be used."""
        self._has_joined = False
        self._doubt = ""
        """Why the present certificates are not trusted."""
        self._newest_life = ("", 0)
        """The run's id, and its highest epoch so far."""
        self._found: Sequence[Endpoint] = ()
        self._found_until = Deadline(0.0)
        self.endpoint = Endpoint.of(self._addresses[0])
        """Where the actor has joined, or tries to."""
        for address in self._addresses[1:]:
            self._watch(address)  # Errors raise now, not only when an actor goes there.
        self._open()

    def _open(self, *, apart: bool = False) -> None:
        self._credentials = self._watch(self.endpoint.named)
        self._opened_with = self._credentials.get()
        self._channel = open_channel(self.endpoint.address, self._opened_with, self.endpoint.name, apart=apart)
        self.stub = pb_grpc.LearnerServiceStub(self._channel)
        self.get_model, self.push_items = get_model(self._channel), push_items(self._channel)

    def _watch(self, address: str) -> Watched[grpc.ChannelCredentials | None]:
        uses_tls = self._trust.uses_tls(split_address(address)[0])
        if uses_tls not in self._watched:
            self._watched[uses_tls] = watch_credentials(address, self._trust)
        return self._watched[uses_tls]

    def _go_to(self, endpoint: Endpoint) -> None:
        if endpoint != self.endpoint:
            self.close()
            self.endpoint = endpoint
            self._open()

    def refresh(self, *, anew: bool) -> None:
        """Open another channel, and with it other calls, if certificates have changed, or in any case (``anew``).

        gRPC keeps a connection on which nothing comes for a minute.
        """
        if anew or self._credentials.get() is not self._opened_with:
            self.close()
            self._open(apart=True)

    def renew(self, *, keeps_place: bool) -> None:
        """Take another incarnation.

        Args:
            keeps_place: whether it takes over the id and the figures of the present one, at the same learner; otherwise
                it may join another learner.
        """
        self._former = self.incarnation if keeps_place else 0
        self._has_joined = keeps_place
        self.incarnation = new_incarnation()

    def join(self, cancelled: threading.Event | None = None) -> JoinAnswer:
        """Join, trying for ``patience`` seconds.

        Args:
            cancelled: set from outside to give up; None: that of the constructor.

        Raises:
            LearnerAwayError: the learner that this incarnation has joined did not answer; there are others.
            LearnerUnreachableError: nobody answered.
            StoppingError: ``cancelled`` was set.
            AuthenticationError: actor and learner do not trust each other. An actor that has joined before takes a
                handshake that fails for that of a learner which is away: its certificate may be replaced.
            CrossborderError: the learner refused for good, or its answer is not valid.
        """
        deadline, refused, unreached = Deadline(self._patience), Backoff(), Backoff(highest=UNREACHED_SECONDS)
        cancelled, logged = cancelled or self._cancelled, None
        while True:
            # 1. Try each endpoint once.
            is_unreached, reason = True, ""
            for endpoint in self._candidates():
                self._go_to(endpoint)
                self.refresh(anew=False)  # A learner may hang up until the actor's own certificate is another one.
                try:
                    return self._join_here(deadline)
                except ConnectionResetError as error:
                    reason = str(error)
                except grpc.RpcError as error:
                    reason = self._require_retry(error)
                    is_unreached &= error.code() is grpc.StatusCode.UNAVAILABLE
                if cancelled.is_set():
                    break
            # 2. Wait before the next round; longer for a learner that refuses, which is busy enough.
            place = self.endpoint.address if self._has_joined else ",".join(self._addresses)
            backoff, expired = unreached if is_unreached else refused, hint_at_expiry(self._trust.certificate)
            if cancelled.wait(min(backoff.next_delay(), deadline.remaining())):
                raise StoppingError(f"{place}: told to stop while looking for the learner")
            if deadline.passed():
                kind = LearnerAwayError if self._has_joined and self._has_choice() else LearnerUnreachableError
                hint = hint_at_server(self.endpoint.address, reason)
                raise kind(f"{place}: no learner for {self._patience:g} s: {reason}{hint}{expired}")
            if logged != expired:
                proxy, logged = name_proxy(self.endpoint.address), expired
                log.info("waiting for the learner at %s: %s%s%s", place, reason, proxy, expired)

    def _candidates(self) -> Sequence[Endpoint]:
        """The endpoints to try, in random order; once the incarnation has joined, only the endpoint that it joined."""
        if self._has_joined:
            return [self.endpoint]
        if self._found_until.passed():
            self._found, self._found_until = find_endpoints(self._addresses), Deadline(RESOLVE_SECONDS)
        return random.sample(self._found, len(self._found))

    def _has_choice(self) -> bool:
        """Whether a new incarnation could join elsewhere."""
        return any(endpoint != self.endpoint for endpoint in self._found)

    def _join_here(self, deadline: Deadline) -> JoinAnswer:
        """Join this learner, or the learner to which it leads the actor; try once.

        Raises:
            ConnectionResetError: it has ended since it answered, so that nobody knows whose it was.
        """
        leads = not (self._has_joined or self._former or self._wanted_id is not None)
        response, is_own_host = self._ask(deadline, takes_elsewhere=leads)
        if leads and response.elsewhere:
            response, is_own_host = self._ask_elsewhere(response.elsewhere, deadline)
        answer = read_join(response, is_own_host=is_own_host)
        self._doubt, self._has_joined, self._newest_life = "", True, (answer.run_id, answer.epoch)
        identify(run_id=answer.run_id, actor_id=answer.actor_id)
        return answer

    def _ask_elsewhere(self, elsewhere: str, deadline: Deadline) -> tuple[pb.JoinResponse, bool]:
        """Join the learner to which this one leads; if the actor may not or cannot, join this learner after all.

        An actor that evaluates can join only the other learner.
        """
        here, listed = self.endpoint, [split_address(address)[0] for address in self._addresses]
        try:
            self._go_to(follow(here, elsewhere, self._trust, listed))
            return self._ask(deadline, takes_elsewhere=False)
        except (ConnectionResetError, grpc.RpcError, CrossborderError) as error:
            if self._evaluates:
                raise
            reason = describe(error) if isinstance(error, grpc.RpcError) else str(error)
            log.warning("%s leads this actor to %a, but it stays: %s", here.address, elsewhere, reason)
            self._go_to(here)
            return self._ask(deadline, takes_elsewhere=False)

    def _ask(self, deadline: Deadline, *, takes_elsewhere: bool) -> tuple[pb.JoinResponse, bool]:
        """The learner's answer, and whether the learner is on this host, and this user's or root's."""
        self._trust.require_own_learner(self.endpoint.named)
        listened = is_listening(self.endpoint.named)
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self.incarnation,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            version=version("crossborder")[:32],
            former_incarnation=self._former,
            evaluates=self._evaluates,
            wanted_id=self._wanted_id,
            takes_elsewhere=takes_elsewhere,
            run_id=self._newest_life[0],
            epoch=self._newest_life[1],
        )
        timeout = min(JOIN_SECONDS, max(LEAST_JOIN_SECONDS, deadline.remaining()))
        response: pb.JoinResponse = self.stub.Join(request, timeout=timeout)
        return response, is_own_host(self.endpoint.named, listened=listened)

    def _require_retry(self, error: grpc.RpcError) -> str:
        """Raise the error of a call if no retry can help, else describe it; name the learner if there are several."""
        permanent = typed_error(error)
        if isinstance(permanent, HandshakeError) and self._newest_life[0]:
            if self._doubt != str(permanent):
                log.warning("%s: %s; waiting for another certificate", self.endpoint.address, permanent)
            self._doubt = str(permanent)
            return self._doubt
        if permanent is not None:
            place = f"{self.endpoint.address}: " if len(self._found) > 1 else ""
            raise type(permanent)(f"{place}{permanent}") from error
        return describe(error)

    def close(self) -> None:
        self._channel.close()


MAX_ADDRESS: Final = 300
"""Characters of an address that a learner names."""


def follow(here: Endpoint, elsewhere: str, trust: Trust, listed: Sequence[str]) -> Endpoint:
    """The endpoint to which the learner at ``here`` leads an actor, if the actor may follow.

    A learner on the actor's host may name any code, and a learner without TLS could be anybody. So a learner on the
    actor's host cannot lead the actor to another host, and a learner on another host cannot lead it to its own host.
    Without TLS, an actor follows only to hosts that its user has named. With TLS, it checks the certificate of the
    other learner as it checked that of the first.

    A learner that listens on all addresses is named by its host's name. An actor that has reached the first learner on
    loopback reaches the other learner of that host on loopback too.

    Raises:
        RefusedError: the actor may not go there.
        ConfigError: it is no HOST:PORT.
    """
    if len(elsewhere) > MAX_ADDRESS or not re.fullmatch(r"[\w.:\[\]-]+", elsewhere, re.ASCII):
        raise RefusedError(f"expected HOST:PORT of at most {MAX_ADDRESS} characters, found {elsewhere[:MAX_ADDRESS]!a}")
    host, port = split_address(elsewhere)
    if is_loopback(here.name) and host == socket.gethostname():
        host = here.name
    if is_loopback(host) != is_loopback(here.name):
        raise RefusedError("a learner on the actor's host may lead it only to this host, and others to other hosts")
    if not (trust.uses_tls(host) or is_loopback(host) or host in listed):
        raise RefusedError(f"without TLS an actor follows only to hosts that --learner names; name {host} there too")
    return Endpoint(join_address(host, port), host)
