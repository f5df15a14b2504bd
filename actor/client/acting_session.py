"""A session at an acting service: this process steps environments, and the service chooses the actions.

The session outlives broken connections: it is resumed, and the steps whose actions have not arrived are sent again.
``acting.proto`` has the rules.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc

from common.errors import ConfigError, CrossborderError, LearnerUnreachableError, ProtocolMismatchError, RefusedError
from common.process.clocks import Backoff, Deadline
from common.process.signals import NOTICE_SECONDS
from common.wire.acting_payloads import VERSION, Description
from common.wire.channel import hint_at_server, open_channel, watch_credentials
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from common.wire.rpc import (
    QUESTION_SECONDS,
    SLOWEST_LINK,
    HandshakeError,
    SessionLostError,
    StoppingError,
    describe,
    typed_error,
)
from common.wire.tls import hint_at_expiry
from common.wire.trust import ServiceTrust

log = logging.getLogger(__name__)
QUIET_SECONDS: Final = 10.0
"""While no action has come for so long, the service is asked whether it is there."""
SPARE: Final = 6
"""Messages of a stream beside one for each lane: the first one, a report, ``close``, and marks of ends."""
ResultT = TypeVar("ResultT")


class NoAnswerError(CrossborderError):
    """The service has not answered within the time that the caller gave it; it may answer later."""


class SessionEndedError(CrossborderError):
    """The service has ended the session, and its lanes' episodes with it. Another session can be opened."""


