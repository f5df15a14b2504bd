"""One connection of a session, through whichever door it came: requests in, answers out, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError, SessionLostError
from crossborder.serving.client_steps import Request
from crossborder.serving.session import Session
from crossborder.serving.sessions import Sessions

MessageT = TypeVar("MessageT")
"""As a door brings it."""


class Connection:
    """Begins with ``open`` or ``resume``. A task reads steps while earlier ones are answered.

    The client may send steps whose answers it does not read until these have an action for each lane of its session.
    Beyond that, reading waits, and with it the client: neither steps nor answers are kept without a bound.

    Args:
        sessions: of the service.
        owner: the name of the client's token; empty without tokens.
        door: through which it came, for people.
    """

    def __init__(self, sessions: Sessions, owner: str, door: str) -> None:
        self._sessions, self._owner, self._door = sessions, owner, door
        self._session: Session | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers = asyncio.Queue[pb.ActResponse | None]()
        """In the order of the steps, bounded by ``_named``; None: it may be that no further one comes."""
        self._named, self._n_named = deque[int](), 0
        """How many lanes each step names whose answer is not written yet, and the sum."""
        self._has_written = asyncio.Event()
        self._was_taken_over = False

    def begin(self, request: Request | pb.DescribeRequest) -> pb.ActResponse:
        """Open or resume the session that the first request asks for."""
        self._sessions.require_open()
        match request:
            case pb.OpenSession():
                secret, session = self._sessions.open(request.lanes, self._owner, request.policy)
            case pb.ResumeSession():
                secret, session = request.secret, self._sessions.find(request.secret, self._owner)
            case _:
                raise BadMessageError(f"expected open or resume as the first request, found {_name(request)}")
        self._session = session
        self._hang_up, self._tell = self._take_over, self._answers.put_nowait
        session.door = self._door
        self._sessions.connect(session, self._hang_up)  # The same object as in ``disconnect``, which compares it.
        opened = pb.SessionOpened(secret=secret, lanes=len(session.lanes), seed=session.seed, last_seq=session.last_seq)
        opened.policy = session.policy.name
        return pb.ActResponse(opened=opened)

    @property
    def description(self) -> Description:
        """Of the session's observations and actions, once the connection has begun."""
        assert self._session is not None, "a connection begins first"
        return self._session.policy.description

    async def talk(
        self,
        messages: AsyncIterator[MessageT],
        read: Callable[[MessageT], Request],
        write: Callable[[pb.ActResponse], Awaitable[None]],
    ) -> None:
        """Answer all further requests, until the client closes its session or ends the connection.

        Raises:
            CrossborderError: a request was refused, or the session has ended or has another connection.
        """
        assert self._session is not None, "a connection begins first"
        self._reader = asyncio.create_task(self._read(self._session, messages, read))
        self._reader.add_done_callback(lambda _: self._answers.put_nowait(None))
        while not self._was_taken_over and not (self._reader.done() and not self._named):
            answer = await self._answers.get()
            if answer is not None:
                await write(answer)
                self._n_named -= self._named.popleft()
                self._has_written.set()
        if self._was_taken_over:
            self._sessions.require_open()
            raise SessionLostError("this connection has lost its session: it ended, or another connection resumed it")
        await self._reader

    async def _read(
        self, session: Session, messages: AsyncIterator[MessageT], read: Callable[[MessageT], Request]
    ) -> None:
        async for message in messages:
            request = read(message)
            if isinstance(request, pb.CloseSession):
                self._sessions.disconnect(session, self._hang_up)
                self._sessions.close(session)
                return
            if isinstance(request, pb.ClientReport):
                session.policy.note_report(request)
                continue
            if request is None or isinstance(request, pb.OpenSession | pb.ResumeSession):
                raise BadMessageError(f"expected step, report or close, found {_name(request)}")
            n = len(session.lanes)
            n_named = min(len(request.lanes) or n, n)  # Of a step that names more lanes, ``take`` says that it may not.
            while self._n_named + n_named > n:
                self._has_written.clear()
                await self._has_written.wait()
            session.take(request, self._tell)
            self._named.append(n_named)
            self._n_named += n_named

    def _take_over(self) -> None:
        """End this connection: its session has ended, or has another connection."""
        self._was_taken_over = True
        if self._reader is not None:
            self._reader.cancel()
        self._answers.put_nowait(None)

    def end(self) -> None:
        """The connection is gone; its session stays for ``resume_seconds``."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader.add_done_callback(_forget)
        if self._session is not None:
            self._sessions.disconnect(self._session, self._hang_up)


def _name(request: object) -> str:
    return "nothing" if request is None else type(request).__name__


def _forget(reader: asyncio.Task[None]) -> None:
    """Take note of an error that nobody can be told any more: the client has gone before it was told."""
    if not reader.cancelled():
        reader.exception()
