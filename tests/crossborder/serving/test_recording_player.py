"""The rows of clients' lanes beside those of an actor that steps the same environments itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.config.actor_config import ActorConfig
from common.data import NO_MODEL, Array, Model, ModelVersion
from common.errors import PluginError
from common.interfaces import Agent, acting_for_lanes
from common.lanes.building import Env, build_env
from common.leaves import empty_leaves
from common.parts import build_parts
from common.settings import validate
from common.wire.acting_payloads import Description
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import crossborder_pb2
from crossborder.serving.recording_player import RecordingPlayer
from tests.actor.acting import Kept, assert_same
from tests.conftest import merged
from tests.crossborder.serving.services import Caller, Service, Stream, numbers, refusal

SEED, ROUNDS = 11, 60
UINT32 = (1 << 32) - 1
LIMIT = {"wrappers": [{"target": "gymnasium.wrappers:TimeLimit", "params": {"max_episode_steps": 13}}]}
CARTPOLE = {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}, **LIMIT}
PENDULUM = {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}, **LIMIT}
KINDS: dict[str, dict[str, Any]] = {
    "dqn": {"env": CARTPOLE, "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [16]}}},
    "sac": {"env": PENDULUM, "agent": {"target": "common.agents.sac:SAC", "params": {"units": [16]}}},
    "r2d2": {
        "env": CARTPOLE,
        "agent": {"target": "common.agents.r2d2:R2D2", "params": {"units": [8], "memory": {"width": 8}}},
    },
    "recurrent sac": {
        "env": PENDULUM,
        "agent": {
            "target": "common.agents.recurrent_sac:RecurrentSAC",
            "params": {"units": [8], "memory": {"width": 8}},
        },
    },
    "stacks of frames": {
        "env": {**CARTPOLE, "frame_stack": 3},
        "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [16]}},
    },
    "a map of rows": {
        "env": PENDULUM,
        "agent": {"target": "common.agents.sac:SAC", "params": {"units": [16]}},
        "step_processor": {"target": "tests.actor.sampling.test_sampler:Doubled"},
    },
}


def name_lanes(agent: Agent) -> None:
    """Have an agent be told the lanes in each call, as an acting service tells it: those of all rows."""
    sample, begin = acting_for_lanes(agent).sample, acting_for_lanes(agent).begin
    agent.sample = lambda obs: sample(obs, np.arange(len(obs)))  # type: ignore[method-assign]
    agent.begin = lambda begins, lanes=None: begin(begins, np.arange(len(begins)))  # type: ignore[method-assign]


class Published:
    """The newest model, which a test publishes."""

    newest: Model | None = None

    def newer_than(self, version: ModelVersion) -> Model | None:
        return self.newest if self.newest is not None and self.newest.version > version else None


class KeptRows(Kept):
    """Takes all rows at once, as ``ReplayBufferProxy`` does."""

    version = NO_MODEL


def config_of(kind: dict[str, Any]) -> ActorConfig:
    return validate(ActorConfig, kind)


def models_of(config: ActorConfig, n: int) -> list[Model]:
    """n models, one after another."""
    made = list[Model]()
    for opt_steps in range(40, 40 + 50 * n, 50):
        info = build_parts(config, seed=opt_steps).agent.model_info()
        params = {name: tensor.numpy(force=True).copy() for name, tensor in info.items()}
        made.append(Model(ModelVersion(1, opt_steps), params))
    return made


def act_locally(config: ActorConfig, n: int, models: Sequence[Model]) -> tuple[Kept, ActorCounters]:
    """The rows of an actor that steps n environments, with one model after another."""
    parts = build_parts(config, seed=SEED, epsilon=0.4, n_envs=n)
    agent, sink, counters = parts.agent, Kept(), ActorCounters()
    sampler = Sampler(parts, counters, SEED)
    name_lanes(agent)
    agent.train()
    for model in models:
        agent.sync_model(model)
        sampler.version = model.version.opt_steps
        for _ in range(ROUNDS):
            sampler.sample_and_push(agent, sink)
    sampler.flush(agent, sink)
    parts.close()
    return sink, counters


class Player:
    """A client that steps the environments of a session, as an actor would."""

    def __init__(self, stream: Stream, config: ActorConfig) -> None:
        self._stream, self._seq = stream, 0
        n, self._seed = stream.opened.lanes, stream.opened.seed
        self.envs: list[Env] = [build_env(config.env) for _ in range(n)]
        self._actions: list[Any] = [None] * n
        self._ended = [True] * n
        self._obs = [env.reset(seed=self._seed + j)[0] for j, env in enumerate(self.envs)]
        self._reward = [0.0] * n

    def play(self, rounds: int) -> None:
        """Take this many steps in each lane."""
        for _ in range(rounds):
            for j, ended in enumerate(self._ended):
                if ended and self._actions[j] is not None:
                    self._obs[j], self._reward[j] = self.envs[j].reset()[0], 0.0
            self._actions = self._ask(range(len(self.envs)))
            self._ended = [self._step(j) for j in range(len(self.envs))]

    def _step(self, j: int) -> bool:
        self._obs[j], reward, terminated, truncated, _ = self.envs[j].step(self._actions[j])
        self._reward[j] = float(reward)
        if terminated or truncated:
            self._ask([j], terminated=[bool(terminated)], truncated=[bool(truncated)])
        return bool(terminated or truncated)

    def finish(self) -> None:
        """Tell how the last steps went, without further ones."""
        for j, ended in enumerate(self._ended):
            if not ended:
                self._ask([j])

    def _ask(self, lanes: Sequence[int], **ends: list[bool]) -> list[Any]:
        self._seq += 1
        obs = np.stack([self._obs[j] for j in lanes]).astype(np.float32)
        answer = self._stream.step(
            self._seq, obs, len(lanes), lanes=lanes, reward=[self._reward[j] for j in lanes], **ends
        )
        actions = self._stream.description.read_action(answer.action, len(lanes))
        assert isinstance(actions, np.ndarray)
        return list(actions)


class RunService:
    """A service that records rows, and the models of its learner."""

    def __init__(self, config: ActorConfig, models: Sequence[Model]) -> None:
        self.config, self.rows, self.counters, self.published = config, KeptRows(), ActorCounters(), Published()
        self.published.newest = models[0]
        self.parts = build_parts(config, seed=SEED, epsilon=0.4)
        self.player = RecordingPlayer(self.parts, self.published.newer_than, self.rows, self.counters)
        self.parts.agent.train()

    @contextmanager
    def calls(self, **settings: Any) -> Iterator[Caller]:
        """A context in which the service serves a caller. Afterwards all rows are there."""
        service = Service(self.player, seed=SEED, **settings)
        with service, Caller(service.places.address, self.player.spec) as caller:
            yield caller
        assert service.error is None
        self.player.flush()


def act_for_clients(config: ActorConfig, n: int, models: Sequence[Model]) -> RunService:
    """A service that has acted for a session of n lanes."""
    service = RunService(config, models)
    with service.calls() as caller:
        client = Player(caller.open(n), config)
        for service.published.newest in models:
            client.play(ROUNDS)
        client.finish()
    return service


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_session_are_those_of_an_actor_with_the_same_seed_bit_for_bit(kind: str) -> None:
    config = config_of(KINDS[kind])
    models = models_of(config, 2)
    expected, local = act_locally(config, 3, models)
    found = act_for_clients(config, 3, models)
    for lane in range(3):
        assert_same(found.rows.lane(lane), expected.lane(lane))
    assert found.counters.env_steps == local.env_steps == 6 * ROUNDS
    assert sorted(found.counters.take_episodes().lengths) == sorted(local.take_episodes().lengths)


@pytest.mark.slow
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_first_priorities_are_those_of_an_actor(frame_stack: int) -> None:
    config = config_of(
        merged(KINDS["dqn"], {"env": {"frame_stack": frame_stack}, "push": {"initial_priorities": True}})
    )
    models = models_of(config, 1)  # An error is that under the model at the time of the push.
    (expected, _), found = act_locally(config, 3, models), act_for_clients(config, 3, models)
    for lane in range(3):
        rows, wanted = found.rows.lane(lane), expected.lane(lane)
        # The errors of three rows at once and those of one have other last bits.
        np.testing.assert_allclose(rows.pop("priority"), wanted.pop("priority"), rtol=1e-5)
        assert_same(rows, wanted)


COUNTING = {
    "env": {"target": "tests.parts:CountingEnv", "intervention": "action_taken"},
    "agent": {
        "target": "tests.parts:CheckingLaneAgent",
    },
}


FIRST_MODEL = Model(ModelVersion(1, 0), {"steps": np.zeros(1, np.float32)})


def test_masks_that_allow_no_action_are_refused_unless_the_episode_has_terminated() -> None:
    config = config_of(
        {
            "env": {"target": "common.envs.masked_tasks:TakeAway"},
            "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [8]}},
        }
    )
    service = RunService(config, models_of(config, 1))
    description = Description(service.player.spec)
    seen = empty_leaves(service.player.spec.observation_space, 1)
    assert isinstance(seen, dict)
    none = description.write_observation(seen, 1)
    seen["action_mask"][:] = 1
    some = description.write_observation(seen, 1)
    with service.calls() as caller:
        stream = caller.open(1)
        stream.step(1, some)
        with pytest.raises(grpc.RpcError) as error:
            stream.step(2, none, truncated=[True])
        assert "expected at least one allowed action in lane 0, found none" in refusal(error.value)[2]
        stream = caller.resume(stream.opened.secret)
        stream.step(2, none, terminated=[True])
    assert service.rows.lane(0)["final"].tolist() == [False, True]


def ask(stream: Stream, seq: int, *steps: int, lanes: Sequence[int], **fields: Any) -> list[int]:
    """Send the observations of these steps of these lanes' first episode."""
    seen = np.array([[lane, step, 0] for lane, step in zip(lanes, steps, strict=True)], np.float32)
    return numbers(stream.step(seq, seen, lanes=lanes, **fields))


