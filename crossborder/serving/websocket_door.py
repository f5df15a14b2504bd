"""The door for game engines and browsers, which speak WebSocket: the same sessions, tokens and limits as by gRPC."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Origin

from common.errors import AddressError, CrossborderError
from common.process.log import LogThrottle
from common.wire.address import join_address, name_peer, split_address
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import RunOverError, StoppingError
from common.wire.tokens import authorization
from crossborder.serving.acting_service import HEALTH_PATH, STOP_SECONDS, ActingService
from crossborder.serving.connection import Connection
from crossborder.serving.strangers import LEAST_STRANGERS, StrangersListener
from crossborder.serving.websocket_messages import (
    FirstRequest,
    SessionMessages,
    most_bytes,
    read_first,
    tell_description,
    write,
)
from learner.ingest.admission import REFUSALS_LOGGED_EVERY, Admission, OpenCalls
from learner.ingest.gate import CLIENT_METHODS, Caller, Gate
from learner.ingest.refusals import (
    OverLimitError,
    TokenReplacedError,
    UnauthenticatedError,
    message_of,
    status_of,
)
from learner.records.exposition import watch_tls

log = logging.getLogger(__name__)
METHOD: Final = f"{CLIENT_METHODS}Act"
"""Under this name, the gate and the limits know a connection: as the stream that it would be by gRPC."""
CLOSE_SECONDS: Final = 0.5
"""The time in which a client answers the end of its connection."""
MOST_OPENING: Final = 1 << 13
"""Bytes of a message before a session."""
_CLOSE_CODES: Final = {RunOverError: 1000, StoppingError: 1001, TokenReplacedError: 1012, OverLimitError: 1013}
"""Of ends that are no fault of the client (RFC 6455, section 7.4, and IANA's list); all others are 1008."""


class WebSocketDoor:
    """Brings the messages of WebSocket to ``sessions``."""

    def __init__(self, service: ActingService, gate: Gate, admission: Admission) -> None:
        self._service, self._gate, self._admission = service, gate, admission
        self._config, self._limits = service.config, service.limits
        self._listener: StrangersListener
        self._open = OpenCalls(gate, service.limits)
        self._strangers_log = LogThrottle(REFUSALS_LOGGED_EVERY)
        self._hang_ups_log = LogThrottle(REFUSALS_LOGGED_EVERY)
        self._most_strangers = max(LEAST_STRANGERS, self._config.max_sessions)
        self._tasks = set[asyncio.Task[None]]()
        """Of the connections that have begun with a session."""

    @asynccontextmanager
    async def opened(self, address: str) -> AsyncIterator[str]:
        """A context in which the door is open; yields HOST:PORT.

        Raises:
            AddressError: the address is taken.
            ConfigError: a certificate cannot be read.
        """
        connections = logging.getLogger(f"{__name__}.connections")
        connections.setLevel(logging.WARNING)  # Clients come and go.
        connections.addFilter(_is_fault)
        origins: list[Origin | None] = [None, *map(Origin, self._config.origins)]
        tls = self._make_tls()
        try:
            self._listener = StrangersListener(
                *split_address(address), self._config.silence_seconds, self._most_strangers, self._note_hang_up
            )
        except OSError as error:
            raise AddressError(f"{address}: cannot listen there: {error.strerror}; name another port") from error
        server = await serve(
            self._serve,
            sock=self._listener,
            ssl=tls,
            origins=origins,
            process_request=self._admit,
            compression=None,  # Small messages grow by it, and a small message may unpack to a huge one.
            max_size=MOST_OPENING,
            max_queue=1,
            ssl_handshake_timeout=None if tls is None else self._service.handshake_seconds,
            open_timeout=self._service.handshake_seconds,
            # A game answers pings and the end of the connection only while it waits for an action.
            ping_timeout=self._config.silence_seconds,
            close_timeout=CLOSE_SECONDS,
            logger=connections,
            server_header=None,
        )
        async with server:
            self._gate.port = self._listener.getsockname()[1]
            try:
                yield join_address(split_address(address)[0], self._gate.port)
            finally:
                if self._tasks:  # Sessions end before their service. Their tasks tell the clients before it closes.
                    await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
                # The server waits for every connection, also for those whose client reads nothing.
                asyncio.get_running_loop().call_later(2 * CLOSE_SECONDS, self._listener.hang_up)

    def tick(self) -> None:
        """End the connections whose token is no longer valid; called a few times a second."""
        self._gate.names()
        self._open.tick()

    def _make_tls(self) -> ssl.SSLContext | None:
        """TLS whose certificate is read again when its file changes: each handshake asks for the present one."""
        if self._config.tls is None:
            return None
        watched = watch_tls(self._config.tls)
        context = watched.get()

        def use_present(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = watched.get()

        context.sni_callback = use_present
        return context

    def _admit(self, socket: ServerConnection, request: HttpRequest) -> Response | None:
        if request.path == HEALTH_PATH:  # For a load balancer before this door.
            if self._service.sessions.is_stopping:
                return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "not serving\n")
            return socket.respond(HTTPStatus.OK, "serving\n")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        as_text, caller = True, None
        try:
            message = await self._read_in_time(socket)
            as_text = isinstance(message, str)
            token, request = read_first(message)
            caller = self._identify(socket, token)
            await self._gate.require_own_user(caller)
            self._listener.release(socket.remote_address)
            async with self._open.serving(caller):
                await self._talk(socket, caller, request, as_text=as_text)
        except ConnectionClosed as error:
            log.debug("a connection has ended: %s", error)
        except CrossborderError as error:
            self._note(socket, caller, error)
            await self._refuse(socket, error, as_text=as_text)

    async def _read_in_time(self, socket: ServerConnection) -> str | bytes:
        """A message before a session."""
        try:
            async with asyncio.timeout(self._service.handshake_seconds):
                return await socket.recv()
        except TimeoutError:
            raise self._limits.count_refusal("handshake_seconds") from None

    def _identify(self, socket: ServerConnection, token: object) -> Caller:
        """The caller that has sent this token; a caller without any sends an empty one."""
        peer = name_peer(*socket.remote_address[:2])
        try:
            return self._gate.identify(METHOD, [authorization(token if isinstance(token, str) else "")], peer)
        except UnauthenticatedError:
            self._admission.note_stranger(METHOD, peer)
            raise

    async def _talk(self, socket: ServerConnection, caller: Caller, request: FirstRequest, *, as_text: bool) -> None:
        if isinstance(request, pb.DescribeRequest):
            described = self._service.describe(request)
            await socket.send(write(tell_description(described), as_text=as_text))
            _, request = read_first(await self._read_in_time(socket))
        connection = Connection(self._service.sessions, caller.name, "WebSocket")
        try:
            opened, description = connection.begin(request), connection.description
            task = asyncio.current_task()
            assert task is not None, "the server makes a task for each connection"
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            _bound(socket, min(self._config.max_message_bytes, most_bytes(description, opened.opened.lanes)))
            messages = SessionMessages(description, as_text=as_text)

            async def tell(answer: pb.ActResponse) -> None:
                await socket.send(messages.write(answer))

            await tell(opened)
            await connection.talk(aiter(socket), messages.read, tell)
        finally:
            connection.end()

    def _note(self, socket: ServerConnection, caller: Caller | None, error: CrossborderError) -> None:
        """Count, note and log a refusal. Strangers get one line in ten seconds, however many come.

        ``Admission`` notes and logs that of a known caller, and has done so for a stranger's token already.
        """
        name, message = status_of(error)[1], message_of(error)
        self._service.figures.refused[name] += 1
        if caller is not None:
            self._admission.note_refusal(caller, error)
        elif not isinstance(error, UnauthenticatedError) and (missed := self._strangers_log.due()) is not None:
            log.warning("%s, from %s: %s (%d more before it)", name, socket.remote_address[0], message, missed)

    def _note_hang_up(self, address: str) -> None:
        self._limits.count_refusal("strangers")
        if (missed := self._hang_ups_log.due()) is not None:
            log.warning(
                "a connection from %s is ended before it has said who calls, since %d others have not either (%d more "
                "before it); if clients of yours come all at once, raise max_sessions, else close the port to them",
                address,
                self._most_strangers,
                missed,
            )

    async def _refuse(self, socket: ServerConnection, error: CrossborderError, *, as_text: bool) -> None:
        """Tell the client why its connection ends, and end it."""
        name, message = status_of(error)[1], message_of(error)
        try:
            await socket.send(write({"error": {"name": name, "message": message}}, as_text=as_text))
        except ConnectionClosed:
            log.debug("the client has gone before it was told")
        await socket.close(_CLOSE_CODES.get(type(error), 1008), name)


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether a record tells of a fault. websockets takes a client for one that sends more than a refused request."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ConnectionClosed):  # What websockets raises of such a client until its release 16.
        return False
    protocol = getattr(getattr(record, "websocket", None), "protocol", None)
    is_refused = protocol is not None and protocol.state is State.CONNECTING and protocol.eof_sent
    return not (is_refused and isinstance(error, AssertionError))


def _bound(socket: ServerConnection, n_bytes: int) -> None:
    """Bound the messages to come. A longer one ends the connection as soon as its size is announced (1009)."""
    for name in ("max_size", "max_message_size"):  # Until websockets 15, and since.
        setattr(socket.protocol, name, n_bytes)
