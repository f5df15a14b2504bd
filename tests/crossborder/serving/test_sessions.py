from __future__ import annotations

import asyncio

import numpy as np
import pytest

from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import SessionLostError
from crossborder.serving.figures import Figures
from crossborder.serving.served_policy import ServedPolicy
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.sessions import Sessions
from tests.clocks import Clock
from tests.crossborder.serving.services import Counting


def make_sessions(clock: Clock | None = None, **settings: float) -> Sessions:
    config = ServingConfig(**settings)
    return Sessions([ServedPolicy(Counting(), config)], config, Figures(), clock=clock or Clock(0.0))


def test_a_lane_goes_to_another_session_only_when_no_batch_holds_it() -> None:
    async def act() -> None:
        sessions = make_sessions()
        _, session = sessions.open(1, "")
        answer: asyncio.Future[pb.ActResponse] = asyncio.get_running_loop().create_future()
        session.take(pb.LaneSteps(seq=1, observation=np.zeros(2, np.float32).tobytes()), answer.set_result)
        sessions.close(session)
        assert sessions.open(1, "")[1].lanes.tolist() == [1]
        answering = asyncio.create_task(sessions.policy("").batches.run())
        await answer
        await asyncio.sleep(0)
        assert sessions.open(1, "")[1].lanes.tolist() == [0]
        answering.cancel()

    asyncio.run(act())


def test_a_session_is_found_by_the_holder_of_the_token_that_opened_it_only() -> None:
    sessions = make_sessions()
    secret, session = sessions.open(1, "unity-host")
    assert sessions.find(secret, "unity-host") is session
    with pytest.raises(SessionLostError):
        sessions.find(secret, "godot-host")


@pytest.mark.parametrize(("is_connected", "limit"), [(True, 30.0), (False, 10.0)])
def test_a_silent_session_and_one_without_a_connection_end_in_time(is_connected: bool, limit: float) -> None:
    clock = Clock(0.0)
    sessions = make_sessions(clock, silence_seconds=30, resume_seconds=10)
    secret, session = sessions.open(2, "")
    ended = list[bool]()

    def hang_up() -> None:
        ended.append(True)

    sessions.connect(session, hang_up)
    assert sessions.connected_lanes == 2
    if not is_connected:
        sessions.disconnect(session, hang_up)
        assert sessions.connected_lanes == 0
    clock.now = limit
    sessions.tick()
    assert sessions.find(secret, "") is session
    clock.now = limit + 1
    sessions.tick()
    with pytest.raises(SessionLostError):
        sessions.find(secret, "")
    assert (len(sessions), sessions.used_lanes, sessions.connected_lanes) == (0, 0, 0)
    assert ended == [True] * is_connected


def test_a_session_that_waits_for_the_service_is_not_silent() -> None:
    async def act() -> None:
        clock = Clock(0.0)
        sessions = make_sessions(clock, silence_seconds=30)
        secret, session = sessions.open(1, "")
        sessions.connect(session, lambda: None)
        answer: asyncio.Future[pb.ActResponse] = asyncio.get_running_loop().create_future()
        session.take(pb.LaneSteps(seq=1, observation=np.zeros(2, np.float32).tobytes()), answer.set_result)
        clock.now = 1000
        sessions.tick()
        answering = asyncio.create_task(sessions.policy("").batches.run())
        await answer
        answering.cancel()
        sessions.tick()
        assert sessions.find(secret, "") is session
        clock.now = 1031
        sessions.tick()
        assert not len(sessions)

    asyncio.run(act())
