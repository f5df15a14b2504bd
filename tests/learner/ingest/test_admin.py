"""``AdminService``, by its messages, of a real ingest process."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from learner.ingest import admin
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.conftest import MakeConfig
from tests.learner.ingest.by_hand import SECONDS, Client, Talk, refusal


@pytest.fixture
def client(make_config: MakeConfig) -> Iterator[Client]:
    """Of a learner that answers admins."""
    with LearnerServer(make_config(server={"admin": True, "grace_seconds": 0.5})) as server:
        made = Client(server)
        yield made
        made.channel.close()


def status(client: Client) -> pb.StatusResponse:
    return pb_grpc.AdminServiceStub(client.channel).Status(pb.StatusRequest(), timeout=SECONDS)


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
    assert (found.inserted, found.replay_items) == (5, 4)
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


def test_status_leaves_out_figures_that_an_actor_does_not_have_yet(client: Client) -> None:
    client.join()
    (actor,) = status(client).actors
    assert actor.state == pb.ACTOR_STATE_JOINED
    assert not actor.HasField("lag_opt_steps"), "it has sent no batch"
    assert not actor.HasField("last_return"), "it has ended no episode"


def test_a_replay_ratio_that_no_configuration_may_have_is_refused_and_changes_nothing(client: Client) -> None:
    stub = pb_grpc.AdminServiceStub(client.channel)
    with pytest.raises(grpc.RpcError) as error:
        stub.SetReplayRatio(pb.SetReplayRatioRequest(samples_per_insert=-1.0), timeout=SECONDS)
    assert refusal(error)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "bad_items")
    assert "replay.samples_per_insert" in refusal(error)[2]
    assert not status(client).HasField("samples_per_insert")