class ActingSession:
    """The lanes of this process at an acting service.

    Not thread-safe, except ``wake`` and ``close``: the acting thread uses it.

    Args:
        address: of the service, HOST:PORT.
        trust: how to check the service, and what to prove to it.
        patience: seconds to look for the service, at the start and after a broken connection.
        stopped: ends all waits; see ``wake``.
        policy: the name of the policy that acts; empty: the first one of the service.

    Raises:
        ConfigError: ``address`` is no HOST:PORT, a file of ``trust`` cannot be read, or its settings contradict each
            other.
    """

    def __init__(
        self, address: str, trust: ServiceTrust, patience: float, stopped: threading.Event, policy: str = ""
    ) -> None:
        self._address, self._trust, self._patience, self._stopped = address, trust, patience, stopped
        self._policy = policy
        self._credentials = watch_credentials(address, trust)
        self._open_channel(apart=False)
        self._backoff = Backoff()
        self._away: Deadline | None = None
        """When the patience is over; None while there is a connection."""
        self._doubt = ""
        """Why the present certificate of the service is not trusted."""
        self._has_stopped = False
        """Whether the service has said that it shuts down, and no other one has answered since."""
        self._secret = ""
        """Of the session; empty while there is none."""
        self._n_lanes = 0
        self._last_seq = 0
        self._described = pb.DescribeResponse()
        self._unanswered = deque[pb.LaneSteps]()
        """The oldest first; a lane is in one of them at most."""
        self._stream: _Stream | None = None
        self._quiet_until = Deadline(QUIET_SECONDS)
        """Until when an action may be awaited before the service is asked whether it is there."""
        self._question: Any = None
        """Asks that."""
        self._opening: tuple[_Stream, Deadline] | None = None
        """A stream that has not opened the session yet, and until when it may."""

    def _open_channel(self, *, apart: bool) -> None:
        self._opened_with = self._credentials.get()
        self._channel = open_channel(self._address, self._opened_with, apart=apart)
        self._stub = pb_grpc.ActingServiceStub(self._channel)

    def describe(self) -> pb.DescribeResponse:
        """Ask the service for the spaces of the policy, and for its limits.

        Raises:
            ProtocolMismatchError: the service speaks another version.
            BadMessageError: it has no policy of this name.
            CrossborderError: see ``answer``.
        """
        request = pb.DescribeRequest(policy=self._policy)
        self._described = self._try(lambda: self._stub.Describe(request, timeout=QUESTION_SECONDS), None)
        if (found := self._described.protocol_version) != VERSION:
            raise ProtocolMismatchError(f"{self._address}: expected version {VERSION} of acting.proto, found {found}")
        return self._described

    def require_fit(self, description: Description, n_lanes: int, name: str) -> None:
        """Compare environments with what the service has described.

        Raises:
            SchemaMismatchError: they have other spaces.
            ConfigError: they have more lanes, or larger observations, than the service takes.
        """
        description.require_same(self._described, name)
        limits = self._described.limits
        if n_lanes > limits.max_lanes:
            raise ConfigError(f"lanes: expected at most {limits.max_lanes}, max_lanes of the service, found {n_lanes}")
        if (n_bytes := description.step_bytes(n_lanes)) > limits.max_message_bytes:
            raise ConfigError(
                f"lanes: expected steps of at most {limits.max_message_bytes} bytes, max_message_bytes of the service, "
                f"found {n_bytes} for {n_lanes} lanes; raise it there, or take fewer lanes"
            )

    def open(self, n_lanes: int) -> int:
        """Open a session, the first one or in the place of one that was lost; return the seed of its first lane."""
        self._n_lanes, self._last_seq = n_lanes, 0
        self._unanswered.clear()
        opened = self._connect(None)
        self._secret = opened.secret
        return int(opened.seed)

    def ask(self, step: pb.LaneSteps) -> None:
        """Ask for the actions of lanes, none of which waits for one already; does not wait, and gives ``step`` its seq.

        Connections may break meanwhile: ``answer`` sends the step again.
        """
        self._last_seq += 1
        step.seq = self._last_seq
        if not self._unanswered:
            self._be_quiet()
        self._unanswered.append(step)
        if self._stream is not None:
            self._stream.send(pb.ActRequest(step=step))

    def report(self, report: Mapping[str, Any], *, is_last: bool) -> bool:
        """Tell the service the fields of a ``ClientReport``; does not wait. False if it cannot be told now.

        A report stays back while steps wait to be sent, unless it is the last one, after which ``close`` follows.
        """
        if self._stream is None or not (is_last or self._stream.is_idle):
            return False
        self._stream.send(pb.ActRequest(report=pb.ClientReport(**report)))
        return True

    @property
    def waits(self) -> bool:
        """Whether a step has no answer yet."""
        return bool(self._unanswered)

    def answer(self, seconds: float | None = None) -> pb.LaneActions:
        """Wait for the answer to the oldest step that has none.

        Args:
            seconds: for which to wait; None: as long as there is a connection, and for ``patience`` without one.

        Raises:
            NoAnswerError: ``seconds`` are over.
            SessionEndedError: the session has ended.
            StoppingError: ``stopped`` was set, or the service shut down and none came back within ``patience``.
            LearnerUnreachableError: no service answered within ``patience``.
            AuthenticationError: this host and the service do not trust each other.
            CrossborderError: the service refused for good.
        """
        deadline = None if seconds is None else Deadline(seconds)
        while True:
            if self._stream is None:
                self._connect(deadline)
            assert self._stream is not None, "it is connected"
            # ``wake`` comes after ``stopped`` was set: either this look sees it, or ``wake`` sees this stream.
            self._require_going_on(None)
            heard = self._stream.hear(deadline)
            if isinstance(heard, pb.ActResponse):
                self._backoff.reset()
                self._be_quiet()
                return self._check(heard)
            if heard is not None:
                self._break(heard, deadline)
            elif self._is_silent():
                self._stream.end()
                self._break(ConnectionResetError("the service answers nothing any more"), deadline)
            else:
                self._require_going_on(deadline)

    def _be_quiet(self) -> None:
        """Ask the service nothing for a while: it has shown that it is there, or has just been asked for an action."""
        self._quiet_until, self._question = Deadline(QUIET_SECONDS), None

    def _is_silent(self) -> bool:
        """Whether the service answers nothing at all, as a process that is stopped; its connection seems whole then.

        Actions may be late, since a learner may hold its actors back for a long time. So the service is asked something
        else, which it answers at once; the question may have to wait until the steps have travelled.
        """
        if self._question is None and self._quiet_until.passed():
            seconds = QUESTION_SECONDS + sum(step.ByteSize() for step in self._unanswered) / SLOWEST_LINK
            self._question = self._stub.Describe.future(pb.DescribeRequest(), timeout=seconds)
        if self._question is None or not self._question.done():
            return False
        is_silent = self._question.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        self._be_quiet()
        return is_silent

    def _check(self, response: pb.ActResponse) -> pb.LaneActions:
        expected = self._unanswered.popleft().seq
        found = response.action.seq if response.WhichOneof("response") == "action" else None
        if found != expected:
            raise RefusedError(f"{self._address}: expected the answer to step {expected}, found {found}")
        return response.action

    def _require_going_on(self, deadline: Deadline | None) -> None:
        if self._stopped.is_set():
            raise StoppingError("told to stop while waiting for an action")
        if deadline is not None and deadline.passed():
            raise NoAnswerError(f"{self._address}: no action has come in time")

    def _connect(self, deadline: Deadline | None) -> pb.SessionOpened:
        """Open or resume the session on another stream, and send the steps without an answer again."""
        opened = self._try(lambda: self._open_stream(deadline), deadline)
        assert self._stream is not None, "it is connected"
        self._be_quiet()
        for step in self._unanswered:
            self._stream.send(pb.ActRequest(step=step))
        return opened

    def _open_stream(self, deadline: Deadline | None) -> pb.SessionOpened:
        """Open or resume the session on another stream; try once.

        Raises:
            NoAnswerError: ``deadline`` has passed; the next call goes on with the same stream.
            RpcError: the service did not answer, or refused.
        """
        if self._opening is None:
            if self._secret:
                first = pb.ActRequest(resume=pb.ResumeSession(secret=self._secret))
            else:
                first = pb.ActRequest(open=pb.OpenSession(lanes=self._n_lanes, policy=self._policy))
            self._opening = _Stream(self._stub, first, self._n_lanes), Deadline(QUESTION_SECONDS)
        stream, end = self._opening
        heard = stream.hear(end if deadline is None or end.remaining() < deadline.remaining() else deadline)
        if heard is None and not end.passed():
            self._require_going_on(deadline)
        self._opening = None
        if isinstance(heard, grpc.RpcError):
            raise heard
        if heard is None or heard.WhichOneof("response") != "opened":
            stream.end()
            raise ConnectionResetError("the service does not answer" if heard is None else "no session was opened")
        self._stream = stream
        return heard.opened

    def _try(self, attempt: Callable[[], ResultT], deadline: Deadline | None) -> ResultT:
        """The result of a call, which is tried until the service answers."""
        while True:
            self._refresh()
            self._trust.require_own_learner(self._address)
            try:
                result = attempt()
            except (grpc.RpcError, ConnectionResetError) as error:
                self._note_failure(error)
            else:
                if self._away is not None:
                    log.info("connected to the acting service at %s", self._address)
                self._away, self._has_stopped, self._doubt = None, False, ""
                return result
            self._wait(deadline)

    def _refresh(self) -> None:
        """Open another channel if certificates have changed."""
        if self._credentials.get() is not self._opened_with:
            self._reopen_channel()

    def _reopen_channel(self) -> None:
        self._channel.close()
        self._open_channel(apart=True)

    def _break(self, error: grpc.RpcError | ConnectionResetError, deadline: Deadline | None) -> None:
        """Note that the stream has ended, and wait for a moment, as ``acting.proto`` asks for."""
        self._stream = None
        self._note_failure(error)
        self._wait(deadline)

    def _note_failure(self, error: grpc.RpcError | ConnectionResetError) -> None:
        """Take note of a failure after which the service may be back.

        Raises:
            LearnerUnreachableError: the patience is over.
            StoppingError: it is over, and the service had said that it shut down.
            SessionEndedError: the session has ended.
            CrossborderError: no retry can help.
        """
        reason = describe(error) if isinstance(error, grpc.RpcError) else str(error)
        typed = typed_error(error, self._trust.PEER) if isinstance(error, grpc.RpcError) else None
        if isinstance(typed, StoppingError):
            self._has_stopped = True
        elif isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._forget()
            raise RefusedError(f"{self._address}: expected an acting service (policy-server), found another server")
        elif isinstance(typed, HandshakeError) and self._described.protocol_version:
            reason = str(typed)  # This service has answered before: its certificate may be replaced.
            if self._doubt != reason:
                log.warning("%s: %s; waiting for another certificate", self._address, reason)
            self._doubt = reason
        elif typed is not None and not isinstance(typed, SessionLostError):
            self._forget()
            raise type(typed)(f"{self._address}: {typed}") from error
        if self._away is None:
            self._away = Deadline(self._patience)
            expired = hint_at_expiry(self._trust.certificate)
            log.info("waiting for the acting service at %s: %s%s", self._address, reason, expired)
        if isinstance(error, ConnectionResetError) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._reopen_channel()  # gRPC keeps a connection on which nothing comes for a minute.
        if self._away.passed():
            if self._has_stopped:
                raise StoppingError(
                    f"{self._address}: the acting service has shut down, and none came back for {self._patience:g} s"
                )
            reason += hint_at_server(self._address, reason) + hint_at_expiry(self._trust.certificate)
            raise LearnerUnreachableError(f"{self._address}: no acting service for {self._patience:g} s: {reason}")
        if self._secret and isinstance(typed, SessionLostError | StoppingError):
            self._forget()
            raise SessionEndedError(str(typed))

    def _wait(self, deadline: Deadline | None) -> None:
        """Wait before the next try."""
        assert self._away is not None, "a try has failed"
        seconds = min(self._backoff.next_delay(), self._away.remaining())
        self._stopped.wait(seconds if deadline is None else min(seconds, deadline.remaining()))
        self._require_going_on(deadline)

    def wake(self) -> None:
        """Have ``answer`` look at ``stopped``; from any thread."""
        if (stream := self._stream) is not None:
            stream.wake()
        if (opening := self._opening) is not None:
            opening[0].wake()

    def close(self, last: pb.LaneSteps | None, seconds: float) -> int:
        """End the session, also if ``stopped`` is set; from any thread, if no other one uses it any more.

        If the connection is broken and the service may not know how all steps went, the session is resumed once more.

        Args:
            last: tells how the last steps went; its actions have no meaning.
            seconds: for which to look for the service, and to wait until it has ended the session.

        Returns:
            How many steps the service may not know, at most: where an episode begins, no step was before.
        """
        deadline = Deadline(seconds)
        self._stopped = threading.Event()  # It has ended the acting. Only ``deadline`` ends the waits from here on.
        if last is not None:
            self.ask(last)
        n_steps = sum(len(step.reward) for step in self._unanswered)
        if self._close_stream(deadline) or (n_steps and self._resume_to_close(n_steps, deadline)):
            n_steps = 0
        self._forget()
        self._channel.close()
        return n_steps

    def _close_stream(self, deadline: Deadline) -> bool:
        """Close the session on the present stream; whether the service has taken all that was sent, and ended it."""
        stream, self._stream = self._stream, None
        if stream is None:
            return False
        stream.send(pb.ActRequest(close=pb.CloseSession()))
        is_closed = stream.finish(deadline)
        stream.end()
        return is_closed

    def _resume_to_close(self, n_steps: int, deadline: Deadline) -> bool:
        """Resume the session, if there is one, and close it; whether the service has taken all steps."""
        if not self._secret or deadline.passed():
            return False
        log.info("resuming the session once more: the acting service may not know how up to %d steps went", n_steps)
        try:
            self._connect(deadline)
        except CrossborderError as error:
            log.info("%s", error)
            return False
        return self._close_stream(deadline)

    def _forget(self) -> None:
        """Forget the session, which is over, and its steps."""
        self._secret = ""
        self._unanswered.clear()


