"""Actors at a fixed rate, as real processes: when the robot is told to halt, and what the learner gets."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from actor.acting import Acting
from actor.client.fetcher import ModelFetcher
from actor.client.join_answer import read_join
from actor.fixed_rate import SWITCH_SECONDS, Control, acting_first
from actor.manager import ActorManager
from actor.stat import ActorCounters
from common.data import BufferedItems, Model, ModelVersion
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.lanes.pace import Pace
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from tests.actor.acting import counting, make_parts
from tests.actor.client.test_assembly import VERSION, chunks
from tests.actor.client.test_connector import JOINED
from tests.conftest import MORE_STEPS, PATIENCE, Command, MakeConfig, endpoints, wait_for
from tests.learner.scrapes import scrape_ingest
from tests.parts import EPISODE, CheckingAgent, check_rows
from tests.robots import told
from tests.stored import stored_rows

Start = Callable[..., Command]


def robot(tmp_path: Path, *, params: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """The section ``env`` of a robot at 200 Hz, which writes into ``tmp_path/log``."""
    given = {"log": str(tmp_path / "log"), **(params or {})}
    return {"target": "tests.robots:Robot", "params": given, "rate_hz": 200.0, "safe_stop": "halt", **settings}


def test_a_robot_halts_when_its_learner_is_killed(
    write_config: Callable[..., Path], start: Start, tmp_path: Path
) -> None:
    endless = {"trainer": {"max_opts": 10**9}, "replay": {"samples_per_insert": 1.6}}
    server = start("learner-server", "--config", str(write_config(env=robot(tmp_path), **endless)))
    address = endpoints(tmp_path / "run")["learner"]
    actor = start("actor-worker", "--learner", address, "--patience", "5")
    wait_for(lambda: told(tmp_path / "log").count("step") > 50, "it acts")
    server.signal(signal.SIGKILL)
    assert actor.wait() == 6, actor.output()
    assert told(tmp_path / "log")[-1] == "halt"


def test_a_robot_halts_while_its_learner_is_silent_and_begins_a_new_episode_afterwards(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    log, config = tmp_path / "log", make_config(env=robot(tmp_path, max_model_age_seconds=1.5))
    with LearnerServer(config) as server:
        actor = start("actor-worker", "--learner", server.ingest.address)
        wait_for(lambda: server.buffer.inserted > 100, "it acts")
        os.kill(server.ingest.pid, signal.SIGSTOP)
        wait_for(lambda: told(log)[-1] == "halt", "it halts")
        os.kill(server.ingest.pid, signal.SIGCONT)
        wait_for(lambda: told(log)[-1] == "step", "it goes on")
        lines = told(log)
        assert lines[lines.index("halt") + 1] == "reset", "a new episode begins"
        wait_for(lambda: server.actor_table["safe_stops"][0] > 0, "the learner hears of it")
        found = scrape_ingest(server)
        actor.signal(signal.SIGTERM)
        assert actor.wait() == 128 + signal.SIGTERM
        assert server.buffer.inserted == told(log).count("step")
    assert told(log)[-1] == "halt", "it halts when its actor is told to end"
    assert found["actor_safe_stops_total[0]"] > 0
    assert found["actor_ticks_total[0]"] > found["actor_late_ticks_total[0]"]
    assert found["actor_lateness_p99_seconds[0]"] > 0
    assert config.run_dir is not None
    check_rows(stored_rows(config.run_dir))


def test_a_robot_waits_between_episodes_for_a_learner_that_is_behind(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    log, held = tmp_path / "log", {"samples_per_insert": 1.0, "error_buffer": 1.0}
    config = make_config(env=robot(tmp_path), replay=held, trainer={"warmup_period": 1}, server={"grace_seconds": 0.5})
    with LearnerServer(config) as server:
        server.control.trainer_waits_for = MORE_STEPS
        start("actor-worker", "--learner", server.ingest.address)
        wait_for(lambda: len(server.buffer) > 20, "it acts")
        server.control.trainer_waits_for = 0  # From now on, the ratio holds.
        wait_for(lambda: told(log)[-1] == "halt", "it waits, since nobody trains")
        last = told(log)[: told(log).index("halt")]
    assert last[-EPISODE - 1 :] == ["reset", *["step"] * EPISODE], "the episode was over"


def test_a_robot_whose_spool_is_full_halts_and_loses_no_row(
    make_config: MakeConfig, start: Start, tmp_path: Path
) -> None:
    log, config = tmp_path / "log", make_config(env=robot(tmp_path), push={"spool_bytes": 3000})
    with LearnerServer(config) as server:
        actor = start("actor-worker", "--learner", server.ingest.address)
        wait_for(lambda: server.buffer.inserted > 20, "it acts")
        os.kill(server.ingest.pid, signal.SIGSTOP)
        wait_for(lambda: told(log)[-1] == "halt", "it halts")
        os.kill(server.ingest.pid, signal.SIGCONT)
        wait_for(lambda: server.actor_table["safe_stops"][0] >= 1, "the learner hears of it")
        actor.signal(signal.SIGTERM)
        assert actor.wait() == 128 + signal.SIGTERM
        assert server.buffer.inserted == told(log).count("step")


def test_a_worker_that_is_told_to_end_halts_its_robot_and_is_started_again(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with LearnerServer(make_config(env=robot(tmp_path))) as server:
        manager = ActorManager(server.ingest.address, 1, lambda _: None, Trust())
        wait_for(lambda: "step" in told(log), "it acts")
        (first,) = manager.pids
        os.kill(first, signal.SIGTERM)
        wait_for(lambda: manager.restarts == 1, "it is started again")
        assert told(log, first)[-1] == "halt"
        manager.stop_and_join(PATIENCE)


def test_a_robot_halts_when_its_environment_raises(make_config: MakeConfig, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with LearnerServer(make_config(env=robot(tmp_path, params={"fails_at": 9}, rebuilds_per_minute=0))) as server:
        actor = start("actor-worker", "--learner", server.ingest.address)
        assert actor.wait() == 1
    assert told(log)[-2:] == ["step", "halt"]
    assert "the arm is stuck" in actor.output()


def test_a_robot_is_one_lane(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"envs_per_actor: expected 1 with env\.rate_hz"):
        make_config(env=robot(tmp_path), envs_per_actor=2)


class SetDown(CheckingAgent):
    """Writes down the models that it loads."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec, seed=0, epsilon=0.0, device="cpu")
        self.loaded: list[ModelVersion] = []

    def sync_model(self, model: Model) -> None:
        self.loaded.append(model.version)


