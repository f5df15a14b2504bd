"""``PushItems``: batches and reports by hand to a real ingest process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from common.data import Items
from common.errors import RefusedError
from common.wire.codec import encode
from common.wire.compression import compress
from common.wire.pb import crossborder_pb2 as pb
from learner.ingest.pushing import check_flags
from learner.loop.server import LearnerServer
from learner.replay.memory import ReplayMemory
from learner.shared.actor_table import ActorState
from tests.conftest import counting_config, wait_for
from tests.e2e.test_frames import PARTS
from tests.learner.ingest.bad_batches import BAD_BATCHES
from tests.learner.ingest.by_hand import Client, Talk, refusal


def test_a_batch_is_stored_when_it_is_acknowledged(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    assert talk.say(client.batch(1, start=0)).acked_seq == 1
    assert client.stored() == [0, 1, 2, 3, 4]
    assert talk.say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))
    talk.end()


def test_a_batch_sent_again_is_acknowledged_and_not_stored_again(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    for seq, acked in ((1, 1), (2, 2), (1, 2), (2, 2)):
        assert talk.say(client.batch(seq, start=seq * 5)).acked_seq == acked
    assert client.stored() == [*range(5, 10), *range(10, 15)]
    assert client.server.control.duplicates == 2


@pytest.mark.parametrize("seq", [1, 2])
def test_a_clones_batch_under_a_known_number_is_refused_and_never_acknowledged_as_known(
    client: Client, seq: int
) -> None:
    client.join()
    talk = Talk(client.stub)
    for stored in (1, 2):
        talk.say(client.batch(stored, start=stored * 5))
    talk.end()
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(seq, start=100))
    code, name, message = refusal(error)
    assert (code, name) == (grpc.StatusCode.FAILED_PRECONDITION, "incarnation_shared")
    assert f"actor 0: batch {seq}: expected the rows that are stored under this number, found others" in message
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(seq, start=seq * 5, count=4))
    assert refusal(error)[1] == "incarnation_shared"
    assert client.stored() == list(range(5, 15))
    assert client.server.control.duplicates == 0


def test_an_actor_that_sends_its_last_batch_again_has_left_all_the_same(client: Client) -> None:
    client.join()
    last = client.batch(1, start=0, report=pb.Report(leaving=True))
    Talk(client.stub).say(last)
    client.join()
    Talk(client.stub).say(last)
    wait_for(lambda: list(client.server.actor_table["state"]).count(ActorState.LEFT) == 1, "the actor has left")
    assert client.stored() == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def refused(shared: LearnerServer) -> Iterator[Client]:
    """An actor that all bad batches share: nothing that the actor sends is ever stored."""
    made = Client(shared)
    made.join()
    yield made
    made.channel.close()


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_bad_batches_are_refused_by_name_and_other_actors_go_on(refused: Client, what: str) -> None:
    make, name, message = BAD_BATCHES[what]
    refused.join()
    other, before = Client(refused.server, incarnation=1000 + [*BAD_BATCHES].index(what)), len(refused.stored())
    other.join()
    talk = Talk(other.stub)
    talk.say(other.batch(1, start=0))
    with pytest.raises(grpc.RpcError) as error:
        Talk(refused.stub).say(make(refused))
    assert refusal(error)[1] == name
    assert message in refusal(error)[2]
    assert talk.say(other.batch(2, start=5)).acked_seq == 2
    assert refused.stored()[before:] == list(range(10))
    talk.end()
    other.channel.close()


def test_a_stream_belongs_to_one_actor(guest: Client) -> None:
    guest.join()
    Client(guest.server, incarnation=78).join()
    talk = Talk(guest.stub)
    talk.say(guest.batch(1))
    with pytest.raises(grpc.RpcError) as error:
        talk.say(guest.batch(1, incarnation=78))
    assert "incarnation: expected that of the stream's first request" in refusal(error)[2]


def test_final_rows_are_stored_and_are_no_steps(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    final = {
        "final": np.array([False, False, True, False, False]),
        "first": np.array([True, False, False, True, False]),
    }
    talk.say(client.batch(1, payload=encode(client.schema, {**client.items(0, 5), **final}, 5)))
    talk.end()
    memory = client.memory()
    assert (memory.committed, memory.steps, memory.drawable) == (5, 4, 3)
    assert client.server.actor_table["items"][0] == 4
    assert linked(memory) == [0, 1, 1, 1, 1]


def linked(memory: ReplayMemory) -> list[int]:
    """By how many rows the row before lies back, for all rows."""
    assert memory.links is not None
    return [int(offset) for offset in memory.links.previous[: memory.committed]]


def test_rows_continue_those_of_the_batch_before_unless_rows_were_dropped_between_them(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    for seq, after_drop in enumerate([False, False, True, False], 1):
        talk.say(client.batch(seq, count=2, after_drop=after_drop))
    talk.end()
    assert linked(client.memory()) == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_client_that_sends_no_final_rows_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.join()
    talk = Talk(client.stub)
    first = {"first": np.array([True, False, False])}
    for seq, after_drop in enumerate([False, True, False, False], 1):
        payload = encode(client.schema, {**client.items(0, 3), **first}, 3)
        talk.say(client.batch(seq, count=3, payload=payload, after_drop=after_drop))
    talk.end()
    wait_for(lambda: "has no final row" in caplog.text, "the log of it")
    (told,) = [said for said in caplog.messages if "has no final row" in said]
    assert told.startswith("actor 0: an episode has no final row, but the next episode of its lane has begun (0 more")


def test_lanes_are_linked_each_by_itself(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    lanes = {"lane": np.array([0, 1, 2, 0, 1], np.uint16)}
    for seq in (1, 2):
        talk.say(client.batch(seq, payload=encode(client.schema, {**client.items(0, 5), **lanes}, 5)))
    talk.end()
    assert linked(client.memory()) == [0, 0, 0, 3, 3, 2, 2, 5, 3, 3]


def test_the_policy_lag_is_the_mean_over_the_rows_of_a_batch(guest: Client) -> None:
    guest.join()
    talk = Talk(guest.stub)
    guest.server.publisher.publish(50, wait=True)
    versions = {"version": np.array([10, 20, 30, 40, 50], np.uint32)}
    talk.say(guest.batch(1, payload=encode(guest.schema, {**guest.items(0, 5), **versions}, 5)))
    talk.end()
    table = guest.server.actor_table
    assert table["behaviour_opt_steps"][table["incarnation"] == guest.incarnation].tolist() == [30]


def test_an_environment_error_is_logged_marked_shortened_and_seldom(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.join()
    talk = Talk(client.stub)
    for text in ("x" * 10_000 + "\nERROR learner: forged", "another"):
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(env_error=text)))
    talk.end()
    wait_for(lambda: "left" in caplog.text or "closed without goodbye" in caplog.text, "the log of the whole stream")
    (told,) = [said for said in caplog.messages if "actor 0 failed" in said]
    assert told.endswith("x\n| ERROR learner: forged")
    assert len(told) < 4200


@pytest.fixture(scope="module")
def pictures_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = counting_config(
        tmp_path_factory.mktemp("pictures") / "run", **PARTS, replay={"capacity": 200}, server={"grace_seconds": 0.1}
    )
    with LearnerServer(config) as server:
        made = Client(server)
        yield made
        made.channel.close()


def test_compressed_and_uncompressed_payloads_of_one_actor_are_stored_alike(pictures_client: Client) -> None:
    assert pb.COMPRESSION_ZSTD in pictures_client.join().limits.compressions
    talk = Talk(pictures_client.stub)
    for seq, plain in enumerate([pictures_client.batch(1, start=0), pictures_client.batch(2, start=5)], 1):
        if seq == 2:
            plain.compression, plain.payload = pb.COMPRESSION_ZSTD, compress(plain.payload)
        assert talk.say(plain).acked_seq == seq
    talk.end()
    assert pictures_client.stored() == [float(n) for n in range(10)]
    assert not pictures_client.memory().columns["obs"][:10].any()


BIG = compress(bytes(1 << 20))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"payload": BIG, "compression": 1}, r"payload: expected a content size of up to \d+ bytes, found 1048576"),
        ({"payload": BIG[:-1], "compression": 1}, "payload: expected a content size"),
        ({"payload": b"no frame", "compression": 1}, "payload: expected one Zstandard frame, found other bytes"),
        ({"payload": compress(b""), "compression": 1}, "payload: expected .* bytes for 5 rows, found 0"),
        ({"payload": BIG}, "payload: expected .* bytes for 5 rows"),
        ({"compression": 7}, r"compression: expected none or 1 \(zstd\), found 7"),
    ],
)
def test_a_payload_that_does_not_fit_its_description_is_refused_and_nothing_is_stored(
    pictures_client: Client, changes: dict[str, Any], found: str
) -> None:
    other, before = Client(pictures_client.server, incarnation=78), pictures_client.stored()
    other.join()
    with pytest.raises(grpc.RpcError) as error:
        Talk(other.stub).say(other.batch(1, **changes))
    other.channel.close()
    code, name, details = refusal(error)
    assert (code, name) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_items")
    assert re.search(rf"actor \d: {found}", details)
    assert pictures_client.stored() == before


FLAGS = ("first", "final", "terminated", "truncated")


def rows(told: str, lanes: str = "") -> Items:
    """Rows of which each letter tells: b begins, t terminated, u truncated, f final, - none of them."""
    letters = dict(zip(FLAGS, "bftu", strict=True))
    items = {name: np.array([letter == wanted for letter in told]) for name, wanted in letters.items()}
    return {**items, "lane": np.array([int(lane) for lane in lanes or "0" * len(told)], np.uint16)}


@pytest.mark.parametrize(
    ("told", "lanes"),
    [
        ("b--", ""),
        ("---", ""),
        ("b-tfb-ufb", ""),
        ("--u", ""),
        ("f", ""),
        ("fb-", ""),
        ("-t-tb-", ""),
        ("bb--tuffbb--", "010101010101"),
        ("t-fb", "0101"),
        ("-tf--", "10012"),
    ],
)
def test_whole_episodes_and_parts_of_them_are_taken(told: str, lanes: str) -> None:
    check_flags(rows(told, lanes))


@pytest.mark.parametrize(
    ("told", "lanes", "message"),
    [
        ("b-f--", "", "'first': expected True after a final row of its lane, found False in row 3"),
        ("b-u--", "", "'final': expected True after a truncated row of its lane, found False in row 3"),
        ("b-ub-", "", "'final': expected True after a truncated row of its lane, found False in row 3"),
        ("uu--", "0101", "'final': expected True after a truncated row of its lane, found False in row 2"),
        ("bf---", "10101", "'first': expected True after a final row of its lane, found False in row 3"),
    ],
)
def test_an_episode_that_goes_on_after_its_end_is_refused(told: str, lanes: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as error:
        check_flags(rows(told, lanes))
    assert error.value.reason == "values"


def test_the_first_wrong_row_of_the_batch_is_named_whichever_lane_it_is_of() -> None:
    with pytest.raises(RefusedError, match="found False in row 4"):
        check_flags(rows("-u-u-f", "101101"))


@pytest.mark.parametrize("name", ["first", "terminated", "truncated"])
def test_a_final_row_neither_begins_an_episode_nor_is_a_step(name: str) -> None:
    items = rows("b-f")
    items[name][2] = True
    with pytest.raises(RefusedError, match=f"column '{name}': expected False in a final row, found True in row 2"):
        check_flags(items)


def test_rows_that_do_not_say_how_an_episode_ends_are_checked_for_the_rest() -> None:
    items = {name: column for name, column in rows("b-f-").items() if name not in ("terminated", "truncated")}
    with pytest.raises(RefusedError, match="'first': expected True after a final row"):
        check_flags(items)
