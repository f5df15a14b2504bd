"""Streams by hand to a real ingest process: when it acknowledges, holds back, and ends."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.conftest import MORE_STEPS, MakeConfig, counting_config, most_memory, wait_for
from tests.disks import Disk
from tests.learner.ingest.by_hand import SECONDS, Client, Talk, refusal
from tests.users import as_nobody, needs_root


def test_the_learner_says_stop_unasked_and_a_goodbye_ends_the_stream(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    client.server.ingest.announce_stop()
    assert talk.hear().stop
    assert talk.say(client.batch(2, start=5)).acked_seq == 2
    leaving = pb.PushItemsRequest(incarnation=client.incarnation, report=pb.Report(env_steps=9, leaving=True))
    talk.say(leaving)
    talk.end()
    wait_for(lambda: client.server.ingest.exit_code() == 0, "ingest winds up")
    assert client.stored() == [*range(5), *range(5, 10)]


def test_an_actor_whose_rows_are_refused_has_left_and_frees_its_id(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client.join()
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(client.batch(3))
    assert refusal(error)[1] == "bad_items"
    wait_for(lambda: "actor 0 left" in caplog.text, "the log of the whole stream")
    assert client.server.actor_table["state"][0] == ActorState.LEFT
    assert Client(client.server, incarnation=78).join().actor_id == 0


def test_an_actor_that_is_away_when_the_learner_stops_may_come_back_and_hand_over(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": SECONDS})) as server:
        client, stranger = Client(server), Client(server, incarnation=78)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1))
        talk.cancel()
        wait_for(lambda: server.actor_table["state"][0] == ActorState.AWAY, "the stream is broken")
        server.ingest.announce_stop()
        wait_for(lambda: server.control.stopping, "the stop")
        with pytest.raises(grpc.RpcError) as error:
            stranger.join()
        assert refusal(error)[1] == "stopping", "nobody new begins"
        assert client.join().last_seq == 1
        talk = Talk(client.stub)
        assert talk.say(client.batch(2, start=5)).stop, "it hears at once that the learner stops"
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        talk.end()
        wait_for(lambda: server.ingest.exit_code() == 0, "ingest winds up as soon as all have left")
        assert client.stored() == list(range(10))


def test_a_batch_for_which_the_disk_has_no_room_is_refused_with_the_reason_and_stored_when_it_comes_again(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    run = disk.path / "run"
    with LearnerServer(counting_config(run, replay={"capacity": 200_000}, server={"grace_seconds": 0.1})) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        assert talk.say(client.batch(1)).acked_seq == 1
        column = run / "shared" / "replay" / "column-reward"
        size = column.stat().st_size
        with column.open("r+b") as file:  # A file without its blocks, as a sparse copy is.
            file.truncate(4096)
            file.truncate(size)
        disk.fill()
        large = client.batch(2, start=5, count=10_000)
        with pytest.raises(grpc.RpcError) as error:
            talk.say(large)
        code, name, message = refusal(error)
        assert (code, name) == (grpc.StatusCode.UNAVAILABLE, "storage")
        assert message == "a file cannot be read or written at the server's host: No space left on device"
        wait_for(lambda: "Errno 28" in caplog.text, "the line of the log")
        assert f"[Errno 28] No space left on device: '{column}'" in caplog.text
        assert "Traceback" not in caplog.text
        disk.clear()
        assert client.join().last_seq == 1
        assert Talk(client.stub).say(large).acked_seq == 2
        assert client.stored() == [*range(10_005)]


def test_the_learner_names_the_actors_that_do_not_come_back_before_it_ends(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.join(host="far-away", pid=4711)
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    talk.cancel()
    Client(client.server, incarnation=78).join()  # It never opens a stream, so it has nothing to hand over.
    wait_for(lambda: client.server.actor_table["state"][0] == ActorState.AWAY, "the stream is broken")
    client.server.ingest.announce_stop()
    wait_for(lambda: client.server.ingest.exit_code() == 0, "ingest winds up")
    wait_for(lambda: "have not handed over" in caplog.text, "its last words")
    (told,) = [said for said in caplog.messages if "have not handed over" in said]
    assert told.endswith("the rows that they still have are lost: actor 0 (far-away, pid 4711)")
    assert told.startswith("1 actors have not handed over within 0.1 s")


def test_an_actor_that_builds_its_environment_is_neither_away_nor_online(client: Client) -> None:
    client.join()
    table = client.server.actor_table
    assert table["state"][0] == ActorState.JOINED
    talk = Talk(client.stub)
    states = []
    for building in (True, False):
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(building=building)))
        states.append(table["state"][0])
    assert states == [ActorState.BUILDING, ActorState.ONLINE]


def test_of_two_processes_with_one_incarnation_the_first_is_told_and_the_second_goes_on(client: Client) -> None:
    client.join()
    first, second = Talk(client.stub), Talk(client.stub)
    assert first.say(client.batch(1)).acked_seq == 1
    client.join()
    assert second.say(client.batch(0, rows=0, payload=b"")).acked_seq == 0, "it has not shown that it has this batch"
    with pytest.raises(grpc.RpcError) as error:
        first.say(client.batch(2, start=100))
    code, name, message = refusal(error)
    assert (code, name) == (grpc.StatusCode.FAILED_PRECONDITION, "incarnation_shared")
    assert "actor 0: another process has joined as the same incarnation" in message
    assert second.say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


@needs_root
def test_another_user_of_the_host_cannot_join_a_learner_without_tokens(guest: Client) -> None:
    with as_nobody(), pytest.raises(grpc.RpcError) as error:
        guest.join()
    code, name, message = refusal(error)
    assert (code, name) == (grpc.StatusCode.PERMISSION_DENIED, "other_user")
    assert "expected a caller of this server's own user or of root, found another user of this host" in message
    assert not guest.server.control.joins


@needs_root
def test_another_user_of_the_host_gives_no_orders_to_a_learner_without_tokens(guest: Client) -> None:
    admins = pb_grpc.AdminServiceStub(guest.channel)
    with as_nobody():
        for ask in (
            lambda: admins.Status(pb.StatusRequest(), timeout=SECONDS),
            lambda: admins.Drain(pb.DrainRequest(actors=pb.ActorSelection(all=True)), timeout=SECONDS),
        ):
            with pytest.raises(grpc.RpcError) as error:
                ask()
            assert refusal(error)[:2] == (grpc.StatusCode.PERMISSION_DENIED, "other_user")


def test_a_join_without_a_stream_gives_its_id_back_within_seconds(make_config: MakeConfig) -> None:
    times = {"lost_seconds": 9.0, "grace_seconds": 0.1}  # Within a third of the time, the other one joins.
    with LearnerServer(make_config(server={"max_actors": 1, **times})) as server:
        idle, honest = Client(server, 1), Client(server, 2)
        idle.join()
        with pytest.raises(grpc.RpcError) as error:
            honest.join()
        assert refusal(error)[1] == "too_many_actors"
        wait_for(lambda: not (server.actor_table["state"] == ActorState.JOINED).any(), "it is forgotten")
        assert honest.join().actor_id == 0
        with pytest.raises(grpc.RpcError) as error:
            Talk(idle.stub).say(idle.batch(1))
        assert refusal(error)[1] == "not_joined", "so an actor that builds first joins again by itself"


def test_acknowledgements_are_held_back_to_keep_the_replay_ratio(make_config: MakeConfig) -> None:
    ratio = {"samples_per_insert": 2.0, "error_buffer": 10.0}
    with LearnerServer(make_config(replay=ratio)) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        assert talk.say(client.batch(1, count=5)).acked_seq == 1
        server.control.sampled = 1
        still_here = talk.say(client.batch(2, count=5))
        assert (still_here.acked_seq, still_here.held) == (1, True), "it is told at once, or it would go on"
        still_there = talk.hear()
        assert (still_there.acked_seq, still_there.held) == (1, True), "a sign of life, not the acknowledgement"
        assert len(client.stored()) == 10, "held back, but stored"
        server.control.sampled = 8
        server.ingest.release_held()
        acked = still_there
        while acked.acked_seq < 2:
            acked = talk.hear()
        assert not acked.held
        assert server.control.actor_hold_seconds > 0


@pytest.mark.parametrize(
    "held_by", [{"samples_per_insert": 2.0, "error_buffer": 10.0}, {"capacity": 1000}], ids=["ratio", "share"]
)
def test_an_actor_that_is_held_back_stores_no_batch_on_another_stream(
    make_config: MakeConfig, held_by: dict[str, float]
) -> None:
    with LearnerServer(make_config(replay=held_by, push={"n_buffer": 500})) as server:
        greedy, honest = Client(server, 1), Client(server, 2)
        greedy.join(), honest.join()
        small, talk, seq = Talk(honest.stub), Talk(greedy.stub), 1
        small.say(honest.batch(1))
        server.control.sampled = 1
        while talk.say(greedy.batch(seq, count=500)).acked_seq == seq:
            seq += 1
        before = len(greedy.stored())
        with pytest.raises(grpc.RpcError) as error:
            Talk(greedy.stub).say(greedy.batch(seq + 1, count=500))
        code, name, message = refusal(error)
        assert (code, name) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "over_limit")
        assert f"while acknowledgements are held back, found batch {seq + 1}; try again later" in message
        assert len(greedy.stored()) == before
        again = Talk(greedy.stub)
        assert again.say(greedy.batch(0, rows=0, payload=b"")).acked_seq == 0, "a sign of life"


@pytest.mark.parametrize("ratio", [None, 2.0])
def test_acknowledgements_say_whether_a_replay_ratio_is_in_force(make_config: MakeConfig, ratio: float | None) -> None:
    with LearnerServer(make_config(replay={"samples_per_insert": ratio}, server={"grace_seconds": 0.1})) as server:
        client = Client(server)
        client.join()
        assert Talk(client.stub).say(client.batch(1)).paced == (ratio is not None)


def test_an_actor_that_has_given_its_share_of_a_batch_hears_so_until_the_other_has_gone(
    make_config: MakeConfig,
) -> None:
    in_step = {"replay": {"samples_per_insert": 1.0}, "trainer": {"warmup_period": 1}}
    with LearnerServer(make_config(**in_step, server={"lost_seconds": SECONDS})) as server:
        fast, slow = Client(server, 1), Client(server, 2)
        fast.join(), slow.join()
        server.control.trainer_waits_for = MORE_STEPS
        server.control.batch_steps = 20
        talk, other = Talk(fast.stub), Talk(slow.stub)
        assert other.say(slow.batch(1)).acked_seq == 1
        assert talk.say(fast.batch(1)).acked_seq == 1
        for said in (talk.say(fast.batch(2)), talk.hear()):
            assert (said.acked_seq, said.held) == (1, True)
        other.cancel()
        acked = talk.hear()
        while acked.acked_seq < 2:
            acked = talk.hear()
        assert not acked.held


def test_one_actors_large_batch_holds_back_that_actor_and_not_the_others(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(replay={"samples_per_insert": 2.0, "error_buffer": 10.0})) as server:
        greedy, honest = Client(server, 1), Client(server, 2)
        greedy.join(), honest.join()
        server.control.sampled = 1
        large, small = Talk(greedy.stub), Talk(honest.stub)
        large.put(greedy.batch(1, count=5000))
        wait_for(lambda: len(honest.stored()) == 5000, "the large batch")
        small.put(honest.batch(1, count=5))
        wait_for(lambda: len(honest.stored()) == 5005, "the small batch")
        server.control.sampled = 1 + 2 * 2 * 5
        server.ingest.release_held()
        acked = small.hear()
        while acked.acked_seq < 1:
            acked = small.hear()
        assert large.hear().acked_seq == 0, "a sign of life, not the acknowledgement"


def test_an_actor_beyond_its_share_of_the_replay_waits_and_gets_signs_of_life(
    make_config: MakeConfig,
) -> None:
    with LearnerServer(make_config(replay={"capacity": 1000}, push={"n_buffer": 500})) as server:
        greedy, honest = Client(server, 1), Client(server, 2)
        greedy.join(), honest.join()
        large, small = Talk(greedy.stub), Talk(honest.stub)
        assert small.say(honest.batch(1)).acked_seq == 1
        seq = 1
        while large.say(greedy.batch(seq, count=500)).acked_seq == seq:
            seq += 1
        assert [small.say(honest.batch(n)).acked_seq for n in range(2, 6)] == [2, 3, 4, 5]
        server.ingest.announce_stop()
        acked = large.hear()
        while acked.acked_seq < seq:
            acked = large.hear()
        assert acked.stop, "nobody waits for a quota when training is over"


def test_actors_at_one_address_leave_ids_for_others(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 4, "max_address_actors": 2})) as server:
        for incarnation in (1, 2, 2):
            Client(server, incarnation).join()
        with pytest.raises(grpc.RpcError) as error:
            Client(server, 3).join()
        assert refusal(error)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "over_limit")
        assert "limit of address actors" in refusal(error)[2]


def test_ingest_does_not_buffer_what_a_held_back_actor_keeps_sending(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(replay={"samples_per_insert": 2.0, "error_buffer": 10.0})) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1, count=5))
        server.control.sampled = 1
        before = most_memory(server.ingest.pid)
        rows = (1 << 20) // client.schema.row_bytes
        for seq in range(2, 66):
            talk.put(client.batch(seq, count=rows))
        for _ in range(3):
            assert talk.hear().acked_seq == 1, "a second later still held back"
        assert most_memory(server.ingest.pid) - before < 16 << 20


def test_an_old_stream_that_ends_late_does_not_take_the_actor_offline(client: Client) -> None:
    client.join()
    old, new = Talk(client.stub), Talk(client.stub)
    old.say(client.batch(1))
    new.say(client.batch(2, start=5))
    old.end()
    wait_for(lambda: client.server.control.actors_online == 1, "the new stream counts")
    assert new.say(client.batch(3, start=10)).acked_seq == 3
    assert client.server.actor_table["state"][0] == ActorState.ONLINE
    new.end()
    wait_for(lambda: client.server.control.actors_online == 0, "its end counts")


def test_a_batch_is_acknowledged_once_it_is_mirrored_if_the_configuration_says_so(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    storage = {"mirror": f"file://{tmp_path}/mirror", "mirror_seconds": 3600, "acknowledge": "mirrored"}
    with LearnerServer(make_config(storage=storage)) as server:
        client = Client(server)
        assert client.join().epoch > 0
        talk = Talk(client.stub)
        heartbeat = client.batch(0, rows=0, payload=b"")
        answer = talk.say(heartbeat)
        assert (answer.acked_seq, answer.mirrors) == (0, True)
        assert [talk.say(client.batch(seq, start=5 * seq)).acked_seq for seq in (1, 2, 3)] == [0, 0, 0]
        assert talk.say(client.batch(1, start=5)).acked_seq == 0, "it was stored before, and is not mirrored either"
        assert client.memory().committed == 15
        assert server.mirrored is not None
        for end, acked in ((4, 0), (5, 1), (14, 2), (15, 3)):
            server.mirrored.mirrored = end  # The mirror's process would write this.
            assert talk.say(heartbeat).acked_seq == acked
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        talk.end()