class WaitsForNobody:
    """A learner that keeps up."""

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None: ...

    def wait_for_room(self, seconds: float) -> bool:
        return True

    def wait_for_learner(self, seconds: float) -> bool:
        return True


def test_a_robot_whose_model_is_too_old_loads_a_fetched_model_and_does_not_wait() -> None:
    """The model that acts has become too old, because no time was left between two ticks to load the newer one."""
    parts, stopped = make_parts(counting(1), SetDown), threading.Event()
    answer = [chunk.SerializeToString() for chunk in chunks()]
    models = ModelFetcher(cast("Any", lambda *_, **__: iter(answer)), stopped)
    models.announce(VERSION)
    models.first(20.0)
    joined = read_join(JOINED)
    env = joined.config.env.model_copy(update={"max_model_age_seconds": PATIENCE})
    joined = replace(joined, schema=parts.schema, config=joined.config.model_copy(update={"env": env}))
    pusher = cast("Any", WaitsForNobody())
    acting = Acting(parts, joined, models, pusher, ActorCounters(), None, stopped.is_set)
    control = Control(acting, Pace(1000.0, stopped))
    control._confirmed_at = -math.inf
    assert control._find_reason_to_wait() is None
    assert cast("SetDown", parts.agent).loaded == [VERSION]
    stopped.set()
    models.end(PATIENCE)


def test_the_process_gets_its_settings_back_when_the_acting_has_ended() -> None:
    before = sys.getswitchinterval()
    with acting_first():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        assert gc.get_freeze_count() > 0
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == (before, 0)
