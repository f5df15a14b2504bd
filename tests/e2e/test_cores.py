"""Learner and actors that share a host: each process uses the cores that it was given."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from common.cores import write_cores
from common.errors import ConfigError
from common.system import usable_cores
from learner.evaluation.evaluator_process import EvaluatorProcess
from learner.loop.server import LearnerServer
from learner.storage.rundir import find_work
from tests.conftest import Command, MakeConfig, cores_of, kill, merged, wait_for
from tests.e2e.test_by_hand import CALM
from tests.e2e.test_counting import train_in_thread

Start = Callable[..., Command]
CORES = usable_cores()
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")
OWN, LEFT = CORES[:1], CORES[1:]


def test_trainer_ingest_and_evaluator_use_the_trainers_cores_and_local_actors_the_others(
    make_config: MakeConfig,
) -> None:
    trainer = {"cores": write_cores(OWN), "max_opts": 10**9, "eval_interval": 100}
    config = make_config(**merged(CALM, {"trainer": trainer}), evaluator={"process": "child", "max_steps": 20})
    n_actors = len(LEFT) + 1
    shared = {(core,) for core in LEFT}
    with train_in_thread(config, n_actors) as (server, _):
        actors = server.local_actors
        assert actors is not None
        wait_for(lambda: (server.actor_table["env_steps"] > 0).sum() == n_actors, "all actors act")
        wait_for(lambda: server.learner.best_score > float("-inf"), "the evaluator scores")
        assert {cores_of(pid) for pid in actors.pids} == shared
        assert isinstance(server.learner.scoring, EvaluatorProcess)
        for pid in (os.getpid(), server.ingest.pid, server.learner.scoring._supervisor.child.pid):
            assert cores_of(pid) == OWN
        killed, pids = server.ingest.pid, actors.pids
        kill(killed)
        kill(pids[0])
        wait_for(lambda: server.ingest.restarts == actors.restarts == 1, "both are started again")
        wait_for(lambda: (server.actor_table["env_steps"] > 0).sum() == n_actors + 1, "the new actor acts")
        assert cores_of(server.ingest.pid) == OWN
        assert {cores_of(pid) for pid in actors.pids} == shared
    assert cores_of(os.getpid()) == CORES, "the next run of this process begins with all of them"


def test_a_trainer_that_has_all_cores_leaves_none_to_local_actors(make_config: MakeConfig) -> None:
    every = write_cores(CORES)
    config = make_config(trainer={"cores": every})
    with pytest.raises(ConfigError, match=rf"^trainer\.cores: expected to leave a core .*, found {every}, "):
        LearnerServer(config, 1)
    assert config.run_dir is not None
    assert not find_work(config.run_dir), "no run has begun that would be in the way of the next start"


def test_actors_of_a_command_divide_its_cores(make_config: MakeConfig, start: Start) -> None:
    with train_in_thread(make_config(**CALM), 0) as (server, _):
        table, commands = server.actor_table, list[Command]()
        for n_actors, divided in ((1, {CORES[:2]}), (2, {CORES[:1], CORES[1:2]})):
            words = ("--num-actors", str(n_actors), "--cores", write_cores(CORES[:2]))
            commands.append(start("actor-worker", "--learner", server.ingest.address, *words))
            known = sum(range(n_actors + 1))
            wait_for(lambda known=known: (table["env_steps"] > 0).sum() == known, "all actors act")  # type: ignore[misc]
            assert {cores_of(int(pid)) for pid in table["pid"][known - n_actors : known]} == divided
    assert [command.wait() for command in commands] == [0, 0]
