"""Frames on the wire, spoken by hand to a real ingest process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from common.wire.compression import compress
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import MakeConfig
from tests.e2e.test_frames import PARTS
from tests.learner.ingest.test_service import Client, Talk, refusal


@pytest.fixture
def client(make_config: MakeConfig) -> Iterator[Client]:
    with LearnerServer(
        make_config(**PARTS, replay={"capacity": 200, "frames_per_item": 0.9}, server={"grace_seconds": 0.5})
    ) as server:
        made = Client(server)
        yield made
        made.channel.close()


def test_an_actor_is_told_how_many_rows_have_room_for_their_frames(client: Client) -> None:
    joined = client.join()
    assert [column.frames for column in joined.schema.columns] == [True, False, False, True, False, False]
    assert joined.limits.max_rows == 180 // 16
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(1, count=12))
    assert "actor 0: rows: expected 1 to 11, found 12" in refusal(error)[2]


def test_a_position_beyond_the_frames_is_refused_naming_actor_and_column(client: Client) -> None:
    client.join()
    good = client.batch(1, count=1)
    bad = np.array([0, 0, 7, 0], "<u4").tobytes() + good.payload[16:]
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(1, count=1, payload=bad))
    code, name, details = refusal(error)
    assert (code, name) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_items")
    assert details == "actor 0: column 'obs': expected frame positions below 1, found 7 in row 0"
    assert client.stored() == []
    talk = Talk(client.stub)
    assert talk.say(good).acked_seq == 1
    talk.end()


def test_compressed_and_uncompressed_payloads_of_one_actor_are_stored_alike(client: Client) -> None:
    assert pb.COMPRESSION_ZSTD in client.join().limits.compressions
    talk = Talk(client.stub)
    for seq, plain in enumerate([client.batch(1, start=0), client.batch(2, start=5)], 1):
        if seq == 2:
            plain.compression, plain.payload = pb.COMPRESSION_ZSTD, compress(plain.payload)
        assert talk.say(plain).acked_seq == seq
    talk.end()
    assert client.stored() == [float(n) for n in range(10)]
    columns, frames = client.server.run.memory.columns, client.server.run.memory.frames
    assert frames is not None
    stacks = np.empty((10, *client.schema.columns[0].shape), np.uint8)
    frames.take(np.arange(10), columns["obs"][:10], stacks)
    assert not stacks.any()


BIG = compress(bytes(1 << 20))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"payload": BIG, "compression": 1}, r"payload: expected a content size of up to \d+ bytes, found 1048576"),
        ({"payload": BIG[:-1], "compression": 1}, "payload: expected a content size"),
        ({"payload": b"no frame", "compression": 1}, "payload: expected one Zstandard frame, found other bytes"),
        ({"payload": compress(b""), "compression": 1}, "payload: expected .* bytes for 5 rows .*, found 0"),
        ({"payload": BIG}, "payload: expected .* bytes for 5 rows"),
        ({"compression": 7}, r"compression: expected none or 1 \(zstd\), found 7"),
    ],
)
def test_a_payload_that_is_not_what_it_says_is_refused_and_nothing_is_stored(
    client: Client, changes: dict[str, Any], found: str
) -> None:
    client.join()
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(1, **changes))
    code, name, details = refusal(error)
    assert (code, name) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_items")
    assert re.search(f"actor 0: {found}", details)
    assert client.stored() == []
