from __future__ import annotations

import json
import re
from typing import Any

import pytest

from actor.client.join_answer import MAX_SEED, read_config, read_join, read_schema
from common.config.actor_config import MAX_ENVS_PER_ACTOR, MAX_SPOOL_BYTES
from common.data import Column, Schema
from common.errors import ConfigError, ProtocolMismatchError
from common.wire.codec import schema_to_pb
from common.wire.pb import crossborder_pb2 as pb
from tests.actor.client.test_connector import JOINED

PARTS = {"env": {"target": "a:b"}, "agent": {"target": "c:d"}}


def changed(**changes: Any) -> pb.JoinResponse:
    response = pb.JoinResponse()
    response.CopyFrom(JOINED)
    response.MergeFrom(pb.JoinResponse(**changes))
    return response


def test_an_answer_within_all_bounds_is_read() -> None:
    read_join(JOINED)
    schema = Schema.of_rows((Column("obs/camera", "|u1", (3, 64, 64)), Column("done", "|b1"), Column("reward", "<f4")))
    assert read_schema(schema_to_pb(schema)) == schema


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000 + "]" * 200_000, '{"seed": ' + "9" * 6000 + "}"])
def test_a_configuration_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the learner's configuration: expected JSON, found"):
        read_config(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs_per_actor": 10**9}, f"envs_per_actor: .*less than or equal to {MAX_ENVS_PER_ACTOR}"),
        ({"push": {"spool_bytes": 1 << 60}}, f"push.spool_bytes: .*less than or equal to {MAX_SPOOL_BYTES}"),
        ({"push": {"n_buffer": 1 << 40}}, "push.n_buffer: .*less than or equal to"),
        ({"push": {"window": 1 << 40}}, "push.window: .*less than or equal to"),
    ],
)
def test_settings_that_decide_about_an_actors_memory_have_bounds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(json.dumps({**PARTS, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limits": pb.Limits(max_message_bytes=1 << 40)}, "limits.max_message_bytes: expected 1024 to 268435456"),
        ({"limits": pb.Limits(max_message_bytes=10)}, "limits.max_message_bytes: expected 1024 to 268435456, found 10"),
        ({"seed": -1}, f"seed: expected 0 to {MAX_SEED}, found -1"),
        ({"seed": MAX_SEED + 1}, "seed: expected"),
        ({"epsilon": float("nan")}, "epsilon: expected 0 to 1, found nan"),
        ({"run_id": "x" * 1000}, "run_id: expected up to 256 characters, found 1000"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolMismatchError, match=re.escape(f"the learner's answer: {message}")):
        read_join(changed(**changes))


def test_a_learner_that_takes_no_rows_is_refused() -> None:
    with pytest.raises(ProtocolMismatchError, match=r"limits\.max_rows: expected 1 or more, found 0"):
        read_join(pb.JoinResponse(limits=pb.Limits(max_message_bytes=1 << 20)))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pb.Column(name="x", dtype="|O"), r"column 'x': expected a little-endian number or bool as dtype, found '\|O'"),
        (pb.Column(name="x", dtype="<U4"), "found '<U4'"),
        (pb.Column(name="x", dtype="zzz"), "found 'zzz'"),
        (pb.Column(name="x", dtype="<f4", shape=[2**32 - 1] * 3), "column 'x': expected up to 268435456 bytes, found"),
        (pb.Column(name="x", dtype="<f4", shape=[1] * 17), "column 'x': expected up to 16 dimensions, found 17"),
        (pb.Column(name="x" * 257, dtype="<f4"), "expected a name of up to 256 characters, found 257"),
    ],
)
def test_columns_that_no_item_can_have_are_refused(column: pb.Column, message: str) -> None:
    with pytest.raises(ProtocolMismatchError, match=message):
        read_schema(pb.Schema(columns=[column]))


def test_the_number_of_columns_has_a_bound() -> None:
    columns = [pb.Column(name=str(i), dtype="<f4") for i in range(257)]
    for wrong in ([], columns):
        with pytest.raises(ProtocolMismatchError, match=f"columns: expected 1 to 256, found {len(wrong)}"):
            read_schema(pb.Schema(columns=wrong))
    with pytest.raises(ConfigError, match="distinct names"):
        read_schema(pb.Schema(columns=[columns[0], columns[0]]))


@pytest.mark.parametrize("shapes", [[[0]], [[2**28], [1]]])
def test_rows_that_are_empty_or_fit_no_message_are_refused(shapes: list[list[int]]) -> None:
    columns = [pb.Column(name=str(i), dtype="|u1", shape=shape) for i, shape in enumerate(shapes)]
    with pytest.raises(ProtocolMismatchError, match="columns: expected a row of 1 to 268435456 bytes, found"):
        read_schema(pb.Schema(columns=columns))


def test_an_actor_that_acts_leaves_out_the_wrappers_of_other_actors() -> None:
    wrappers = [{"target": "a:b"}, {"target": "a:c", "actors": [7]}]
    config = json.dumps({**PARTS, "env": {"target": "a:b", "wrappers": wrappers}})
    for actor_id, built in ((7, ["a:b", "a:c"]), (2, ["a:b"])):
        answer = read_join(changed(actor_id=actor_id, config_json=config))
        assert [wrapper.target for wrapper in answer.for_acting().config.env.wrappers] == built
        assert len(answer.config.env.wrappers) == 2
