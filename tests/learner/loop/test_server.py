"""The learner host as a whole: complete when it is constructed, and ended in order however it ends."""

from __future__ import annotations

import json
import logging
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from common.config.run_config import FREE_PORTS, RunConfig, load_config
from common.errors import (
    AddressError,
    CheckpointError,
    ConfigError,
    CrossborderError,
    RankLostError,
    StarvedError,
    TakenOverError,
)
from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.learner import Outcome
from learner.loop.server import LearnerServer, train_async
from learner.ranks.place import Place
from learner.shared.control import ControlBlock
from learner.storage.run_lock import require_free
from learner.storage.rundir import find_work
from tests.conftest import PATIENCE, MakeConfig, counting_values, endpoints, wait_for
from tests.learner.ingest.by_hand import Client, Talk
from tests.stored import assert_stored


def test_a_server_is_complete_when_it_is_constructed(make_config: MakeConfig) -> None:
    server = LearnerServer(make_config(server={"grace_seconds": 0.1}))
    with server:
        endpoints = json.loads((server.run.dir.path / "endpoints.json").read_text())
        assert endpoints["learner"] == server.ingest.address
        assert (server.status().opt_steps, server.status().replay_size) == (0, 0)
        assert server.publisher.slots.newest().opt_steps == 0
        assert not server.control.stopping
    assert server.control.stopping, "actors are told to stop also where training never began"


def test_a_server_that_cannot_be_constructed_ends_what_it_had_begun(make_config: MakeConfig, tmp_path: Path) -> None:
    missing = {"certificate": str(tmp_path / "missing.pem"), "key": str(tmp_path / "missing.key")}
    with pytest.raises(ConfigError, match=r"missing\.key: cannot be read"):
        LearnerServer(make_config(metrics={"encrypted": True}, server={"tls": missing, "grace_seconds": 0.1}))
    require_free(tmp_path / "run")
    assert train_async(make_config(trainer={"max_opts": 10}), 1, resume=True).opt_steps == 10