@pytest.fixture
def counting() -> RunService:
    return RunService(config_of(COUNTING), [FIRST_MODEL])


def test_an_episode_that_breaks_off_loses_its_last_step_alone(counting: RunService) -> None:
    with counting.calls() as caller:
        stream = caller.open(2)
        ask(stream, 1, 1, 1, lanes=[0, 1])
        ask(stream, 2, 2, 2, lanes=[0, 1], reward=[1, 1])
        ask(stream, 3, 1, lanes=[1], restarted=[True])
        ask(stream, 4, 3, 2, lanes=[0, 1], reward=[2, 1])
    first, second = (counting.rows.lane(lane) for lane in (0, 1))
    assert (first["obs"][:, 1].tolist(), first["first"].tolist()) == ([1, 2], [True, False])
    assert (second["obs"][:, 1].tolist(), second["first"].tolist()) == ([1, 1], [True, True])
    assert counting.counters.env_steps == 4


def test_the_lane_of_a_session_that_has_ended_begins_anew(counting: RunService) -> None:
    with counting.calls() as caller:
        stream = caller.open(1)
        ask(stream, 1, 1, lanes=[0])
        ask(stream, 2, 2, lanes=[0], reward=[1])
        stream.send(close=pb.CloseSession())
        assert not list(stream.call)
        other = caller.open(1)
        ask(other, 1, 1, lanes=[0])
        ask(other, 2, 2, lanes=[0], reward=[1])
    rows = counting.rows.lane(0)
    assert (rows["obs"][:, 1].tolist(), rows["first"].tolist()) == ([1, 1], [True, True])


