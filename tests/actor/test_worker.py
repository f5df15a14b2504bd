"""One actor in this process, against a real learner host; more of its life is in ``tests/e2e``."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from actor.client.join_answer import read_join
from actor.guard import Busy, EpisodeLostError
from actor.stat import ActorCounters
from actor.worker import Actor, build_agreed_parts, guard_envs, make_proxy
from common.config.run_config import ActorConfig
from common.data import PRIORITY, Column, ModelVersion, Schema
from common.envs import spec_of
from common.errors import CrossborderError, LearnerUnreachableError, PluginError, SchemaMismatchError
from common.processors import OneStep
from common.settings import validate
from common.wire.frames import BufferedItems
from common.wire.rpc import StoppingError
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from tests.actor.client.test_connector import JOINED
from tests.conftest import PATIENCE, MakeConfig, wait_for
from tests.parts import CountingEnv, RatingAgent, expected_items

SCHEMA = OneStep().schema(spec_of(CountingEnv()))
PARTS = {"env": {"target": "tests.parts:CountingEnv"}, "agent": {"target": "tests.parts:CheckingAgent"}}


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def config(**changes: object) -> ActorConfig:
    return validate(ActorConfig, {**PARTS, **changes})


def no_end(error: CrossborderError) -> int:
    raise AssertionError(f"the process would end: {error}")


def test_an_actor_that_is_told_to_stop_hands_over_all_its_items(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(push={"n_buffer": 64})) as server, ThreadPoolExecutor(1) as pool:
        actor = Actor(server.ingest.address, PATIENCE, Trust(), no_end)
        running = pool.submit(actor.run)
        wait_for(lambda: server.actor_table["env_steps"][0] > 200, "it acts")
        actor.stop()
        stat = running.result(PATIENCE)
        assert (stat.actor_id, stat.env_steps) == (0, server.actor_table["env_steps"][0])
        assert stat.duration > 0
        assert server.buffer.inserted == stat.env_steps


def test_an_actor_that_is_stopped_before_it_has_found_its_learner_stops_looking(free_port: int) -> None:
    actor = Actor(f"127.0.0.1:{free_port}", 100 * PATIENCE, Trust(), no_end)
    actor.stop()
    with pytest.raises(StoppingError):
        actor.run()


def test_an_actor_that_finds_no_learner_says_so(free_port: int) -> None:
    with pytest.raises(LearnerUnreachableError):
        Actor(f"127.0.0.1:{free_port}", 0.0, Trust(), no_end).run()


def test_parts_are_built_for_each_environment_of_the_actor() -> None:
    parts = build_agreed_parts(config(envs_per_actor=3), SCHEMA, seed=5, epsilon=0.5)
    assert len({id(lane.env) for lane in parts.lanes}) == len({id(lane.processor) for lane in parts.lanes}) == 3
    assert (parts.agent.seed, parts.agent.epsilon) == (5, 0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "schema", "kind", "message"),
    [
        ({}, SCHEMA.plus(Column("more", "<f4")), SchemaMismatchError, "this actor has nothing"),
        ({"agent": {"target": "no_such:Agent"}}, SCHEMA, PluginError, "no_such"),
        (
            {"step_processor": {"target": "common.processors:NStep", "params": {"n": 0}}},
            SCHEMA,
            PluginError,
            "what the learner names cannot be built here",
        ),
    ],
    ids=["other items", "not installed", "impossible parameters"],
)
def test_parts_that_are_not_those_of_the_learner_are_refused(
    changes: dict[str, object], schema: Schema, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        build_agreed_parts(config(**changes), schema, seed=0, epsilon=0.0)


def test_a_guarded_environment_is_built_anew_from_its_configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    marker = tmp_path_factory.mktemp("failing") / "failed"
    env = {"target": "tests.parts:FailingEnv", "params": {"marker": str(marker), "at": 1}, "rebuilds_per_minute": 1}
    failing, counters = config(env=env), ActorCounters()
    parts = guard_envs(build_agreed_parts(failing, SCHEMA, seed=0, epsilon=0.0), failing.env, counters, Busy())
    parts.env.reset(seed=7)
    with pytest.raises(EpisodeLostError):
        parts.env.step(1)
    obs, _ = parts.env.reset(seed=8)
    assert obs.tolist() == [8, 1, 0]
    assert counters.env_rebuilds == 1


class Batches:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.batches: list[BufferedItems] = []

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        self.batches.append(batch)


@pytest.mark.parametrize("wants_priorities", [False, True])
def test_items_get_priorities_where_the_learner_wants_them(wants_priorities: bool) -> None:
    agreed = config(push={"n_buffer": 4, "initial_priorities": wants_priorities})
    schema = SCHEMA.plus(PRIORITY) if wants_priorities else SCHEMA
    joined = replace(read_join(JOINED), config=agreed, schema=schema)
    agent, sink = RatingAgent(spec_of(CountingEnv()), seed=0, epsilon=0.0, device="cpu"), Batches()
    items = {name: column.astype(SCHEMA.empty(0)[name].dtype) for name, column in expected_items(7, 4).items()}
    make_proxy(joined, agent, sink).push(items)
    (batch,) = sink.batches
    sent = batch.items(schema)
    np.testing.assert_array_equal(sent["reward"], items["reward"])
    assert ("priority" in sent) == wants_priorities
    if wants_priorities:
        np.testing.assert_array_equal(sent["priority"], items["reward"])
