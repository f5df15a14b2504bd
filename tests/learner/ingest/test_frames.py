"""Frames on the wire, spoken by hand to a real ingest process."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from learner.server import LearnerServer
from tests.conftest import MakeConfig
from tests.e2e.test_frames import PARTS
from tests.learner.ingest.test_service import Client, Talk, refusal


@pytest.fixture
def client(make_config: MakeConfig) -> Iterator[Client]:
    with LearnerServer(make_config(**PARTS, replay={"capacity": 200}, server={"grace_seconds": 0.5})) as server:
        made = Client(server)
        yield made
        made.channel.close()


def test_an_actor_is_told_how_many_rows_have_room_for_their_frames(client: Client) -> None:
    joined = client.join()
    assert [column.frames for column in joined.schema.columns] == [True, False, False, True, False, False]
    assert joined.limits.max_rows == 250 // 16
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(1, count=16))
    assert "actor 0: rows: expected 1 to 15, found 16" in refusal(error)[2]


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