def test_a_repeated_step_gives_no_second_row(counting: RunService) -> None:
    with counting.calls() as caller:
        stream = caller.open(1)
        for seq, step in ((1, 1), (2, 2), (2, 2), (2, 2), (3, 3)):
            ask(stream, seq, step, lanes=[0], reward=[step - 1])
    assert counting.rows.lane(0)["obs"][:, 1].tolist() == [1, 2]


def test_the_action_that_a_person_took_is_the_one_of_the_row(counting: RunService) -> None:
    with counting.calls() as caller:
        stream = caller.open(2)
        assert ask(stream, 1, 1, 1, lanes=[0, 1]) == [1, 1]
        executed = np.array([0, 2]).tobytes()
        ask(stream, 2, 2, 2, lanes=[0, 1], reward=[1, 1], executed=executed, intervened=[False, True])
        ask(stream, 3, 3, 3, lanes=[0, 1], reward=[2, 2])
    found = {lane: counting.rows.lane(lane) for lane in (0, 1)}
    assert [rows["action"].tolist() for rows in found.values()] == [[1, 2], [2, 2]]
    assert [rows["intervened"].tolist() for rows in found.values()] == [[False, False], [True, False]]
    assert counting.counters.intervened_steps == 1


def test_what_a_client_reports_is_among_the_figures_of_the_actor(counting: RunService) -> None:
    with counting.calls() as caller:
        stream = caller.open(1)
        for _ in range(2):
            stream.send(report=pb.ClientReport(env_seconds=0.25, env_rebuilds=1, safe_stops=2, env_error="it fell"))
        ask(stream, 1, 1, lanes=[0])
    found = counting.counters
    assert (found.env_seconds, found.env_rebuilds, found.env_hangs, found.safe_stops) == (0.5, 2, 0, 4)
    assert found.take_env_error() == "it fell"


