"""Why ingest refuses calls, joins and batches: errors, their names on the wire, and counters for the metrics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

import grpc

from common.errors import CrossborderError, ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.wire.rpc import (
    ERROR_KEY,
    BadMessageError,
    NotJoinedError,
    RunOverError,
    SessionLostError,
    SharedIncarnationError,
    StoppingError,
    SupersededError,
)
from learner.ingest.cordons import CordonedError
from learner.ingest.registry import TooManyActorsError
from learner.replay.writer import CursorsFullError

Context = grpc.aio.ServicerContext[Any, Any]

BATCH_REFUSALS = ("schema", "payload", "sequence", "rows", "report", "values", "bounds")
"""Why a batch is refused: ``RefusedError.reason``, or ``schema`` for a ``SchemaMismatchError``."""
JOIN_REFUSALS = (
    "protocol_mismatch",
    "bad_items",
    "too_many_actors",
    "over_limit",
    "stopping",
    "cordoned",
    "taken_over",
)
"""Why a join is refused: the name of the error on the wire, or ``cordoned``."""
CALL_LIMITS = (
    "calls",
    "address_calls",
    "health_calls",
    "admin_calls",
    "joins",
    "address_joins",
    "address_actors",
    "address_failures",
    "handshake_seconds",
)
"""The limits for which a call can be refused."""
MOST_TOLD: Final = 4000
"""Characters of an error's message. gRPC carries 8 KiB: beyond it a caller hears of another error, and tries again."""


class OverLimitError(CrossborderError):
    """The caller asks for more than a limit allows; later the limit may allow the same call."""


class UnauthenticatedError(CrossborderError):
    """The call has no valid token, or its token is no longer valid."""


class TokenReplacedError(CrossborderError):
    """The token is no longer valid, but its holder has another token, with which an actor may come back."""


class OtherUserError(CrossborderError):
    """Another user of this host calls a server without tokens."""


_STATUS: dict[type[CrossborderError], tuple[grpc.StatusCode, str]] = {
    ProtocolMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, "protocol_mismatch"),
    NotJoinedError: (grpc.StatusCode.FAILED_PRECONDITION, "not_joined"),
    # Actors of earlier releases end with the message: to them this status says that no retry can help.
    SharedIncarnationError: (grpc.StatusCode.FAILED_PRECONDITION, "incarnation_shared"),
    SchemaMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, "schema_mismatch"),
    RefusedError: (grpc.StatusCode.INVALID_ARGUMENT, "bad_items"),
    TooManyActorsError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors"),
    CursorsFullError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors"),  # Both errors end when actors leave.
    # If this error had a separate name, actors of earlier releases would not try again.
    CordonedError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors"),
    OverLimitError: (grpc.StatusCode.RESOURCE_EXHAUSTED, "over_limit"),
    StoppingError: (grpc.StatusCode.UNAVAILABLE, "stopping"),
    SupersededError: (grpc.StatusCode.UNAVAILABLE, "taken_over"),
    TokenReplacedError: (grpc.StatusCode.UNAVAILABLE, "token_replaced"),
    OtherUserError: (grpc.StatusCode.PERMISSION_DENIED, "other_user"),
    UnauthenticatedError: (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    BadMessageError: (grpc.StatusCode.INVALID_ARGUMENT, "bad_message"),
    SessionLostError: (grpc.StatusCode.FAILED_PRECONDITION, "session_lost"),
    RunOverError: (grpc.StatusCode.FAILED_PRECONDITION, "run_over"),
}


def status_of(error: CrossborderError) -> tuple[grpc.StatusCode, str]:
    """The gRPC status of an error, and its name on the wire."""
    return _STATUS.get(type(error), (grpc.StatusCode.INTERNAL, "internal"))


def message_of(error: CrossborderError) -> str:
    """The message of an error for the caller and the log: its beginning, if it repeats a long text of the caller."""
    text = str(error)
    left_out = len(text) - MOST_TOLD
    return text if left_out <= 0 else f"{text[:MOST_TOLD]} ({left_out} more characters)"


async def refuse(context: Context, error: CrossborderError) -> NoReturn:
    """End a call with the status, the message and the name of an error."""
    code, name = status_of(error)
    await context.abort(code, message_of(error), ((ERROR_KEY, name),))
    raise AssertionError("abort returned")


class BucketCounts:
    """Counts values by size (0.3 µs each; ``prometheus_client.Histogram`` takes five times as long).

    Args:
        bounds: upper bounds of the buckets, each inclusive and above the bound before it.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterable[tuple[float, int]]:
        """Each bound, the last of which is infinite, and how many values were at most that bound."""
        total = 0
        # The metrics' thread reads while the event loop counts: the copy keeps one scrape consistent in itself.
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            total += count
            yield float(bound), total

    def exposed(self) -> tuple[list[tuple[str, float]], float]:
        """The buckets and the sum of the values, as prometheus_client takes them."""
        found = [("+Inf" if math.isinf(bound) else str(bound), float(count)) for bound, count in self.buckets()]
        return found, self.sum


def quantile_between(
    before: Sequence[tuple[float, int]], after: Sequence[tuple[float, int]], quantile: float
) -> float | None:
    """A quantile of the values that were counted between two looks at ``BucketCounts.buckets``; None without any.

    As in Prometheus, values are taken to lie evenly in their bucket; beyond the last bound, the bound is returned.
    """
    counts = [(bound, now - then) for (_, then), (bound, now) in zip(before, after, strict=True)]
    rank, low, below = quantile * counts[-1][1], 0.0, 0
    for bound, count in counts:
        if count and count >= rank:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / max(1, count - below)
        low, below = bound, count
    return None


class IngestCounts:
    """Counters for the metrics alone: refusals by reason, open calls, delays and policy lag.

    They begin at 0 when ingest is started again, as Prometheus expects of counters.
    """

    def __init__(self) -> None:
        self.batches_refused = Counter(dict.fromkeys(BATCH_REFUSALS, 0))
        self.joins_refused = Counter(dict.fromkeys(JOIN_REFUSALS, 0))
        self.over_limit = Counter(dict.fromkeys(CALL_LIMITS, 0))
        self.unauthenticated = 0
        self.open_calls = Counter({"calls": 0, "health_calls": 0, "admin_calls": 0})
        self.unfinished_episodes = 0
        self.quota_hold_seconds = {"items": 0.0, "models": 0.0}
        self.ack_seconds = BucketCounts(
            (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
        )
        self.lag_steps = BucketCounts((0, *(2**n for n in range(17))))
        self.lag_seconds = BucketCounts((0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
