"""``AdminService``, by its messages, of a real ingest process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from learner.ingest import admin
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.conftest import MakeConfig, kill, wait_for
from tests.learner.ingest.by_hand import SECONDS, Client, Talk, refusal


@pytest.fixture
def client(make_config: MakeConfig) -> Iterator[Client]:
    """Of a learner that answers admins."""
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        made = Client(server)
        yield made
        made.channel.close()


def status(client: Client) -> pb.StatusResponse:
    return pb_grpc.AdminServiceStub(client.channel).Status(pb.StatusRequest(), timeout=SECONDS)


def test_status_says_which_actor_evaluates(make_config: MakeConfig) -> None:
    scored = {"evaluator": {"process": "actor"}, "trainer": {"max_opts": 10, "eval_interval": 5}}
    with LearnerServer(make_config(**scored)) as server:
        scores, records = Client(server), Client(server, 78)
        scores.join(evaluates=True)
        records.join()
        found = {actor.actor_id: actor.evaluates for actor in status(records).actors}
        assert found == {0: False, server.config.server.max_actors - 1: True}
        for client in (scores, records):
            client.channel.close()


def test_every_state_of_an_actor_has_a_name_on_the_wire_and_the_other_way_round() -> None:
    on_the_wire = {name.removeprefix("ACTOR_STATE_") for name in dict(pb.ActorState.items())} - {"UNSPECIFIED"}
    assert on_the_wire == {state.name for state in ActorState} - {"UNUSED"}
    assert sorted(admin._STATES.values()) == sorted(set(pb.ActorState.values()) - {pb.ACTOR_STATE_UNSPECIFIED})


def test_status_tells_of_an_actor_everything_that_is_known(client: Client) -> None:
    client.join(host="here", pid=7, version="1.2")
    report = pb.Report(env_steps=6, reconnects=2, episode_returns=[1.5], episode_lengths=[6])
    talk = Talk(client.stub)
    talk.say(client.batch(1, report=report))
    found = status(client)
    assert (found.inserted, found.replay_items, found.return_mean) == (5, 4, 1.5)
    (actor,) = found.actors
    assert actor.silent_seconds >= 0
    actor.ClearField("silent_seconds")
    assert actor == pb.ActorStatus(
        actor_id=0,
        host="here",
        pid=7,
        state=pb.ACTOR_STATE_ONLINE,
        items=5,
        env_steps=6,
        lag_opt_steps=0,
        last_return=1.5,
        reconnects=2,
        version="1.2",
    )


def test_status_leaves_out_figures_that_an_actor_does_not_have_yet(guest: Client) -> None:
    actor_id = guest.join().actor_id
    (actor,) = (actor for actor in status(guest).actors if actor.actor_id == actor_id)
    assert actor.state == pb.ACTOR_STATE_JOINED
    assert not actor.HasField("lag_opt_steps"), "it has sent no batch"
    assert not actor.HasField("last_return"), "it has ended no episode"


def test_a_replay_ratio_that_no_configuration_may_have_is_refused_and_changes_nothing(guest: Client) -> None:
    stub = pb_grpc.AdminServiceStub(guest.channel)
    with pytest.raises(grpc.RpcError) as error:
        stub.SetReplayRatio(pb.SetReplayRatioRequest(samples_per_insert=-1.0), timeout=SECONDS)
    assert refusal(error)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "bad_items")
    assert "replay.samples_per_insert" in refusal(error)[2]
    assert not status(guest).HasField("samples_per_insert")


HERE = pb.ActorSelection(hosts=["here"])


def admin_of(client: Client) -> pb_grpc.AdminServiceStub:
    return pb_grpc.AdminServiceStub(client.channel)


def audit_of(client: Client) -> list[dict[str, Any]]:
    """The events in the audit log."""
    lines = (client.server.run.dir.path / "audit.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def cannot_join(client: Client, **changes: object) -> str:
    """The message of a refusal after which an actor asks again."""
    with pytest.raises(grpc.RpcError) as error:
        client.join(**changes)
    assert refusal(error)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors")
    return refusal(error)[2]


def test_a_cordon_keeps_new_actors_out_and_those_that_are_there_go_on_and_may_come_back(client: Client) -> None:
    stub, newcomer = admin_of(client), Client(client.server, incarnation=78)
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    assert stub.Cordon(pb.CordonRequest(actors=HERE), timeout=SECONDS).actors == 1
    assert "this actor or its host is cordoned" in cannot_join(newcomer)
    assert newcomer.join(host="elsewhere").actor_id == 1
    assert not talk.say(client.batch(2, start=5)).stop
    talk.cancel()
    assert client.join().last_seq == 2
    found = status(client)
    assert (found.cordoned, found.drained) == (HERE, pb.ActorSelection())
    stub.Uncordon(pb.UncordonRequest(actors=HERE), timeout=SECONDS)
    assert Client(client.server, incarnation=79).join().actor_id == 2


def test_a_cordoned_id_is_given_to_nobody(client: Client) -> None:
    admin_of(client).Cordon(pb.CordonRequest(actors=pb.ActorSelection(actor_ids=[0, 2])), timeout=SECONDS)
    given = [Client(client.server, incarnation).join().actor_id for incarnation in (1, 2)]
    assert given == [1, 3]
    cannot_join(Client(client.server, 3), wanted_id=2)
    assert Client(client.server, 4).join(wanted_id=7).actor_id == 7


def test_a_drained_actor_hears_stop_hands_over_and_leaves_and_none_comes_after_it_also_when_ingest_is_killed(
    client: Client,
) -> None:
    client.join()
    talk = Talk(client.stub)
    assert not talk.say(client.batch(1)).stop
    assert admin_of(client).Drain(pb.DrainRequest(actors=HERE), timeout=SECONDS).actors == 1
    assert talk.say(client.batch(0, rows=0, payload=b"")).stop, "the answer to the next heartbeat"
    pid = client.server.ingest.pid
    kill(pid)
    wait_for(lambda: client.server.ingest.pid != pid, "another ingest process")
    grpc.channel_ready_future(client.channel).result(SECONDS)
    cannot_join(Client(client.server, incarnation=78))
    assert client.join().last_seq == 1, "it still has rows"
    talk = Talk(client.stub)
    assert talk.say(client.batch(2, start=5)).stop, "it is told again"
    talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
    talk.end()
    assert client.stored() == list(range(10))
    assert status(client).drained == HERE


def test_acknowledgements_of_a_drained_actor_are_not_held_back(make_config: MakeConfig) -> None:
    server = {"grace_seconds": SECONDS}
    with LearnerServer(make_config(server=server, replay={"samples_per_insert": 1.0})) as learner:
        learner.control.sampled = 1  # From its first draw on, the trainer holds actors back; it draws no more.
        client = Client(learner)
        client.join()
        talk = Talk(client.stub)
        talk.put(client.batch(1))
        assert talk.hear().acked_seq == 0, "held back: only a sign of life"
        admin_of(client).Drain(pb.DrainRequest(actors=pb.ActorSelection(all=True)), timeout=SECONDS)
        answers = iter(talk.hear, None)
        assert next(answer.acked_seq for answer in answers if answer.stop and answer.acked_seq) == 1
        assert talk.say(client.batch(2, start=5, report=pb.Report(leaving=True))).acked_seq == 2
        talk.end()


def test_a_selection_that_no_actor_can_be_in_is_refused(guest: Client) -> None:
    for actors, message in (
        (pb.ActorSelection(), "actors: expected ids, names of hosts, or all, found none"),
        (pb.ActorSelection(hosts=[""]), "actors: expected ids, names of hosts, or all, found none"),
        (pb.ActorSelection(hosts=["a\nb"]), "hosts: expected printable characters and no markup, found '\\n'"),
        (pb.ActorSelection(actor_ids=[256]), "actor_ids: expected less than 256 (server.max_actors), found 256"),
    ):
        with pytest.raises(grpc.RpcError) as error:
            admin_of(guest).Drain(pb.DrainRequest(actors=actors), timeout=SECONDS)
        assert refusal(error)[1:] == ("bad_items", message)
    assert status(guest).cordoned == pb.ActorSelection()


def test_cordons_are_in_the_audit_log_and_the_waiting_of_actors_is_not(client: Client) -> None:
    admin_of(client).Cordon(pb.CordonRequest(actors=HERE), timeout=SECONDS)
    cannot_join(client)
    (cordon,) = (event for event in audit_of(client) if event["event"] == "admin")
    assert (cordon["method"], cordon["actors"]) == ("/crossborder.v1.AdminService/Cordon", "hosts here")
    assert [event for event in audit_of(client) if event["event"] == "refused"] == []


def test_a_cordon_that_cannot_be_kept_is_in_the_audit_log_as_a_failure(client: Client) -> None:
    (client.server.run.dir.shared / ".cordons.json.part").mkdir()
    with pytest.raises(grpc.RpcError) as error:
        admin_of(client).Cordon(pb.CordonRequest(actors=HERE), timeout=SECONDS)
    assert refusal(error)[1] == "internal"
    (event,) = (event for event in audit_of(client) if event.get("method", "").endswith("/Cordon"))
    assert (event["event"], event["outcome"]) == ("refused", "internal")
    assert "cordons.json: cannot be written: Is a directory" in event["reason"]