def test_a_port_that_is_taken_is_named_before_a_run_begins_in_the_directory(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    for key in FREE_PORTS:
        section, name = key.split(".")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            said = f"^{key}: {address}: cannot listen there: Address already in use; name"
            with pytest.raises(AddressError, match=said):
                LearnerServer(make_config(**{section: {name: address}}))
        assert not find_work(tmp_path / "run")
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        assert not server.run.dir.is_resumed


def test_a_learner_takes_free_ports_where_others_have_the_usual_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    values = counting_values(tmp_path / "run") | {"server": {}, "metrics": {}}
    values["trainer"] |= {"max_opts": 10}
    with ExitStack() as stack:
        for port in (50051, 9464, 9465):
            with suppress(OSError):  # Another program of this host has it, which serves as well.
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        with LearnerServer(RunConfig.model_validate(values), 1) as server:
            told = endpoints(server.run.dir.path)
            assert server.ingest.address == told["learner"] != "127.0.0.1:50051"
            assert not {told["trainer_metrics_port"], told["ingest_metrics_port"]} & {0, 9464, 9465}
            assert "other programs have the usual ports (50051, 9464, 9465): free ones take their place" in caplog.text
            assert f"listening on {told['learner']}, metrics on ports" in caplog.text
            assert "ERROR" not in caplog.text
            assert server.train().opt_steps == 10
        written = load_config(tmp_path / "run" / "config.yaml")
        assert written.ports_to_try("server.listen") == ("127.0.0.1:50051", "127.0.0.1:0"), "--resume falls back too"
        values["server"] = {"listen": "127.0.0.1:50051"}
        with pytest.raises(AddressError, match=r"50051: cannot listen there.* name another port, or port 0"):
            LearnerServer(RunConfig.model_validate({**values, "run_dir": str(tmp_path / "named")}))


@pytest.mark.parametrize(
    ("error", "restarts_left", "told"),
    [
        (RankLostError("another rank has ended"), 0, False),
        (AddressError("the port is taken"), 1, False),
        (AddressError("the port is taken"), 0, True),
    ],
    ids=["a rank was lost", "torchrun starts again", "nobody starts again"],
)
def test_actors_are_told_to_stop_at_a_failed_start_unless_another_life_follows(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: CrossborderError,
    restarts_left: int,
    *,
    told: bool,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(LearnerServer, "_write_endpoints", fail)
    with pytest.raises(type(error)):
        LearnerServer(make_config(server={"grace_seconds": 0.1}), place=Place(restarts_left=restarts_left))
    assert ControlBlock.open(tmp_path / "run" / "shared").stopping == told


@pytest.mark.parametrize("restarts_left", [0, 1])
def test_actors_are_told_to_stop_after_training_failed_unless_another_life_follows(
    make_config: MakeConfig, restarts_left: int
) -> None:
    place = Place(restarts_left=restarts_left)
    with LearnerServer(make_config(server={"grace_seconds": 0.1}), place=place) as server:
        server.learner.fail(CrossborderError("a part has failed for good"))
        with pytest.raises(CrossborderError, match="a part has failed for good"):
            server.train()
        assert server.learner.outcome is Outcome.STOPPED
        assert server.control.stopping == (restarts_left == 0)
        assert (server.run.dir.path / "final" / "meta.json").exists()


@pytest.mark.parametrize("error", [CrossborderError("a part has failed"), TakenOverError("another learner has it")])
def test_local_actors_hand_over_all_their_rows_before_another_life_follows_unless_another_learner_has_the_run(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: CrossborderError
) -> None:
    is_taken_over = isinstance(error, TakenOverError)
    if is_taken_over:  # Its local actors look for ingest in vain, and are killed.
        monkeypatch.setattr("learner.loop.server.LEAVE_SECONDS", 0.1)
    caplog.set_level(logging.INFO)
    trainer = {"max_opts": 10**9}
    with (
        LearnerServer(make_config(trainer=trainer), 1, place=Place(restarts_left=1)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        training = pool.submit(server.train)
        wait_for(lambda: server.buffer.inserted > 200, "rows come")
        server.learner.fail(error)
        assert training.exception(PATIENCE) is error
    assert ("actor 0: stream closed without goodbye" in caplog.text) == is_taken_over
    if not is_taken_over:
        (steps,) = re.findall(r"actor 0 took (\d+) steps", caplog.text)
        assert_stored(server.run.dir.path, {0: int(steps)})


def test_an_error_of_the_loop_goes_before_an_error_at_the_end(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(server={"grace_seconds": 0.1}, trainer={"starvation_seconds": 0.01})
    with LearnerServer(config) as server:
        (server.run.dir.path / ".final.part").touch()  # In the way of the last policy.
        with pytest.raises(StarvedError):
            server.train()
    assert "final.part: cannot be saved" in caplog.text


def test_an_error_at_the_end_is_raised_if_the_loop_raised_none(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        (server.run.dir.path / ".final.part").touch()
        server.learner.request_stop()
        with pytest.raises(CheckpointError, match=r"final\.part: cannot be saved"):
            server.train()


@pytest.mark.parametrize(
    ("acting", "newest"),
    [(5000, 5001), (1, 1), (2**63, 1)],
    ids=["of a life that this directory does not know of", "of this life", "absurd"],
)
def test_models_are_newer_than_every_model_that_has_acted(make_config: MakeConfig, acting: int, newest: int) -> None:
    """A copy of the run is older than the life whose model the actor has, and the clock was ahead in that life."""
    config = make_config(
        agent={"target": "common.agents.dqn:DQN", "params": {"batch_size": 4}},
        trainer={"max_opts": 4, "sync_interval": 1},
        server={"grace_seconds": 0.1},
    )
    with LearnerServer(config) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        behaviour = pb.ModelVersion(incarnation=acting, opt_steps=900)
        assert talk.say(client.batch(1, count=50, behaviour=behaviour)).acked_seq == 1
        server.train()
        assert server.publisher.slots.newest() == (newest, 4)
        client.channel.close()
    with LearnerServer(config, resume=True) as server:
        assert server.publisher.slots.newest() > (newest, 4)


@pytest.mark.parametrize("prioritized", [None, {}])
def test_one_row_of_a_model_that_was_never_published_makes_no_other_actors_rows_older(
    make_config: MakeConfig, prioritized: dict[str, float] | None
) -> None:
    config = make_config(replay={"half_age": 10, "prioritized": prioritized}, server={"grace_seconds": 0.1})
    with LearnerServer(config) as server:
        server.publisher.publish(50, wait=True)
        for incarnation, versions in ((1, [40] * 30), (2, [2**32 - 1])):
            client = Client(server, incarnation)
            client.join()
            rows = client.items(0, len(versions)) | {"version": np.array(versions, np.uint32)}
            payload = encode(client.schema, rows, len(versions))
            Talk(client.stub).say(client.batch(1, count=len(versions), payload=payload))
            client.channel.close()
        assert server.buffer.batch(64)["weight"].tolist() == [0.5] * 64
