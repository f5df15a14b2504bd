"""``actor-worker --policy``: real workers, acting services and learners, which are killed and cut off."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gymnasium
import numpy as np
import pytest
import yaml

from actor import remote_worker
from actor.client.acting_session import ActingSession
from actor.commands import actor_worker
from actor.remote_config import RemoteConfig
from actor.remote_worker import RemoteWorker
from common.agents.dqn import DQN
from common.agents.r2d2 import R2D2
from common.agents.sac import SAC
from common.data import Array, Items
from common.errors import CrossborderError
from common.interfaces import EnvSpec
from common.wire.trust import ServiceTrust
from crossborder.certificates.authority import make_files
from learner.loop.server import LearnerServer
from tests.actor.acting import assert_same
from tests.cable import Cable
from tests.conftest import PATIENCE, Command, MakeConfig, counting_config, free_port, kill, merged, wait_for
from tests.crossborder.serving.services import Service
from tests.crossborder.serving.test_acting_for_clients import AGENT, serve
from tests.e2e.test_counting import train_in_thread
from tests.parts import PACED, CountingEnv, FailingEnv
from tests.robots import told
from tests.stored import assert_lanes, assert_stored, open_replay, stored_links, stored_rows

Start = Callable[..., Command]
COUNTING: dict[str, Any] = {"target": "tests.parts:CountingEnv", "rebuilds_per_minute": 0}
CALM_RUN: dict[str, Any] = {
    "agent": AGENT,
    "trainer": {"max_opts": 10**9},
    "replay": {"samples_per_insert": 1.6},
    "push": {"n_buffer": 16, "flush_seconds": 0.05},
}
"""A run without an end whose trainer waits for the rows of workers."""
CARTPOLE = {"target": "gymnasium", "params": {"id": "CartPole-v1"}}
PENDULUM = {"target": "gymnasium:make", "params": {"id": "Pendulum-v1", "max_episode_steps": 13}}


LIMIT = {"target": "gymnasium.wrappers:TimeLimit", "params": {"max_episode_steps": 13}}
FOUR_ACTIONS = {"target": "tests.actor.test_remote_worker:FourActions"}


def write(tmp_path: Path, **values: Any) -> str:
    """The file of a worker."""
    path = tmp_path / f"worker-{len(list(tmp_path.glob('worker-*')))}.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def work(start: Start, address: str, file: str, *words: str) -> Command:
    return start("actor-worker", "--policy", address, "--config", file, *words)


def end(command: Command) -> int:
    """End a worker in order; the steps that it has taken."""
    command.signal(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM, command.output()
    return steps_of(command)


def steps_of(command: Command) -> int:
    (found,) = re.findall(r"took (\d+) steps", command.output())
    return int(found)


def listens(service: Command) -> str:
    wait_for(lambda: "acts for clients on" in service.output() or service.process.poll() is not None, "it listens")
    (found,) = re.findall(r"acts for clients on (\S+)", service.output())
    return str(found)


class Named:
    """Names all lanes in each call, as an acting service does: exploration has random numbers for each lane then."""

    def sample(self, obs: Any, lanes: Array | None = None) -> Any:
        n = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
        return super().sample(obs, np.arange(n) if lanes is None else lanes)  # type: ignore[misc]

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        super().begin(begins, np.arange(len(begins)) if lanes is None else lanes)  # type: ignore[misc]


class NamedDQN(Named, DQN):
    pass


class NamedR2D2(Named, R2D2):
    pass


class NamedSAC(Named, SAC):
    pass


SEQUENCES = {"target": "learner.views.sequences:Sequences", "params": {"length": 20, "burn_in": 5}}
KINDS: dict[str, dict[str, Any]] = {
    "NamedDQN": {"env": CARTPOLE, "agent": {"params": {"units": [16]}}},
    "NamedR2D2": {
        "env": CARTPOLE,
        "agent": {"params": {"units": [8], "memory": {"width": 8}}},
        "replay": {"view": SEQUENCES},
    },
    "NamedSAC": {"env": PENDULUM, "agent": {"params": {"units": [16]}}},
}


def record(start: Start, tmp_path: Path, kind: str, *, remotely: bool) -> Items:
    """The rows that a learner stores of an actor with two lanes, which ends in order after 300 steps or more."""
    settings = merged(KINDS[kind], {"agent": {"target": f"tests.actor.test_remote_worker:{kind}"}})
    trainer = {"max_opts": 10, "warmup_period": 10_000}  # So the first model acts all the time.
    config = counting_config(tmp_path / f"run-{remotely}", **settings, envs_per_actor=2, trainer=trainer, seed=5)
    with train_in_thread(config, local_actors=0) as (server, _):
        if remotely:
            service = start("policy-server", "--learner", server.ingest.address, "--listen", "127.0.0.1:0")
            worker = work(start, listens(service), write(tmp_path, env=settings["env"], envs_per_actor=2))
        else:
            worker = start("actor-worker", "--learner", server.ingest.address)
        wait_for(lambda: server.buffer.inserted > 300 or worker.process.poll() is not None, "rows come")
        steps = end(worker)
        if remotely:
            service.signal(signal.SIGTERM)
            assert service.wait() == 128 + signal.SIGTERM, service.output()
        wait_for(lambda: server.buffer.inserted == steps, "all steps are stored, the last one too")
    return stored_rows(server.run.dir.path)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_an_actor_with_the_same_seed_bit_for_bit(start: Start, tmp_path: Path, kind: str) -> None:
    local, remote = (record(start, tmp_path, kind, remotely=remotely) for remotely in (False, True))
    for lane in (0, 1):
        mine, theirs = (
            {name: column[rows["lane"] == lane] for name, column in rows.items()} for rows in (local, remote)
        )
        k = min(len(mine["lane"]), len(theirs["lane"]))
        assert k > 150
        assert mine["final"][:k].sum() > 2
        assert_same({name: column[:k] for name, column in theirs.items()}, {n: c[:k] for n, c in mine.items()})


class OwnTagEnv(CountingEnv):
    """A counting environment with a tag that no other life of an environment has, whatever the seeds."""

    _tags = count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None or self._tag < 0:
            seed = os.getpid() % 10_000 * 100 + next(self._tags)
        return super().reset(seed=seed)


def test_rows_are_whole_and_stored_once_whoever_is_killed(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    rng, port = random.Random(1), free_port()
    config = make_config(**CALM_RUN)
    own_tag = {**COUNTING, **PACED, "target": "tests.actor.test_remote_worker:OwnTagEnv"}
    file = write(tmp_path, env=own_tag, envs_per_actor=3)
    with train_in_thread(config, local_actors=0) as (server, _):
        service = serve(start, server.ingest.address, port)
        with Cable(f"127.0.0.1:{port}") as cable:
            workers = [work(start, cable.address, file) for _ in range(2)]
            for turn in range(5):
                aim = server.buffer.inserted + rng.randint(50, 400)
                wait_for(lambda aim=aim: server.buffer.inserted > aim, "rows come")  # type: ignore[misc]
                for worker in workers:
                    assert worker.process.poll() is None, worker.output()
                if turn % 4 == 0:
                    kill(service.process.pid)
                    service.wait()
                    service = serve(start, server.ingest.address, port)
                elif turn % 4 == 1:
                    kill(server.ingest.pid)
                elif turn % 4 == 2:
                    cable.pull()
                else:
                    kill(workers.pop(0).process.pid)
                    workers.append(work(start, cable.address, file))
            last = server.buffer.inserted
            wait_for(lambda: server.buffer.inserted > last + 500, "rows come after all that")
            for worker in workers:
                end(worker)
            service.signal(signal.SIGTERM)
            assert service.wait() == 128 + signal.SIGTERM, service.output()
    memory = open_replay(server.run.dir.path)
    assert memory.first() == memory.began, "nothing may have been overwritten"
    assert_lanes(stored_rows(server.run.dir.path), stored_links(server.run.dir.path))


def test_episodes_go_on_when_the_connection_breaks_and_every_step_is_stored(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    config = make_config(**CALM_RUN)
    with train_in_thread(config, local_actors=0) as (server, _):
        service = start("policy-server", "--learner", server.ingest.address, "--listen", "127.0.0.1:0")
        with Cable(listens(service)) as cable:
            worker = work(start, cable.address, write(tmp_path, env={**COUNTING, **PACED}, envs_per_actor=2))
            for pulls in range(1, 6):
                aim = server.buffer.inserted + 100
                wait_for(lambda aim=aim: server.buffer.inserted > aim, "rows come")  # type: ignore[misc]
                cable.pull()
                wait_for(lambda pulls=pulls: cable.connections > pulls, "it is back")  # type: ignore[misc]
            last = server.buffer.inserted
            wait_for(lambda: server.buffer.inserted > last + 100, "rows come after all that")
            steps = end(worker)
        wait_for(lambda: server.buffer.inserted == steps, "all steps are stored")
    assert "has ended" not in worker.output(), "the session was not lost"
    assert_stored(server.run.dir.path, dict.fromkeys((0, 1), steps // 2))


def test_a_worker_that_ends_while_the_connection_is_broken_hands_over_its_last_steps_when_the_service_is_back(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    with train_in_thread(make_config(**CALM_RUN), local_actors=0) as (server, _):
        service = start("policy-server", "--learner", server.ingest.address, "--listen", "127.0.0.1:0")
        with Cable(listens(service)) as cable:
            worker = work(start, cable.address, write(tmp_path, env={**COUNTING, **PACED}, envs_per_actor=2))
            wait_for(lambda: server.buffer.inserted > 100, "rows come")
            cable.cut()
            wait_for(lambda: "waiting for the acting service" in worker.output(), "the worker resumes its connection")
            worker.signal(signal.SIGTERM)
            wait_for(lambda: "resuming the session once more" in worker.output(), "it ends")
            cable.mend()
            assert worker.wait() == 128 + signal.SIGTERM, worker.output()
        steps = steps_of(worker)
        wait_for(lambda: server.buffer.inserted == steps, "all steps are stored, the last ones too")
    assert "given up" not in worker.output()
    assert_stored(server.run.dir.path, dict.fromkeys((0, 1), steps // 2))


def test_a_worker_that_ends_while_the_service_is_away_says_how_many_steps_it_gives_up(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote_worker, "FINISH_SECONDS", 0.5)
    with Cable(service.places.address) as cable, ThreadPoolExecutor(1) as pool:
        values = {"policy": cable.address, "env": COUNTING, "envs_per_actor": 2}
        worker = RemoteWorker(RemoteConfig.model_validate(values), PATIENCE, ServiceTrust(), no_end)
        running = pool.submit(worker.run)
        acts(service)
        cable.cut()
        wait_for(lambda: worker._session._away is not None, "the worker resumes its connection")
        worker.stop()
        running.result(PATIENCE)
    assert "the acting service may not know how up to 2 steps went, and they are given up" in caplog.messages


def test_an_environment_that_raises_loses_its_episode_and_is_rebuilt(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    config = make_config(**CALM_RUN)
    env = {
        **PACED,
        "target": "tests.actor.test_remote_worker:RaisingEnv",
        "params": {"marker": str(tmp_path / "raised"), "at": 40},
        "rebuilds_per_minute": 1,
    }
    with train_in_thread(config, local_actors=0) as (server, _):
        service = start("policy-server", "--learner", server.ingest.address, "--listen", "127.0.0.1:0")
        worker = work(start, listens(service), write(tmp_path, env=env, envs_per_actor=2))
        wait_for(lambda: server.buffer.inserted > 300, "rows come")
        steps = end(worker)
        wait_for(lambda: server.buffer.inserted == steps, "all steps are stored")
        wait_for(lambda: server.actor_table["env_rebuilds"][0] == 1, "the learner hears of it")
        assert server.actor_table["env_seconds"][0] > 0
    assert "an environment, or its evaluation, raised: it is rebuilt" in worker.output()
    rows = stored_rows(server.run.dir.path)
    assert len(set(rows["obs"][:, 0])) == 3, "one of the two has had another life"
    assert_lanes(rows, stored_links(server.run.dir.path))


class RaisingEnv(OwnTagEnv, FailingEnv):
    pass


class CountingPlayer:
    """Acts as ``CountingEnv`` expects, and notes what comes to it."""

    opt_steps = 0
    spec = EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)

    def __init__(self) -> None:
        self.actions, self.is_held = 0, False
        self.may_act = threading.Event()
        self.may_act.set()

    def sample(self, obs: Any, begins: Array, lanes: Array) -> Array:
        self.is_held = not self.may_act.is_set()
        self.may_act.wait(PATIENCE)
        self.is_held = False
        self.actions += len(lanes)
        return np.asarray((obs[:, 1] + obs[:, 2]) % 3, np.int64)


@pytest.fixture
def service() -> Iterator[Service]:
    """A service that acts as ``CountingEnv`` expects."""
    with Service(CountingPlayer(), metrics="127.0.0.1:0") as made:
        yield made


def sessions_of(service: Service) -> int:
    """The sessions that a service has now."""
    with urlopen(f"http://127.0.0.1:{service.places.metrics_port}/metrics", timeout=PATIENCE) as answer:
        (found,) = re.findall(r"^crossborder_serving_sessions (\S+)", answer.read().decode(), re.MULTILINE)
    return int(float(found))


def player_of(service: Service) -> CountingPlayer:
    assert isinstance(service.player, CountingPlayer)
    return service.player


def acts(service: Service, more: int = 100) -> None:
    """Wait until the policy has chosen some more actions."""
    player = player_of(service)
    aim = player.actions + more
    wait_for(lambda: player.actions > aim, "the worker acts")


def test_an_environment_that_hangs_ends_the_worker_and_its_session(
    tmp_path: Path, start: Start, service: Service
) -> None:
    env = {**COUNTING, "target": "tests.parts:HangingEnv", "timeout_seconds": 1.0}
    env["params"] = {"marker": str(tmp_path / "hung"), "at": 40}
    worker = work(start, service.places.address, write(tmp_path, env=env))
    assert worker.wait() == 17, worker.output()
    assert "does not return" in worker.output()
    assert sessions_of(service) == 0


def test_the_time_of_a_worker_ends_with_its_last_step(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RemoteConfig.model_validate({"policy": service.places.address, "env": COUNTING})
    worker, noted, close = RemoteWorker(config, PATIENCE, ServiceTrust(), no_end), list[float](), ActingSession.close

    def note_and_close(session: ActingSession, last: Any, seconds: float) -> int:
        noted.append(worker._counters.seconds)
        return close(session, last, seconds)

    monkeypatch.setattr(ActingSession, "close", note_and_close)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker.run)
        acts(service)
        worker.stop()
        assert running.result(PATIENCE).duration == noted[0] > 0


def no_end(error: CrossborderError) -> int:
    raise AssertionError(f"the process would end: {error}")


def test_a_worker_ends_in_order_though_its_environment_does_not_close(
    tmp_path: Path, start: Start, service: Service
) -> None:
    worker = work(start, service.places.address, write(tmp_path, env={"target": "tests.parts:UncloseableEnv"}))
    acts(service)
    assert end(worker) > 0
    assert "close() has not returned" in worker.output()
    assert sessions_of(service) == 0


def test_a_signal_that_the_environment_has_taken_ends_the_worker_in_order(
    tmp_path: Path, start: Start, service: Service
) -> None:
    env = {"target": "tests.parts:SignalTakingEnv", "params": {"number": int(signal.SIGTERM)}}
    worker = work(start, service.places.address, write(tmp_path, env=env))
    assert worker.wait() == 128 + signal.SIGTERM, worker.output()
    assert steps_of(worker) > 0
    assert sessions_of(service) == 0


@pytest.mark.parametrize("signalled", [Command.signal, Command.signal_another_thread])
def test_a_worker_that_waits_for_an_action_ends_in_order(
    tmp_path: Path, start: Start, service: Service, signalled: Callable[[Command, int], None]
) -> None:
    worker = work(start, service.places.address, write(tmp_path, env=COUNTING))
    acts(service)
    player_of(service).may_act.clear()
    wait_for(lambda: player_of(service).is_held, "the worker waits")
    try:
        signalled(worker, signal.SIGTERM)
        assert worker.wait() == 128 + signal.SIGTERM, worker.output()
    finally:
        player_of(service).may_act.set()


def test_several_workers_of_a_host_have_a_session_each(tmp_path: Path, start: Start, service: Service) -> None:
    file = write(tmp_path, env=COUNTING, envs_per_actor=2, policy=service.places.address)
    workers = start("actor-worker", "--config", file, "--num-actors", "2")
    wait_for(lambda: sessions_of(service) == 2, "both act")
    acts(service)
    workers.signal(signal.SIGINT)
    assert workers.wait() == 130, workers.output()
    assert {"0", "1"} == set(re.findall(r"actor (\d): \d+ steps", workers.output())), workers.output()
    assert sessions_of(service) == 0


def test_a_robot_stops_safely_while_no_action_comes_and_begins_an_episode_afterwards(
    tmp_path: Path, start: Start, service: Service
) -> None:
    log = tmp_path / "robot.log"
    env = {"target": "tests.robots:Robot", "params": {"log": str(log)}, "rate_hz": 100, "safe_stop": "halt"}
    worker = work(start, service.places.address, write(tmp_path, env=env))
    acts(service)
    player_of(service).may_act.clear()
    # A busy host may have been late before, and have gone on.
    wait_for(lambda: player_of(service).is_held and told(log)[-1] == "halt", "the safe stop")
    assert "safe stop: the acting service has given no action for 0.5 s" in worker.output()
    player_of(service).may_act.set()
    acts(service)
    end(worker)
    lines = told(log)
    assert lines[-1] == "halt"
    assert all(after in ("reset", "halt") for line, after in pairwise(lines) if line == "halt")


def test_a_worker_acts_with_the_policy_that_it_names(tmp_path: Path, start: Start) -> None:
    players = {"first": CountingPlayer(), "second": CountingPlayer()}
    with Service(named=players) as service:
        worker = work(start, f"second={service.places.address}", write(tmp_path, env=COUNTING))
        wait_for(lambda: players["second"].actions > 100 or worker.process.poll() is not None, "the worker acts")
        end(worker)
        unknown = work(start, f"third={service.places.address}", write(tmp_path, env=COUNTING))
        assert unknown.wait() == 9, unknown.output()
    assert not players["first"].actions
    assert "policy: expected one of these names: first, second; found 'third'" in unknown.output()


def test_a_worker_whose_service_has_shut_down_for_good_ends_in_order(tmp_path: Path, start: Start) -> None:
    with Service(CountingPlayer()) as service:
        worker = work(start, service.places.address, write(tmp_path, env=COUNTING), "--patience", "1")
        acts(service)
    assert worker.wait() == 0, worker.output()
    assert "the acting service has shut down, and none came back for 1 s" in worker.output()


def test_a_worker_whose_run_has_ended_ends_in_order_and_at_once(tmp_path: Path, start: Start) -> None:
    with Service(CountingPlayer()) as service:
        worker = work(start, service.places.address, write(tmp_path, env=COUNTING), "--patience", str(2 * PATIENCE))
        acts(service)
        service.is_run_over = True
    assert worker.wait() == 0, worker.output()
    assert "the run for which this service acts has reached its end" in worker.output()


def test_a_service_that_comes_back_with_other_actions_is_refused_by_name(tmp_path: Path, start: Start) -> None:
    listen, other = f"127.0.0.1:{free_port()}", CountingPlayer()
    other.spec = EnvSpec(CountingEnv.observation_space, FourActions.action_space)
    with Service(CountingPlayer(), listen=listen) as service:
        worker = work(start, listen, write(tmp_path, env=COUNTING))
        acts(service)
    with Service(other, listen=listen):
        assert worker.wait() == 8, worker.output()
    assert "action: the acting service expects <i8 [] from 0 to 3, env tests.parts" in worker.output()
    assert not other.actions


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"env": CARTPOLE}, (8, "observation: the acting service expects <f4 [3], env gymnasium:make")),
        ({"env": FOUR_ACTIONS}, (8, "<i8 [] from 0 to 2, env tests.actor")),
        ({"env": COUNTING, "envs_per_actor": 9}, (2, "lanes: expected at most 8, max_lanes of")),
        ({"env": {"target": "tests.parts:NanEnv"}}, (9, "reward: expected numbers from -1e+12 to 1e+12, found nan")),
        ({"env": {"target": "tests.parts:NoSuchEnv"}}, (3, "NoSuchEnv")),
        ({"agent": COUNTING}, (2, "env: ")),
    ],
)
def test_what_cannot_work_is_said_at_once(
    tmp_path: Path, start: Start, values: dict[str, Any], expected: tuple[int, str]
) -> None:
    with Service(CountingPlayer(), max_lanes=8) as service:
        worker = work(start, service.places.address, write(tmp_path, **values))
        assert worker.wait() == expected[0], worker.output()
    assert expected[1] in worker.output()


@pytest.mark.parametrize(
    ("values", "words", "expected"),
    [
        ({"env": {**COUNTING, "info": {"x": "bool"}}}, [], "env.info: expected none beside --policy, found x"),
        ({"env": {**COUNTING, "wrappers": [{**LIMIT, "actors": [1]}]}}, [], "wrappers.0.actors: expected none"),
        ({"env": COUNTING, "overrides": {1: {"env": {"a": 2}}}}, [], "overrides: expected none of env beside"),
        ({"env": COUNTING}, ["--learner", "127.0.0.1:1"], "expected one of --learner and --policy"),
        ({"env": COUNTING}, ["--policy", "=127.0.0.1:1"], "policy: expected a name before the ="),
        ({"env": COUNTING}, ["--id", "3", "--record", "/proc/x"], "beside it, found --id, --record"),
        ({"env": COUNTING}, ["--set", "env.rate=3"], "env.rate: unknown key"),
    ],
)
def test_what_no_service_could_serve_is_said_before_one_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], words: list[str], expected: str
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert actor_worker.main(["--policy", nobody, "--config", write(tmp_path, **values), *words]) == 2
    assert expected in capsys.readouterr().err


class FourActions(CountingEnv):
    action_space = gymnasium.spaces.Discrete(4)


def test_a_service_that_nobody_reaches_is_looked_for_as_long_as_the_patience_lasts(
    tmp_path: Path, start: Start
) -> None:
    worker = work(start, f"127.0.0.1:{free_port()}", write(tmp_path, env=COUNTING), "--patience", "1")
    assert worker.wait() == 6, worker.output()
    assert "no acting service for 1 s: UNAVAILABLE" in worker.output()


def test_a_learner_is_no_acting_service(tmp_path: Path, start: Start, host: LearnerServer) -> None:
    worker = work(start, host.ingest.address, write(tmp_path, env=COUNTING))
    assert worker.wait() == 9, worker.output()
    assert "expected an acting service (policy-server), found another server" in worker.output()


def test_a_service_with_certificate_and_token_is_used_by_the_holder_of_a_token_only(
    tmp_path: Path, start: Start
) -> None:
    certs, file = tmp_path / "certs", write(tmp_path, env=COUNTING)
    make_files(certs, ["127.0.0.1"], 1, renew=False)
    (certs / "clients.tokens").write_text("robot 0123456789abcdef\n")
    tokens = {"right": "0123456789abcdef\n", "wrong": "fedcba9876543210\n"}
    for name, token in tokens.items():
        (certs / name).write_text(token)
    tls = {"certificate": certs / "server.pem", "key": certs / "server.key"}
    with Service(CountingPlayer(), tls=tls, token_file=certs / "clients.tokens") as service:

        def worker_with(token: str) -> Command:
            words = ["--ca", str(certs / "ca.pem"), "--token-file", str(certs / token)]
            return work(start, service.places.address, file, *words)

        refused = worker_with("wrong")
        assert refused.wait() == 15, refused.output()
        assert "the acting service refused the token" in refused.output()
        assert "waiting for the acting service" not in refused.output()
        worker = worker_with("right")
        acts(service)
        end(worker)
        stranger = work(start, service.places.address, file, "--patience", "1")
        assert stranger.wait() == 6, stranger.output()
