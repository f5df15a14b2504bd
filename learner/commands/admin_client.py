"""A client of a running learner's ``AdminService``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import grpc
from google.protobuf.message import Message

from common.errors import AuthenticationError, LearnerUnreachableError, RefusedError
from common.process.log import escape
from common.wire.channel import hint_at_server, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import QUESTION_SECONDS, describe, typed_error
from common.wire.tokens import ADMIN_VARIABLE
from common.wire.trust import Trust
from learner.commands.fleet_table import ActorView, FleetView
from learner.ingest.cordons import Selection

AnswerT = TypeVar("AnswerT")


class AdminTrust(Trust):
    """How an admin and a learner trust each other: the admin proves itself by an admin's token."""

    TOKEN_VARIABLE: ClassVar[str] = ADMIN_VARIABLE


class AdminClient:
    """A connection of an admin to a learner.

    Raises:
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """

    def __init__(self, address: str, trust: AdminTrust) -> None:
        self._address = address
        self._channel = open_channel(address, watch_credentials(address, trust).get())
        self._stub = pb_grpc.AdminServiceStub(self._channel)

    def fetch_status(self) -> FleetView:
        """Ask for the state of the run and of its actors.

        Raises:
            AuthenticationError: the admin and the learner do not trust each other.
            RefusedError: the learner answers no admins.
            LearnerUnreachableError: the learner does not answer within ``QUESTION_SECONDS``.
        """
        with self._translating_errors():
            return _fleet_view(self._stub.Status(pb.StatusRequest(), timeout=QUESTION_SECONDS))

    def set_replay_ratio(self, samples_per_insert: float | None) -> float | None:
        """Set the replay ratio of the running learner; return the former one. None: no ratio.

        Raises:
            RefusedError: the learner cannot hold this ratio, or answers no admins.
            CrossborderError: see ``fetch_status``.
        """
        with self._translating_errors():
            request = pb.SetReplayRatioRequest(samples_per_insert=samples_per_insert)
            found = self._stub.SetReplayRatio(request, timeout=QUESTION_SECONDS)
        return found.before if found.HasField("before") else None

    def cordon(self, actors: Selection) -> int:
        """Keep new actors out; return how many of the selected actors have joined already and go on.

        Raises:
            RefusedError: the selection is not valid, or the learner answers no admins.
            CrossborderError: see ``fetch_status``.
        """
        return self._order(self._stub.Cordon, pb.CordonRequest, actors).actors

    def drain(self, actors: Selection) -> int:
        """Keep new actors out and have the selected actors leave; return how many were told to leave."""
        return self._order(self._stub.Drain, pb.DrainRequest, actors).actors

    def uncordon(self, actors: Selection) -> None:
        """Let the selected actors join again."""
        self._order(self._stub.Uncordon, pb.UncordonRequest, actors)

    def _order(self, call: Callable[..., AnswerT], request: Callable[..., Message], actors: Selection) -> AnswerT:
        with self._translating_errors():
            return call(request(actors=pb.ActorSelection(**actors.to_json())), timeout=QUESTION_SECONDS)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Turn gRPC's errors into errors that tell the user what to do."""
        try:
            yield
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise RefusedError(
                    f"{self._address}: the learner answers no admins; start it with tokens of admins "
                    "(server.admin_token_file), or on loopback without tokens and without --insecure"
                ) from error
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthenticationError(
                    f"{self._address}: the learner refused the token; admins need a token of server.admin_token_file, "
                    "and a token of an actor is not enough"
                ) from error
            reason = describe(error)
            reason += hint_at_server(self._address, reason)
            raise typed_error(error) or LearnerUnreachableError(f"{self._address}: {reason}") from error

    def close(self) -> None:
        self._channel.close()


def _fleet_view(found: pb.StatusResponse) -> FleetView:
    """The view of a run; ``FleetView`` has the fields of ``StatusResponse`` by name, but for ``newest``."""
    values = _values_of(found) | {"at": time.monotonic(), "actors": tuple(map(_actor_view, found.actors))}
    del values["newest"]
    return FleetView(**values | {"cordoned": _selection(found.cordoned), "drained": _selection(found.drained)})


def _selection(found: pb.ActorSelection) -> Selection:
    return Selection(frozenset(found.actor_ids), frozenset(map(escape, found.hosts)), found.all)


def _actor_view(found: pb.ActorStatus) -> ActorView:
    """The view of an actor; ``ActorView`` has the fields of ``ActorStatus`` by name."""
    state = pb.ActorState.Name(found.state).removeprefix("ACTOR_STATE_").lower()
    return ActorView(**_values_of(found) | {"state": state})


def _values_of(found: Message) -> dict[str, Any]:
    """The values of a message by field: texts of the other side escaped, None where a field is absent."""
    values = {
        field.name: getattr(found, field.name) if not field.has_presence or found.HasField(field.name) else None
        for field in found.DESCRIPTOR.fields
    }
    return {name: escape(value) if isinstance(value, str) else value for name, value in values.items()}