def test_no_client_reports_more_than_an_actor_can_pass_on(counting: RunService) -> None:
    """Else one client would end the service for all: its learner refuses figures beyond its bounds."""
    with counting.calls() as caller:
        stream = caller.open(1)
        for _ in range(2):
            stream.send(
                report=pb.ClientReport(env_seconds=1.5e308, env_rebuilds=UINT32, env_hangs=1, safe_stops=UINT32)
            )
        ask(stream, 1, 1, lanes=[0])
    report = crossborder_pb2.Report(**counting.counters.figures())
    assert (report.env_rebuilds, report.env_hangs, report.safe_stops) == (UINT32, 2, UINT32)
    assert report.env_seconds == UINT32


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_an_impossible_report_is_refused(counting: RunService, seconds: float) -> None:
    with counting.calls() as caller:
        stream = caller.open(1)
        stream.send(report=pb.ClientReport(env_seconds=seconds))
        with pytest.raises(grpc.RpcError) as error:
            stream.read()
        assert refusal(error.value)[1:] == (
            "bad_message",
            f"report.env_seconds: expected 0 or more, and finite, found {seconds}",
        )
    assert counting.counters.env_seconds == 0


def test_a_run_whose_rows_cannot_say_that_others_acted_refuses_their_actions() -> None:
    service = RunService(config_of(merged(COUNTING, {"env": {"intervention": None}})), [FIRST_MODEL])
    with service.calls() as caller:
        stream = caller.open(1)
        ask(stream, 1, 1, lanes=[0])
        with pytest.raises(grpc.RpcError) as error:
            ask(stream, 2, 2, lanes=[0], reward=[1], executed=np.array([2]).tobytes(), intervened=[True])
        assert refusal(error.value)[1] == "bad_message"
        assert ask(caller.resume(stream.opened.secret), 2, 2, lanes=[0], reward=[1]) == [2]


def test_an_agent_that_changes_its_observations_is_refused(
    counting: RunService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(obs: Array, _: Array) -> Array:
        obs += 1
        return np.zeros(len(obs), np.int64)

    monkeypatch.setattr(counting.player._lane_agent, "sample", sample)
    obs, begins, lanes = np.zeros((1, 2), np.float32), np.ones(1, np.bool_), np.zeros(1, np.int64)
    with pytest.raises(PluginError, match=r"sample\(\) changed the observations it was given"):
        counting.player.sample(obs, begins, lanes)


def test_an_agent_that_acts_for_all_lanes_at_once_only_is_refused_at_once() -> None:
    config = config_of(merged(COUNTING, {"agent": {"target": "tests.parts:CheckingAgent"}}))
    with pytest.raises(PluginError, match=r"CheckingAgent\.sample acts for all lanes at once"):
        RunService(config, models_of(config, 1))
