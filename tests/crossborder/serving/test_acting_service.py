"""Sessions over gRPC, with real sockets: what docs/acting-service.md promises to those who write a client."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest

from common.interfaces import EnvSpec
from common.wire.pb import acting_pb2 as pb
from tests.conftest import wait_for
from tests.crossborder.serving.services import Caller, Counting, Service, Stream, Wide, numbers, refusal


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(max_sessions=3, max_lanes=8, resume_seconds=60) as made:
        yield made


@pytest.fixture
def caller(service: Service) -> Iterator[Caller]:
    with Caller(service.places.address) as made:
        yield made


def refused(stream: Stream, **request: Any) -> tuple[str, str, str]:
    stream.send(**request)
    with pytest.raises(grpc.RpcError) as error:
        stream.read()
    return refusal(error.value)


def test_a_client_learns_all_that_it_needs_from_describe(caller: Caller) -> None:
    described = caller.stub.Describe(pb.DescribeRequest())
    assert described.protocol_version == 1
    assert [*described.observation] == [pb.Leaf(dtype="<f4", shape=[2], low=[-1], high=[1])]
    assert [*described.action] == [pb.Leaf(dtype="<i8", low=[0], high=[999])]
    assert (described.limits.max_lanes, described.limits.max_sessions, described.limits.resume_seconds) == (8, 3, 60)
    assert (described.explores, described.version) == (False, 7)


def test_a_session_gets_lanes_a_secret_and_seeds_that_no_other_lane_has(caller: Caller) -> None:
    first, second = caller.open(2).opened, caller.open(3).opened
    assert (first.lanes, first.seed, first.last_seq) == (2, 0, 0)
    assert (second.lanes, second.seed) == (3, 2)
    assert len(first.secret) >= 20
    assert first.secret != second.secret


def test_an_episode_of_two_steps_takes_three_messages_and_the_next_begins_anew(caller: Caller) -> None:
    stream = caller.open()
    assert stream.actions(1) == [1]
    assert stream.actions(2, reward=[0.5]) == [2]
    stream.step(3, reward=[1.0], terminated=[True])
    assert stream.actions(4) == [1]
    assert stream.step(5).version == 7


def test_lanes_of_a_session_act_together_or_apart(service: Service, caller: Caller) -> None:
    stream = caller.open(3)
    assert stream.actions(1, 3) == [1, 1, 1]
    assert stream.actions(2, 2, lanes=[2, 0]) == [2, 2]
    assert stream.actions(3, 3) == [3, 2, 3]
    assert stream.actions(4, 2, lanes=[0, 1], truncated=[True, False])[1] == 3
    assert stream.actions(5, 2, lanes=[1, 0]) == [4, 1]
    assert stream.actions(6, 1, lanes=[1], restarted=[True]) == [1]
    assert service.player.batches == [[0, 1, 2], [2, 0], [0, 1, 2], [1], [1, 0], [1]]


def test_a_repeated_step_gets_the_same_action_again(service: Service, caller: Caller) -> None:
    stream = caller.open()
    assert [stream.actions(1), stream.actions(2), stream.actions(2), stream.actions(1)] == [[1], [2], [2], [1]]
    assert stream.actions(3) == [3]
    assert len(service.player.batches) == 3
    assert refused(stream, step=stream.make_step(1))[1] == "bad_message"


def test_answers_are_kept_for_as_many_lanes_as_the_session_has(service: Service, caller: Caller) -> None:
    """A step is answered again until the steps after it have named more lanes than there are."""
    stream = caller.open(3)
    assert stream.actions(1, 3) == [1, 1, 1]
    for seq, lane in enumerate((0, 1, 2), 2):
        stream.step(seq, lanes=[lane])
    assert stream.actions(1, 3) == [1, 1, 1]
    assert stream.actions(5, 3) == [3, 3, 3]
    assert stream.actions(4) == [2]
    assert refused(stream, step=stream.make_step(3))[1] == "bad_message"


def test_a_session_goes_on_in_the_same_episode_after_its_connection_broke(caller: Caller) -> None:
    stream = caller.open(2)
    stream.actions(1, 2)
    stream.actions(2, 2)
    stream.cut()
    back = caller.resume(stream.opened.secret)
    assert (back.opened.lanes, back.opened.seed, back.opened.last_seq) == (2, 0, 2)
    assert back.actions(2, 2) == [2, 2]
    assert back.actions(3, 2) == [3, 3]


def test_a_step_whose_connection_broke_before_the_answer_is_answered_once() -> None:
    with Service(max_wait_ms=300) as service, Caller(service.places.address) as caller:
        stream = caller.open(2)
        step = stream.make_step(1, lanes=[0])
        stream.send(step=step)  # It waits for lane 1.
        stream.cut()
        back = caller.resume(stream.opened.secret)
        back.send(step=step)
        assert numbers(back.read()) == [1]
        assert back.actions(2, lanes=[0]) == [2]
        assert service.player.batches == [[0], [0]]


def test_a_client_that_sends_nothing_more_still_gets_its_answers() -> None:
    with Service(max_wait_ms=300) as service, Caller(service.places.address) as caller:
        stream = caller.open(2)
        stream.send(step=stream.make_step(1, lanes=[0]))  # It waits for lane 1.
        stream.finish()
        assert numbers(stream.read()) == [1]
        assert not list(stream.call)


def test_a_step_that_comes_again_before_its_answer_is_answered_each_time() -> None:
    with Service(max_wait_ms=300) as service, Caller(service.places.address) as caller:
        stream = caller.open(2)
        for _ in range(2):
            stream.send(step=stream.make_step(1, lanes=[0]))
        assert [numbers(stream.read()), numbers(stream.read())] == [[1], [1]]
        assert service.player.batches == [[0]]


def test_a_resumed_session_leaves_the_connection_that_still_seems_open(caller: Caller) -> None:
    stream = caller.open()
    stream.actions(1)
    back = caller.resume(stream.opened.secret)
    with pytest.raises(grpc.RpcError) as error:
        stream.read()
    assert refusal(error.value)[:2] == ("FAILED_PRECONDITION", "session_lost")
    assert back.actions(2) == [2]


def test_a_refused_step_changes_nothing(caller: Caller) -> None:
    stream = caller.open()
    stream.actions(1)
    code, name, message = refused(stream, step=pb.LaneSteps(seq=2, observation=b"12345678123"))
    assert (code, name) == ("INVALID_ARGUMENT", "bad_message")
    assert message == "observation: payload: expected 8 bytes for 1 rows, found 11"
    back = caller.resume(stream.opened.secret)
    assert back.opened.last_seq == 1
    assert back.actions(2) == [2]


BAD_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "a gap": ({"seq": 3}, "expected seq 2, found 3"),
    "a lane that the session has not": ({"lanes": [2]}, "expected numbers below 2, the session's lanes, found [2]"),
    "a lane twice": ({"lanes": [1, 1]}, "expected numbers that are all different, found [1, 1]"),
    "a reward too few": ({"reward": [1.0]}, "reward: expected 2, one for each lane, or none, found 1"),
    "a reward that is no number": (
        {"reward": [0.0, np.nan]},
        "reward: expected numbers from -1e+12 to 1e+12, found nan",
    ),
    "a reward that no row may have": (
        {"reward": [0.0, -1e13]},
        "reward: expected numbers from -1e+12 to 1e+12, found -",
    ),
    "an observation that is no number": ({"observation": np.full(4, np.nan, "<f4").tobytes()}, "expected finite"),
    "an observation that no row may have": (
        {"observation": np.full(4, 1e13, "<f4").tobytes()},
        "column 'observation': expected values from -1e+12 to 1e+12, found",
    ),
    "an end of lane 1, which begins": ({"terminated": [True, True]}, "where the episode of lane 1 begins"),
    "a reward of lane 1, which begins": ({"reward": [1.0, 1.0]}, "where the episode of lane 1 begins"),
    "an executed action out of bounds": ({"executed": np.array([3, 1000]).tobytes()}, "expected 0 to 999, found 1000"),
    "an intervention without an action": ({"intervened": [True, False]}, "expected executed beside it"),
}


@pytest.mark.parametrize("bad", BAD_STEPS)
def test_a_step_that_breaks_a_rule_is_refused_with_the_reason(caller: Caller, bad: str) -> None:
    fields, reason = BAD_STEPS[bad]
    stream = caller.open(2)
    stream.actions(1, 1, lanes=[0])
    step = {"seq": 2, "observation": np.zeros(4, np.float32).tobytes(), **fields}
    code, name, message = refused(stream, step=pb.LaneSteps(**step))
    assert (code, name) == ("INVALID_ARGUMENT", "bad_message")
    assert reason in message


def test_streams_begin_with_open_or_resume(caller: Caller) -> None:
    for first in ({"step": pb.LaneSteps(seq=1)}, {"close": pb.CloseSession()}, {}, {"open": pb.OpenSession(lanes=0)}):
        with pytest.raises(grpc.RpcError) as error:
            Stream(caller, **first)
        assert refusal(error.value)[1] == "bad_message"
    with pytest.raises(grpc.RpcError) as error:
        caller.resume("nobody has this secret")
    assert refusal(error.value)[:2] == ("FAILED_PRECONDITION", "session_lost")


def test_the_log_says_who_was_refused(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    stream = caller.open()
    refused(stream, step=stream.make_step(9))
    assert "bad_message, from 127.0.0.1: step: expected seq 1, found 9" in caplog.text


def test_what_is_told_about_a_refusal_is_short(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """It repeats what the client has sent, which may be a long text: a log has room for it, and so has a trailer."""
    with pytest.raises(grpc.RpcError) as error:
        caller.open(policy="a" * 100_000)
    code, name, message = refusal(error.value)
    assert (code, name) == ("INVALID_ARGUMENT", "bad_message")
    assert "policy: expected one of these names" in message
    assert max(len(record.getMessage()) for record in caplog.records) < 5000


def test_sessions_and_lanes_are_limited_and_free_again_after_close(service: Service, caller: Caller) -> None:
    streams = [caller.open(2) for _ in range(3)]
    for lanes, limit in ((1, "all 3 sessions (max_sessions)"), (9, "all 3 sessions")):
        with pytest.raises(grpc.RpcError) as error:
            caller.open(lanes)
        assert refusal(error.value)[:2] == ("RESOURCE_EXHAUSTED", "over_limit")
        assert limit in refusal(error.value)[2]
    streams[0].send(close=pb.CloseSession())
    assert [*streams[0].call] == []
    with pytest.raises(grpc.RpcError) as error:
        caller.resume(streams[0].opened.secret)
    assert refusal(error.value)[1] == "session_lost"
    with pytest.raises(grpc.RpcError) as error:
        caller.open(5)
    assert "expected at most 4 lanes, the rest of max_lanes, found 5" in refusal(error.value)[2]
    again = caller.open(4)
    again.actions(1, 4)
    assert sorted(service.player.batches[0]) == [0, 1, 6, 7]


def test_a_session_that_stays_away_ends() -> None:
    with Service(resume_seconds=0) as service, Caller(service.places.address) as caller:
        stream = caller.open()
        stream.actions(1)
        stream.cut()
        wait_for(lambda: is_lost(caller, stream.opened.secret), "the session ends")


def is_lost(caller: Caller, secret: str) -> bool:
    try:
        back = caller.resume(secret)
    except grpc.RpcError as error:
        return refusal(error)[1] == "session_lost"
    back.finish()
    return [*back.call] != []


def test_clients_of_a_service_that_ends_are_told(service: Service, caller: Caller) -> None:
    stream = caller.open()
    stream.actions(1)
    service.stop()
    assert service.error is None
    with pytest.raises(grpc.RpcError) as error:
        stream.read()
    assert refusal(error.value)[:2] == ("UNAVAILABLE", "stopping")


@pytest.mark.usefixtures("_busy_host")
def test_clients_of_a_service_that_ends_are_told_on_a_busy_host_too(service: Service, caller: Caller) -> None:
    stream = caller.open()
    service.stop()
    with pytest.raises(grpc.RpcError) as error:
        stream.read()
    assert refusal(error.value)[:2] == ("UNAVAILABLE", "stopping")


def test_clients_are_told_that_they_need_not_come_back(service: Service, caller: Caller) -> None:
    stream = caller.open()
    stream.actions(1)
    service.is_run_over = True
    service.stop()
    with pytest.raises(grpc.RpcError) as error:
        stream.read()
    assert refusal(error.value)[:2] == ("FAILED_PRECONDITION", "run_over")


def test_a_client_whose_connection_breaks_as_the_run_ends_is_told_when_it_comes_back(
    service: Service, caller: Caller
) -> None:
    stream = caller.open()
    service.is_run_over = True
    service.end()
    with pytest.raises(grpc.RpcError):
        stream.read()  # As if this answer had been lost.
    with pytest.raises(grpc.RpcError) as error:
        caller.resume(stream.opened.secret)
    assert refusal(error.value)[:2] == ("FAILED_PRECONDITION", "run_over")


STRUCTURED = EnvSpec(
    gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "arm": gymnasium.spaces.Tuple(
                (gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(4))
            ),
        }
    ),
    gymnasium.spaces.Dict(
        {"gripper": gymnasium.spaces.Discrete(2), "move": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    ),
)


class Echo(Counting):
    """Moves by the first two joints, and closes its gripper on bright pictures."""

    def sample(self, obs: Any, begins: Any, lanes: Any) -> Any:
        super().sample(obs, begins, lanes)
        bright = obs["camera"].reshape(len(lanes), -1).mean(axis=1) > 100
        return {"gripper": bright.astype(np.int64), "move": obs["arm/0"][:, :2].astype(np.float64)}


def test_observations_of_pictures_and_parts_and_actions_of_parts_travel() -> None:
    with Service(Echo(STRUCTURED)) as service, Caller(service.places.address, STRUCTURED) as caller:
        described = caller.stub.Describe(pb.DescribeRequest())
        leaves = [(leaf.path, leaf.dtype, [*leaf.shape]) for leaf in described.observation]
        assert leaves == [("arm/0", "<f4", [3]), ("arm/1", "<i8", []), ("camera", "|u1", [2, 2, 3])]
        assert [(leaf.path, leaf.dtype) for leaf in described.action] == [("gripper", "<i8"), ("move", "<f4")]
        stream = caller.open(2)
        joints = np.array([[0.5, -0.5, 0.0], [0.25, 1.0, 0.0]], np.float32)
        pictures = np.stack([np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 200, np.uint8)])
        answer = stream.step(1, {"arm/0": joints, "arm/1": np.array([3, 0]), "camera": pictures}, 2)
        actions = caller.description.read_action(answer.action, 2)
        assert actions["gripper"].tolist() == [0, 1]
        assert actions["move"].tolist() == joints[:, :2].tolist()
        bad = {"arm/0": joints, "arm/1": np.array([4, 0]), "camera": pictures}
        code, _, message = refused(stream, step=stream.make_step(2, bad, 2))
        assert code == "INVALID_ARGUMENT"
        assert "column 'observation/arm/1': expected 0 to 3, found 4 in row 0" in message


def test_steps_of_several_lanes_may_wait_at_the_same_time(caller: Caller) -> None:
    stream = caller.open(2)
    for seq, lane in enumerate((0, 1), 1):
        stream.send(step=stream.make_step(seq, lanes=[lane]))
    assert [stream.read().seq, stream.read().seq] == [1, 2]


def test_a_session_names_its_policy_and_only_sessions_of_one_policy_share_a_batch() -> None:
    named = {"easy": Counting(), "hard": Counting()}
    with Service(named=named, max_wait_ms=1000) as service, Caller(service.places.address) as caller:
        for asked in ("", "easy", "hard"):
            described = caller.stub.Describe(pb.DescribeRequest(policy=asked))
            assert [*described.policies] == ["easy", "hard"]
        hard, first = caller.open(2, policy="hard"), caller.open(1)
        assert (hard.opened.policy, first.opened.policy) == ("hard", "easy"), "who names none gets the first"
        assert hard.actions(1, 2) == [1, 1], "no lane of another policy is waited for"
        assert first.actions(1) == [1]
        hard.cut()
        assert caller.resume(hard.opened.secret).opened.policy == "hard"
    assert [player.batches for player in named.values()] == [[[2]], [[0, 1]]]


@pytest.mark.parametrize(("named", "known"), [(["easy", "hard"], "easy, hard"), ([""], "the service has one policy")])
def test_an_unknown_policy_is_refused_with_the_names_of_all(named: list[str], known: str) -> None:
    with Service(named={name: Counting() for name in named}) as service, Caller(service.places.address) as caller:
        asks = (
            lambda: caller.stub.Describe(pb.DescribeRequest(policy="herd")),
            lambda: caller.open(policy="herd"),
        )
        for ask in asks:
            with pytest.raises(grpc.RpcError) as error:
                ask()
            _, name, message = refusal(error.value)
            assert name == "bad_message"
            assert known in message
            assert "found 'herd'" in message


def test_an_answer_says_how_long_its_step_was_at_the_service() -> None:
    with Service(max_wait_ms=100) as service, Caller(service.places.address) as caller:
        first, second = caller.open(), caller.open()
        early = first.step(1)  # The other session's lane does not come.
        second.send(step=second.make_step(1))
        late = first.step(2)
        assert early.seconds > 0.09
        assert 0 < late.seconds < 60
        assert first.step(2) == late, "the same answer again"


def test_a_client_that_reads_no_answers_is_waited_for_before_they_fill_the_memory() -> None:
    """Each step is one of all lanes, so without a bound in lanes there are as many actions as the lanes' square."""
    n, player = 100, Wide()
    with Service(player) as service, Caller(service.places.address, player.spec) as caller:
        greedy, honest, seqs = caller.open(n), Caller(service.places.address, player.spec).open(), count(1)

        def send(seq: int) -> None:
            greedy.send(step=pb.LaneSteps(seq=seq, observation=bytes(4 * n)))

        sent = player.count_taken(n, send, lambda: honest.step(next(seqs), bytes(4)))
        assert sent < n / 2
        assert [greedy.read().seq for _ in range(sent)] == [*range(1, sent + 1)], "it still gets them all"
        assert greedy.step(sent + 1, bytes(4 * n)).seq == sent + 1
