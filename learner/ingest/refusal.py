"""What a caller is told that is refused: a gRPC status and, as metadata, the error's name."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc

from common.errors import CrossborderError, ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.wire.rpc import ERROR_KEY, NotJoinedError, StoppingError
from learner.ingest.gate import TokenReplacedError, UnauthenticatedError
from learner.ingest.limits import OverLimitError
from learner.ingest.registry import TooManyActorsError
from learner.replay.writer import CursorsFullError

log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]

_STATUS: dict[type[CrossborderError], tuple[grpc.StatusCode, str]] = {
    ProtocolMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, "protocol_mismatch"),
    NotJoinedError: (grpc.StatusCode.FAILED_PRECONDITION, "not_joined"),
    SchemaMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, "schema_mismatch"),
    RefusedError: (grpc.StatusCode.INVALID_ARGUMENT, "bad_items"),
    TooManyActorsError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors"),
    CursorsFullError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors"),  # Both end when others are gone.
    OverLimitError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "over_limit"),
    StoppingError: (grpc.StatusCode.UNAVAILABLE, "stopping"),
    TokenReplacedError: (grpc.StatusCode.UNAVAILABLE, "token_replaced"),
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
}


def status_of(error: CrossborderError) -> tuple[grpc.StatusCode, str]:
    """The status and the name on the wire."""
    return _STATUS.get(type(error), (grpc.StatusCode.INTERNAL, "internal"))


async def refuse(context: Context, error: CrossborderError) -> NoReturn:
    """End the call with what the error says."""
    code, name = status_of(error)
    log.warning("%s: %s", name, error)
    await context.abort(code, str(error), ((ERROR_KEY, name),))
    raise AssertionError("abort returned")
