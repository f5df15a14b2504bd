"""A relay: it stands between a learner and actors that are near each other, and fetches each model once for them.

Everything but models passes as bytes, with the caller's token, on one connection to the learner. So the learner alone
decides about callers and batches, and the relay keeps nothing that has to survive. It cannot tell callers from
strangers, so it bounds what all of them together can make it keep (``WaitingBytes``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from common.config.server_config import MOST_MESSAGE_BYTES, TlsConfig
from common.errors import ConfigError
from common.process.log import LogThrottle
from common.settings import HomePath, Settings
from common.wire.address import is_loopback, peer_address, split_address
from common.wire.channel import channel_options, path_of, read_certificates
from common.wire.owners import is_listening, is_own_host, is_strangers_peer
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import ERROR_KEY, describe, typed_error, version_from_pb
from common.wire.tls import hint_at_expiry
from common.wire.trust import Trust
from common.wire.waiting import Traffic, WaitingBytes
from crossborder.relaying.relayed_models import AcceptedTokens, Metadata, RelayedModels
from learner.ingest.limits import YieldingPlaces
from learner.ingest.server_options import MAX_CONNECTIONS_OPTION, SERVER_OPTIONS, listen

log = logging.getLogger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
CHECK_SECONDS: Final = 10.0
TICK_SECONDS: Final = 0.2
MESSAGE_SECONDS: Final = 60.0
"""The message of a call that has one must have come within this time."""
MAX_WAITING_BYTES: Final = 1 << 30
"""Of all callers' unfinished messages, and of messages that are being passed on in either direction."""
UNREACHED_LOGGED_EVERY: Final = 60.0
MAX_STRANGERS: Final = 1024
"""Calls with a token that the learner has not accepted yet, and health checks. One more ends an older one."""
MAX_CONNECTIONS, MAX_CALLS = 1024, 1024
"""Limits for callers: connections, and calls at one time on one connection."""
_ANSWERS: Final[dict[str, type[pb.JoinResponse | pb.CheckResponse]]] = {
    path_of("Join"): pb.JoinResponse,
    path_of("Check"): pb.CheckResponse,
}
"""The answers that say whether the learner is on another host."""
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_PASSED: Final = ("authorization",)
"""The callers' metadata that reach the learner."""
_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    (MAX_CONNECTIONS_OPTION, MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", MAX_CALLS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Nobody keeps others out by holding connections. A learner's end after the same time (``server.lost_seconds``).
    ("grpc.max_connection_idle_ms", 30_000),
)


class RelaySettings(Settings):
    """Where a relay listens, and for which learner."""

    learner: str
    listen: str
    trust: Trust
    """How the relay checks the learner; it sends no token of its own."""
    certificate: HomePath | None = None
    """Callers check the relay by this certificate."""
    key: HomePath | None = None
    client_ca: HomePath | None = None
    """Authorities that must have issued the callers' certificates; None: callers need none."""

    @property
    def tls(self) -> TlsConfig | None:
        """The files of callers' TLS; None: they come in the clear."""
        if self.certificate is None or self.key is None:
            return None
        return TlsConfig(certificate=self.certificate, key=self.key, client_ca=self.client_ca)

    def check(self) -> None:
        """Check that nobody on another host is let in by mistake.

        Raises:
            ConfigError: settings contradict each other, or somebody would be let in by mistake.
        """
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--listen-certificate and --listen-key: expected both or neither, found one of them")
        if self.client_ca is not None and self.certificate is None:
            raise ConfigError("--listen-client-ca: expected --listen-certificate and --listen-key beside it")
        if self.trust.token_file is not None:
            raise ConfigError("--token-file: expected none, since each actor sends its own token, found one")
        encrypted = self.trust.uses_tls(split_address(self.learner)[0])
        if is_loopback(split_address(self.listen)[0]) or self.trust.insecure:
            return
        if self.certificate is None:
            raise ConfigError(
                f"--listen {self.listen}: expected --listen-certificate and --listen-key for an address beyond "
                "loopback, or --insecure if that network is yours alone"
            )
        if not encrypted:
            raise ConfigError(
                f"--listen {self.listen}: expected a learner over TLS (--ca), which asks callers for tokens, found "
                f"{self.learner} in the clear: the relay would let everybody in"
            )