class _Stream:
    """One connection of a session.

    A thread hears the answers, and gRPC pulls the requests out of a queue. The service answers each step once, so
    neither queue ever holds more than a message for each lane and a few others; a service that sends more waits.
    """

    def __init__(self, stub: pb_grpc.ActingServiceStub, first: pb.ActRequest, n_lanes: int) -> None:
        self._outbox = queue.Queue[pb.ActRequest | None](n_lanes + SPARE)
        self._inbox = queue.Queue[pb.ActResponse | grpc.RpcError | None](n_lanes + SPARE)
        self._outbox.put_nowait(first)
        self._call = stub.Act(iter(self._outbox.get, None))
        self._has_ended = threading.Event()
        threading.Thread(target=self._listen, name="answers", daemon=True).start()

    def _listen(self) -> None:
        try:
            for response in self._call:
                self._inbox.put(response)
            self._inbox.put(_Ended())
        except grpc.RpcError as error:
            self._inbox.put(error)
        finally:
            self._has_ended.set()
            with suppress(queue.Full):
                self._outbox.put_nowait(None)  # gRPC's thread waits for requests; a full queue does not let it wait.

    def send(self, request: pb.ActRequest) -> None:
        """Send a request; does not wait."""
        self._outbox.put_nowait(request)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits to be sent."""
        return self._outbox.empty()

    def hear(self, deadline: Deadline | None) -> pb.ActResponse | grpc.RpcError | None:
        """Wait for the next answer, or for the end of the stream.

        None if ``deadline`` has passed or ``wake`` came; without a deadline, also after ``NOTICE_SECONDS``.
        """
        try:
            return self._inbox.get(timeout=NOTICE_SECONDS if deadline is None else deadline.remaining())
        except queue.Empty:
            return None

    def wake(self) -> None:
        """End the present or the next ``hear``."""
        with suppress(queue.Full):  # Then it does not wait.
            self._inbox.put_nowait(None)

    def finish(self, deadline: Deadline) -> bool:
        """Wait until the service has ended the stream in order; False if it has not."""
        while not deadline.passed():
            heard = self.hear(deadline)
            if isinstance(heard, grpc.RpcError):
                return isinstance(heard, _Ended)
        return False

    def end(self) -> None:
        """End the stream at once."""
        self._call.cancel()
        while not self._has_ended.is_set():  # The thread may wait for room.
            with suppress(queue.Empty):
                self._inbox.get(timeout=0.1)


class _Ended(grpc.RpcError):
    """The service has ended the stream in order."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def details(self) -> str:
        return "the service has ended the stream"

    def trailing_metadata(self) -> tuple[()]:
        return ()
