from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import grpc
import pytest

from common.errors import CrossborderError, ProtocolMismatchError, RefusedError, RunDirectoryError, SchemaMismatchError
from common.wire.rpc import ERROR_KEY, NotJoinedError, StoppingError, SupersededError
from learner.ingest.cordons import CordonedError
from learner.ingest.refusals import (
    JOIN_REFUSALS,
    BucketCounts,
    Context,
    OverLimitError,
    TokenReplacedError,
    UnauthenticatedError,
    quantile_between,
    refuse,
    status_of,
)
from learner.ingest.registry import TooManyActorsError
from learner.replay.writer import CursorsFullError


def test_a_value_is_in_the_bucket_of_its_own_bound_and_in_all_wider_ones() -> None:
    histogram = BucketCounts((0, 1, 2.5))
    for value in (0, 0.5, 1, 2, 99):
        histogram.observe(value)
    assert list(histogram.buckets()) == [(0, 1), (1, 3), (2.5, 4), (math.inf, 5)]
    assert histogram.sum == 102.5


NAMES: dict[type[CrossborderError], str] = {
    ProtocolMismatchError: "protocol_mismatch",
    NotJoinedError: "not_joined",
    SchemaMismatchError: "schema_mismatch",
    RefusedError: "bad_items",
    TooManyActorsError: "too_many_actors",
    CursorsFullError: "too_many_actors",
    CordonedError: "too_many_actors",
    OverLimitError: "over_limit",
    StoppingError: "stopping",
    SupersededError: "taken_over",
    TokenReplacedError: "token_replaced",
    UnauthenticatedError: "unauthenticated",
    RunDirectoryError: "internal",
}


@pytest.mark.parametrize("kind", NAMES)
def test_every_error_has_the_name_that_the_protocol_gives_it(kind: type[CrossborderError]) -> None:
    assert status_of(kind("why"))[1] == NAMES[kind]


def test_every_reason_to_refuse_a_join_is_the_name_of_an_error_or_cordoned() -> None:
    assert {*JOIN_REFUSALS} - {"cordoned"} <= {*NAMES.values()}


def test_a_refused_call_ends_with_status_message_and_name() -> None:
    class AbortedError(Exception):
        """Ends the call, as gRPC's own exception does."""

    class Call:
        async def abort(self, *what: Any) -> None:
            raise AbortedError(*what)

    with pytest.raises(AbortedError) as ended:
        asyncio.run(refuse(cast(Context, Call()), StoppingError("the learner is shutting down")))
    assert ended.value.args == (
        grpc.StatusCode.UNAVAILABLE,
        "the learner is shutting down",
        ((ERROR_KEY, "stopping"),),
    )


def test_a_quantile_is_that_of_the_values_between_two_looks() -> None:
    histogram = BucketCounts((1, 2, 4))
    for _ in range(100):
        histogram.observe(0.5)
    before = [*histogram.buckets()]
    assert quantile_between(before, before, 0.5) is None
    for value in (1.5, 3, 3, 3):
        histogram.observe(value)
    after = [*histogram.buckets()]
    assert [quantile_between(before, after, part) for part in (0.25, 0.5, 1)] == pytest.approx([2, 2 + 2 / 3, 4])
    histogram.observe(9)
    assert quantile_between(before, [*histogram.buckets()], 1) == 4, "beyond the last bound nothing is known"