class Relay(grpc.GenericRpcHandler):
    """Serves ``LearnerService`` for another server of it."""

    def __init__(self, channel: grpc.aio.Channel, settings: RelaySettings) -> None:
        self._channel, self._settings = channel, settings
        self.port: int | None = None
        """Where the relay listens."""
        self._tokens, self._strangers = AcceptedTokens(self._check), YieldingPlaces(MAX_STRANGERS)
        self._models = RelayedModels(channel, self._tokens)
        self._waiting = WaitingBytes(MAX_WAITING_BYTES, "a relay's bound")
        self._unreached_log = LogThrottle(UNREACHED_LOGGED_EVERY)
        self._methods: dict[str, Callable[[AsyncIterator[bytes], Context, Traffic], Awaitable[None]]] = {
            path_of("PushItems"): self._push,
            path_of("GetModel"): partial(self._with_message, self._give_model),
            **{
                method: partial(self._with_message, partial(self._ask, method))
                for method in (path_of("Join"), path_of("Check"), _HEALTH)
            },
        }

    def listens_on(self, port: int) -> None:
        """Take note of the port on which the relay listens."""
        self.port = port
        self._waiting.serve_on(port)

    def tick(self) -> None:
        """Hang up connections while too many bytes wait; called a few times a second."""
        self._waiting.tick()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Serve each method as a stream, which is the same on the wire: so the relay knows whose message it reads."""
        method = handler_call_details.method
        serve = self._methods.get(method)
        if serve is None:
            return None
        connection: Traffic | None = None

        def note(message: bytes) -> bytes:
            assert connection is not None, "a message is read after its call has begun"
            connection.note_read(len(message))
            return message

        async def serve_stream(requests: AsyncIterator[bytes], context: Context) -> None:
            nonlocal connection
            connection = self._waiting.connection(context.peer(), peer_address(context.peer()), is_named=False)
            if method == _HEALTH:
                async with self._as_stranger(context):
                    await serve(requests, context, connection)
                return
            await self._require_accepted(context)
            await serve(requests, context, connection)

        return grpc.stream_stream_rpc_method_handler(serve_stream, note)

    @asynccontextmanager
    async def _as_stranger(self, context: Context) -> AsyncIterator[None]:
        """A context for a call whose token nobody knows; if too many are open, the address with most loses its oldest.

        So strangers make the relay and its learner keep little, and an actor's call waits for few of theirs.
        """
        loop, account = asyncio.get_running_loop(), peer_address(context.peer())
        scope = asyncio.timeout(None)
        try:
            async with scope:
                place = self._strangers.take(account, lambda: scope.reschedule(loop.time()))
                try:
                    yield
                finally:
                    self._strangers.release(place)
        except TimeoutError:
            reason = f"over the limit of {MAX_STRANGERS} calls that the learner has not accepted yet; try again later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, ((ERROR_KEY, "over_limit"),))

    async def _require_accepted(self, context: Context) -> None:
        """End a call whose token the learner does not accept, before anything of it is read."""
        metadata = _metadata_to_pass(context)
        if self._tokens.knows(metadata):
            return
        async with self._as_stranger(context):
            try:
                await self._tokens.require(metadata)
            except grpc.aio.AioRpcError as error:
                await self._refuse(context, error)

    async def _with_message(
        self,
        serve: Callable[[bytes, Context], AsyncIterator[bytes]],
        requests: AsyncIterator[bytes],
        context: Context,
        connection: Traffic,
    ) -> None:
        """Serve a call that has one message; the message waits until the answer has come."""
        try:
            async with asyncio.timeout(MESSAGE_SECONDS):
                request = await anext(aiter(requests), None)
        except TimeoutError:
            reason = f"expected the call's message within {MESSAGE_SECONDS:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a message, found the end of the call")
        with connection.writing(len(request)):
            async for answer in serve(request, context):
                with connection.writing(len(answer)):
                    await context.write(answer)

    async def _check(self, metadata: Metadata) -> bytes:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path_of("Check"))
        return await ask(pb.CheckRequest().SerializeToString(), metadata=metadata, timeout=CHECK_SECONDS)

    async def _ask(self, method: str, request: bytes, context: Context) -> AsyncIterator[bytes]:
        is_join = method == path_of("Join")
        try:
            if is_join:
                await self._require_own_user(context)
                request = _stay_here(request)
            listened = method in _ANSWERS and is_listening(self._settings.learner)
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
            answer = await ask(request, metadata=_metadata_to_pass(context), timeout=context.time_remaining())
            passed = self._read(method, answer, listened)
        except grpc.aio.AioRpcError as error:
            await self._refuse(context, error)
        except ConnectionResetError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method}: {error}")
        yield passed

    def _read(self, method: str, answer: bytes, listened: bool) -> bytes:
        """The learner's answer, which says whether that learner is on another host, or another user's on this host.

        The relay reads the whole answer and writes it anew. Bytes that it only appended could become part of a field
        that the learner has not finished.

        Raises:
            ConnectionResetError: the learner has ended since; ``listened`` says whether it listened before the call.
            DecodeError: the answer is no message of this method.
        """
        kind = _ANSWERS.get(method)
        if kind is None:
            return answer
        read = kind.FromString(answer)
        if isinstance(read, pb.JoinResponse):
            self._models.note_run(read.run_id)
        read.relayed |= not is_own_host(self._settings.learner, listened=listened)
        written: bytes = read.SerializeToString()
        return written

    async def _require_own_user(self, context: Context) -> None:
        """End a call of another user of this host, to whom the relay would lend its own user's access to the learner.

        Callers over TLS show their token to the learner.
        """
        settings = self._settings
        if settings.certificate is not None or settings.trust.insecure or self.port is None:
            return
        if await asyncio.to_thread(is_strangers_peer, context.peer(), self.port):
            reason = (
                "expected a caller of the relay's own user or of root, found another user of this host; give the relay "
                "a certificate (--listen-certificate), or --insecure if you trust all users of this host"
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason, ((ERROR_KEY, "other_user"),))

    async def _give_model(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            asked = pb.GetModelRequest.FromString(request)
            messages = await self._models.answer(asked, _metadata_to_pass(context))
        except grpc.aio.AioRpcError as error:
            await self._refuse(context, error)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"GetModel: {error}")
        except ValueError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the relay received a damaged model: {error}")
        for message in messages:
            yield message

    async def _push(self, requests: AsyncIterator[bytes], context: Context, connection: Traffic) -> None:
        """Pass the messages of a stream in both directions.

        The relay reads a message only after the other connection has taken the previous message, so backpressure
        reaches the actor as if it were connected to the learner.
        """
        push: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(path_of("PushItems"))
        call = push(metadata=_metadata_to_pass(context))
        sending = asyncio.create_task(_send(requests, call, connection))
        try:
            async for answer in call:
                self._models.note_newest(version_from_pb(pb.PushItemsResponse.FromString(answer).newest))
                await context.write(answer)
        except grpc.aio.AioRpcError as error:
            await self._refuse(context, error)
        finally:
            sending.cancel()
            call.cancel()

    async def _refuse(self, context: Context, error: grpc.aio.AioRpcError) -> None:
        """End a call as the learner has ended the relay's own, or because the relay does not reach the learner.

        In that case the caller can mend nothing, not even a certificate that does not verify: it may only come back.
        """
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            self._tokens.forget(_metadata_to_pass(context))
        kept, details = [entry for entry in error.trailing_metadata() or () if entry[0] == ERROR_KEY], error.details()
        if error.code() is grpc.StatusCode.UNAVAILABLE and not kept:
            reason = typed_error(error) or describe(error)
            details = f"the relay does not reach its learner at {self._settings.learner}: {reason}"
            kept = [(ERROR_KEY, "unreached")]
            if self._unreached_log.due() is not None:
                log.warning("%s%s", details, hint_at_expiry(self._settings.trust.certificate))
        await context.abort(error.code(), details or "", tuple(kept))


async def _send(
    requests: AsyncIterator[bytes], call: grpc.aio.StreamStreamCall[bytes, bytes], connection: Traffic
) -> None:
    """Pass a caller's messages on, and its end. If the learner ends the call first, ``Relay._push`` hears of it."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async for request in requests:
            with connection.writing(len(request)):
                await call.write(request)
        await call.done_writing()


