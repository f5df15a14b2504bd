"""The wire, spoken by hand to a real ingest process over a real socket."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from actor.client.assembly import assemble
from common.data import Items, ModelVersion
from common.wire.channel import get_model
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import ERROR_KEY, PROTOCOL_VERSION
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.conftest import PATIENCE, ROOT, MakeConfig, kill, most_memory, wait_for

SECONDS = PATIENCE


class Talk:
    """One PushItems stream, a request at a time."""

    def __init__(self, stub: pb_grpc.LearnerServiceStub) -> None:
        self._requests: queue.Queue[pb.PushItemsRequest | None] = queue.Queue()
        self._responses = stub.PushItems(iter(self._requests.get, None), timeout=SECONDS)

    def put(self, request: pb.PushItemsRequest) -> None:
        self._requests.put(request)

    def say(self, request: pb.PushItemsRequest) -> pb.PushItemsResponse:
        self.put(request)
        return next(self._responses)

    def end(self) -> None:
        self._requests.put(None)
        for _ in self._responses:
            raise AssertionError("nothing more was asked")

    def cancel(self) -> None:
        """Break off, as an actor does that is killed."""
        self._responses.cancel()

    def hear(self) -> pb.PushItemsResponse:
        return next(self._responses)


class Client:
    """An actor written by hand."""

    def __init__(self, server: LearnerServer, incarnation: int = 77) -> None:
        self.server = server
        self.incarnation = incarnation
        self.channel = grpc.insecure_channel(server.ingest.address)
        self.stub = pb_grpc.LearnerServiceStub(self.channel)
        self.schema = server.run.memory.schema

    def join(self, **changes: object) -> pb.JoinResponse:
        request = {
            "protocol_version": PROTOCOL_VERSION,
            "incarnation": self.incarnation,
            "host": "here",
            "pid": 1,
            **changes,
        }
        return self.stub.Join(pb.JoinRequest(**request), timeout=SECONDS)  # type: ignore[arg-type]

    def items(self, start: int, count: int) -> Items:
        items = self.schema.empty(count)
        for column in items.values():
            column[:] = 0
        items["reward"][:] = np.arange(start, start + count)
        return items

    def batch(self, seq: int, start: int = 0, count: int = 5, **changes: object) -> pb.PushItemsRequest:
        request = {
            "incarnation": self.incarnation,
            "seq": seq,
            "schema_hash": self.schema.hash,
            "rows": count,
            "payload": encode(self.schema, self.items(start, count), count),
            **changes,
        }
        return pb.PushItemsRequest(**request)  # type: ignore[arg-type]

    def stored(self) -> list[float]:
        memory = self.server.run.memory
        return [float(reward) for reward in memory.columns["reward"][: memory.committed]]


@pytest.fixture
def client(host: LearnerServer) -> Iterator[Client]:
    made = Client(host)
    yield made
    made.channel.close()


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str, str]:
    names = [str(entry.value) for entry in error.value.trailing_metadata() if entry.key == ERROR_KEY]
    return error.value.code(), names[0], error.value.details() or ""


def test_join_tells_everything_an_actor_needs(client: Client) -> None:
    joined = client.join()
    assert joined.actor_id == 0
    assert joined.seed == 0
    assert joined.epsilon == pytest.approx(0.05)
    assert joined.last_seq == 0
    assert (joined.newest.incarnation, joined.newest.opt_steps) == (1, 0)
    assert joined.schema.hash == client.schema.hash
    assert "tests.parts:CountingEnv" in joined.config_json
    assert joined.limits.max_rows == 62_500, "a sixteenth of the capacity"
    again = client.join()
    assert (again.actor_id, again.run_id) == (0, joined.run_id)


def test_invariant_12_exploration_differs_per_actor_and_is_the_learners_to_say(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(exploration={"base": 0.4, "alpha": 7.0, "rungs": 3})) as server:
        epsilons = [Client(server, incarnation).join().epsilon for incarnation in (1, 2, 3, 4)]
    assert epsilons == pytest.approx([0.4, 0.4**4.5, 0.4**8, 0.4])


def test_an_actor_with_parameters_of_its_own_gets_them_and_the_others_do_not(make_config: MakeConfig) -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"lr": 0.5, "explorer": {"start": 0.9}}}
    with LearnerServer(make_config(agent=agent, agent_overrides={1: {"explorer": {"final_step": 5}}})) as server:
        told = [json.loads(Client(server, incarnation).join().config_json) for incarnation in (1, 2, 3)]
    explorers = [config["agent"]["params"].pop("explorer") for config in told]
    assert explorers == [{"start": 0.9}, {"start": 0.9, "final_step": 5}, {"start": 0.9}]
    assert told[0] == told[1] == told[2]


def test_every_actor_process_has_seeds_of_its_own_also_in_the_place_of_another(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(seed=50, envs_per_actor=4)) as server:
        gone, other, late = (Client(server, incarnation) for incarnation in (1, 2, 3))
        assert (gone.join().seed, other.join().seed, gone.join().seed) == (50, 54, 50)
        talk = Talk(gone.stub)
        talk.say(gone.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        joined = late.join()
    assert (joined.actor_id, joined.seed) == (0, 58)


def test_a_lost_actors_id_and_epsilon_pass_on_and_its_seed_does_not(make_config: MakeConfig) -> None:
    ladder = {"base": 0.4, "alpha": 7.0, "rungs": 2}
    with LearnerServer(make_config(exploration=ladder, server={"max_actors": 2, "lost_seconds": 3.0})) as server:
        staying, lost, late = (Client(server, incarnation) for incarnation in (1, 2, 3))
        staying.join()
        before = lost.join()
        broken = Talk(lost.stub)
        broken.say(lost.batch(0, rows=0, payload=b""))
        broken.cancel()
        talk = Talk(staying.stub)
        talk.say(staying.batch(1))
        after: list[pb.JoinResponse] = []

        def joins() -> bool:
            talk.say(staying.batch(0, rows=0, payload=b""))  # It is not silent.
            with contextlib.suppress(grpc.RpcError):
                after.append(late.join())
            return bool(after)

        wait_for(joins, "the lost one is given up")
    assert (after[0].actor_id, after[0].epsilon) == (before.actor_id, before.epsilon)
    assert before.epsilon == pytest.approx(0.4**8)
    assert (before.seed, after[0].seed) == (1, 2), "it would replay the episodes of the lost one"


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
    for seq in (1, 2, 1, 2):
        assert talk.say(client.batch(seq, start=seq * 5)).acked_seq == max(seq, 2 if client.stored()[5:] else seq)
    assert client.stored() == [*range(5, 10), *range(10, 15)]
    assert client.server.control.duplicates == 2


def test_after_ingest_was_killed_everything_acknowledged_is_there_and_nothing_twice(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1, start=0))
    before = client.server.ingest.pid
    kill(before)
    with pytest.raises(grpc.RpcError):
        talk.hear()
    wait_for(lambda: client.server.ingest.restarts == 1, "the restart")
    assert client.join().last_seq == 1
    talk = Talk(client.stub)
    assert talk.say(client.batch(1, start=0)).acked_seq == 1
    assert talk.say(client.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


BAD: dict[str, tuple[Callable[[Client], pb.PushItemsRequest], str, str]] = {
    "a gap": (lambda c: c.batch(2), "bad_items", "actor 0: seq: expected 1, found 2"),
    "another schema": (lambda c: c.batch(1, schema_hash=1), "schema_mismatch", "schema: expected"),
    "a batch without a seq": (
        lambda c: c.batch(0),
        "bad_items",
        "seq: expected 1 or more for a batch of 5 rows, found 0",
    ),
    "no boolean": (
        lambda c: c.batch(1, payload=encode(c.schema, c.items(0, 5), 5)[:-1] + b"\x02"),
        "bad_items",
        "column 'truncated': expected booleans of 0 or 1",
    ),
    "no rows": (lambda c: c.batch(1, rows=0), "bad_items", "rows: expected 1 to 62500, found 0"),
    "too many rows": (lambda c: c.batch(1, rows=62_501), "bad_items", "found 62501"),
    "truncated bytes": (lambda c: c.batch(1, payload=b"123"), "bad_items", "payload: expected 190 bytes"),
    "another count": (lambda c: c.batch(1, rows=4), "bad_items", "payload: expected 152 bytes for 4 rows, found 190"),
    "not a number": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), "reward": np.full(5, np.nan, "<f4")}, 5)),
        "bad_items",
        "column 'reward': expected finite values, found nan in row 0",
    ),
    "an action that the environment does not have": (
        lambda c: c.batch(1, payload=encode(c.schema, {**c.items(0, 5), "action": np.array([0, 2, 3, 0, 7])}, 5)),
        "bad_items",
        "actor 0: column 'action': expected 0 to 2, found 3 in row 2",
    ),
    "lengths without returns": (
        lambda c: c.batch(1, report=pb.Report(episode_lengths=[3])),
        "bad_items",
        "as many episode lengths as returns",
    ),
    "more successes than episodes": (
        lambda c: c.batch(1, report=pb.Report(episode_successes=[True])),
        "bad_items",
        "report: expected at most 0 episode successes",
    ),
    "a return that is not finite": (
        lambda c: c.batch(1, report=pb.Report(episode_returns=[float("inf")], episode_lengths=[3])),
        "bad_items",
        "report: expected finite episode returns",
    ),
    "a return that no sum of rewards can be": (
        lambda c: c.batch(1, report=pb.Report(episode_returns=[1e308, -1e308], episode_lengths=[3, 3])),
        "bad_items",
        "report: expected finite episode returns of together up to 3.40282e+38, found 1e+308",
    ),
    "seconds that cannot be": (
        lambda c: c.batch(1, report=pb.Report(env_seconds=float("nan"))),
        "bad_items",
        "'env_seconds': nan",
    ),
    "seconds before the first": (
        lambda c: c.batch(1, report=pb.Report(wait_seconds=-1.0)),
        "bad_items",
        "'wait_seconds': -1.0",
    ),
    "more steps than can be": (
        lambda c: c.batch(1, report=pb.Report(env_steps=2**64 - 1)),
        "bad_items",
        "report: expected figures from 0 and together up to 9007199254740992, found {'env_steps': 18446744073709551615",
    ),
    "a version that cannot be": (
        lambda c: c.batch(1, behaviour=pb.ModelVersion(opt_steps=2**64 - 1)),
        "bad_items",
        "behaviour: expected opt steps up to 9007199254740992, found 18446744073709551615",
    ),
    "somebody who has not joined": (
        lambda c: c.batch(1, incarnation=5),
        "not_joined",
        "0000000000000005 has not joined",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_items_are_refused_by_name_and_harm_nobody(client: Client, what: str) -> None:
    make, name, message = BAD[what]
    client.join()
    other = Client(client.server, incarnation=78)
    other.join()
    talk = Talk(other.stub)
    talk.say(other.batch(1, start=0))
    with pytest.raises(grpc.RpcError) as error:
        Talk(client.stub).say(make(client))
    assert refusal(error)[1] == name
    assert message in refusal(error)[2]
    assert talk.say(other.batch(2, start=5)).acked_seq == 2
    assert client.stored() == list(range(10))


def test_a_stream_is_one_actors(client: Client) -> None:
    client.join()
    Client(client.server, incarnation=78).join()
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    with pytest.raises(grpc.RpcError) as error:
        talk.say(client.batch(1, incarnation=78))
    assert "incarnation: expected the one the stream began with" in refusal(error)[2]


def test_another_protocol_version_is_refused_by_name(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        client.join(protocol_version=PROTOCOL_VERSION + 1)
    assert refusal(error)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "protocol_mismatch")
    assert f"the learner speaks {PROTOCOL_VERSION}, the actor {PROTOCOL_VERSION + 1}" in refusal(error)[2]


def test_when_all_ids_are_taken_joining_is_refused_for_now(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"max_actors": 1})) as server:
        Client(server, 1).join()
        with pytest.raises(grpc.RpcError) as error:
            Client(server, 2).join()
    assert refusal(error)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_actors")


def test_what_an_actors_environment_raised_is_logged_marked_shortened_and_seldom(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.join()
    talk = Talk(client.stub)
    for text in ("x" * 10_000 + "\nERROR learner: forged", "another"):
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(env_error=text)))
    talk.end()
    wait_for(lambda: "left" in caplog.text or "closed without goodbye" in caplog.text, "the log of the whole stream")
    (told,) = [said for said in caplog.messages if "an environment of actor 0" in said]
    assert told.endswith("x\n| ERROR learner: forged")
    assert len(told) < 4200


def test_the_newest_model_is_sent_and_what_an_actor_has_is_not_sent_again(client: Client) -> None:
    file = assemble(get_model(client.channel)(pb.GetModelRequest(), timeout=SECONDS))
    assert file is not None
    assert file.model.version == ModelVersion(1, 0)
    have = pb.ModelVersion(incarnation=1, opt_steps=0)
    (answer,) = client.stub.GetModel(pb.GetModelRequest(have=have), timeout=SECONDS)
    assert answer.not_modified
    assert answer.data == b""


def test_an_acknowledgement_announces_a_newer_model(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    assert talk.say(client.batch(1)).newest.opt_steps == 0
    client.server.learner.publish(40)
    assert talk.say(client.batch(2)).newest.opt_steps == 40


def test_a_large_model_comes_in_chunks(make_config: MakeConfig) -> None:
    units = {"target": "common.agents.dqn:DQN", "params": {"units": [1500, 1500]}}
    with LearnerServer(make_config(agent=units)) as server:
        messages = list(get_model(Client(server).channel)(pb.GetModelRequest(), timeout=SECONDS))
        file = assemble(messages)
    assert file is not None
    assert len(messages) == -(-len(file.data) // (1 << 20)) > 4
    assert file.model.params["layers.3.weight"].shape == (1500, 1500)


def test_stop_is_said_unasked_and_goodbye_ends_the_stream(client: Client) -> None:
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    client.server.ingest.announce_stop()
    assert talk.hear().stop
    assert talk.say(client.batch(2, start=5)).acked_seq == 2
    leaving = pb.PushItemsRequest(incarnation=client.incarnation, report=pb.Report(env_steps=9, leaving=True))
    talk.say(leaving)
    talk.end()
    wait_for(client.server.ingest.has_ended, "ingest winds up")
    assert client.stored() == [*range(5), *range(5, 10)]


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
        wait_for(server.ingest.has_ended, "ingest winds up as soon as all have left")
        assert client.stored() == list(range(10))


def test_actors_hand_over_also_when_ingest_dies_as_the_learner_stops(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": SECONDS})) as server:
        client = Client(server)
        client.join()
        Talk(client.stub).say(client.batch(1))
        kill(server.ingest.pid)
        server.ingest.announce_stop()
        answers: list[pb.JoinResponse] = []

        def is_back() -> bool:
            with contextlib.suppress(grpc.RpcError):
                answers.append(client.join())
            return bool(answers)

        wait_for(is_back, "ingest is started again")
        talk = Talk(client.stub)
        assert talk.say(client.batch(2, start=5)).stop
        talk.say(client.batch(0, rows=0, payload=b"", report=pb.Report(leaving=True)))
        talk.end()
        assert server.ingest.wait(SECONDS), "it ends in order, and is not started once more"
        assert client.stored() == list(range(10))


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
    wait_for(client.server.ingest.has_ended, "ingest winds up")
    wait_for(lambda: "have not handed over" in caplog.text, "its last words")
    (told,) = [said for said in caplog.messages if "have not handed over" in said]
    assert told.endswith("the items that they still have are lost: actor 0 (far-away, pid 4711)")
    assert told.startswith("1 actors have not handed over within 0.5 s")


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


def test_a_join_without_a_stream_gives_its_id_back_within_seconds(make_config: MakeConfig) -> None:
    limits = {"handshake_seconds": 1.0}
    with LearnerServer(make_config(server={"max_actors": 1, "limits": limits, "grace_seconds": 0.5})) as server:
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


def test_batches_within_limits_that_the_run_has_told_before_are_taken_after_it_has_lowered_them(
    make_config: MakeConfig,
) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 0.5})) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1))
        talk.cancel()
    lower = {"grace_seconds": 0.5, "max_rows": 20, "max_message_bytes": 60_000}
    with LearnerServer(make_config(server=lower), resume=True) as server:
        client, newcomer = Client(server), Client(server, incarnation=78)
        joined = client.join()
        assert (joined.last_seq, joined.limits.max_rows, joined.limits.max_message_bytes) == (1, 20, 60_000)
        assert Talk(client.stub).say(client.batch(2, count=2000)).acked_seq == 2
        newcomer.join()
        with pytest.raises(grpc.RpcError) as error:
            Talk(newcomer.stub).say(newcomer.batch(1, count=21))
        assert "rows: expected 1 to 20, found 21" in refusal(error)[2]


def test_acknowledgements_are_held_back_to_keep_the_replay_ratio(make_config: MakeConfig) -> None:
    ratio = {"samples_per_insert": 2.0, "error_buffer": 10.0}
    with LearnerServer(make_config(replay=ratio)) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        assert talk.say(client.batch(1, count=5)).acked_seq == 1
        server.control.sampled = 1
        still_here = talk.say(client.batch(2, count=5))
        assert still_here.acked_seq == 1, "a sign of life, not the acknowledgement"
        assert len(client.stored()) == 10, "held back, but stored"
        server.control.sampled = 8
        server.ingest.release_held()
        acked = still_here
        while acked.acked_seq < 2:
            acked = talk.hear()
        assert server.control.actor_hold_seconds > 0


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


def test_an_actor_beyond_its_share_of_the_replay_waits_and_is_told_that_the_learner_is_there(
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
    with LearnerServer(make_config(server={"max_actors": 4, "limits": {"max_address_actors": 2}})) as server:
        for incarnation in (1, 2, 2):
            Client(server, incarnation).join()
        with pytest.raises(grpc.RpcError) as error:
            Client(server, 3).join()
        assert refusal(error)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "over_limit")
        assert "limit of address actors" in refusal(error)[2]


def test_an_actor_that_is_held_back_cannot_make_ingest_hold_what_it_sends_on(make_config: MakeConfig) -> None:
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


def test_nobody_is_held_back_before_the_first_draw(make_config: MakeConfig) -> None:
    """The agent may have a warm-up of its own, of which the replay ratio knows nothing."""
    with LearnerServer(make_config(replay={"samples_per_insert": 2.0, "error_buffer": 1.0})) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        assert [talk.say(client.batch(seq, count=50)).acked_seq for seq in range(1, 20)] == list(range(1, 20))
        talk.end()


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


def test_health_is_serving_and_reflection_is_off(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    name = "crossborder.v1.LearnerService"
    for service in ("", name):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    with pytest.raises(grpc.RpcError) as refused:
        list(reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo(asked, timeout=SECONDS))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_ingest_carries_no_torch() -> None:
    code = "import sys, learner.ingest.__main__; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