def _stay_here(request: bytes) -> bytes:
    """The request to join without the offer to go to another rank: the caller may not be able to reach that rank."""
    join = pb.JoinRequest.FromString(request)
    if not join.takes_elsewhere:
        return request
    join.takes_elsewhere = False
    return join.SerializeToString()


def _metadata_to_pass(context: Context) -> Metadata:
    return [(key, value) for key, value in context.invocation_metadata() or () if key in _PASSED]


def _open_channel(settings: RelaySettings) -> grpc.aio.Channel:
    trust, target, options = settings.trust, f"dns:///{settings.learner}", channel_options(settings.learner)
    if not trust.uses_tls(split_address(settings.learner)[0]):
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, read_certificates(trust), options)


async def relay(settings: RelaySettings, stopped: asyncio.Event, tell: Callable[[str], None]) -> None:
    """Serve until ``stopped`` is set.

    Args:
        settings: checked already.
        stopped: ends the relay; the callers' streams break, and the actors find the relay or its successor again.
        tell: takes HOST:PORT when the relay listens.

    Raises:
        AddressError: the address is taken.
        ConfigError: a certificate cannot be read.
    """
    async with _open_channel(settings) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        served = Relay(channel, settings)
        server.add_generic_rpc_handlers((served,))
        address, port = listen(server, [settings.listen], settings.tls)
        served.listens_on(port)
        await server.start()
        tell(address)
        while not stopped.is_set():
            served.tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await stopped.wait()
        await server.stop(None)
