from __future__ import annotations

import threading

import pytest

from common.errors import CheckpointError, HostUnreachableError, LearnerUnreachableError, RunDirectoryError
from common.settings import validate
from crossborder.launching.launcher import Launcher, actor_words, health_words, learner_words
from tests.conftest import PATIENCE, wait_for
from tests.crossborder.launching.hosts import StandInHosts

LEARNER, HEALTH, ACTORS = "learner-server", "crossborder-health", "actor-worker"


def test_commands_get_the_arguments_of_the_hosts_file(hosts: StandInHosts) -> None:
    trust = {"ca": "certs/ca.pem", "token_file": "certs/actor.token", "allow": ["my_env"]}
    config = validate(type(hosts.config("a")), {**hosts.values("a"), "trust": trust})
    origin = ["--learner", "gpu:50051"]
    assert learner_words(config)[:5] == ["--config", "run.yaml", "--run-dir", "run", "--resume"]
    assert health_words(config) == [*origin, "--patience", "120", "--ca", "certs/ca.pem"]
    files = ["--ca", "certs/ca.pem", "--token-file", "certs/actor.token"]
    assert actor_words(config, config.actors[0]) == [*origin, "--num-actors", "1", *files, "--allow", "my_env"]


def test_without_encryption_every_command_gets_the_option_for_it(hosts: StandInHosts) -> None:
    config = validate(type(hosts.config("a")), {**hosts.values("a"), "trust": {"insecure": True}})
    for words in (learner_words(config), health_words(config), actor_words(config, config.actors[0])):
        assert "--insecure" in words


def test_actors_start_when_the_learner_answers_and_end_when_it_has_ended(hosts: StandInHosts) -> None:
    hosts.does(learner="0 waits")
    running = threading.Thread(target=Launcher(hosts.config("a", "b")).run)
    running.start()
    wait_for(lambda: hosts.lines("started").count(ACTORS) == 2, "two hosts of actors")
    wait_for(lambda: LEARNER in hosts.lines("started"), "the learner")
    started = hosts.lines("started")
    assert started.index(HEALTH) < started.index(ACTORS)
    (hosts.folder / "go").open("w").close()
    running.join(PATIENCE)
    assert hosts.lines("ended") == [f"{ACTORS} asked", f"{ACTORS} asked"]


def test_when_it_is_time_to_stop_actors_end_before_the_learner(hosts: StandInHosts) -> None:
    launcher = Launcher(hosts.config("a", "b"))
    running = threading.Thread(target=launcher.run)
    running.start()
    wait_for(lambda: hosts.lines("started").count(ACTORS) == 2, "two hosts of actors")
    launcher.stop()
    running.join(PATIENCE)
    assert hosts.lines("ended") == [f"{ACTORS} asked", f"{ACTORS} asked", f"{LEARNER} asked"]


def test_a_host_that_cannot_be_reached_is_named_and_the_others_go_on(hosts: StandInHosts) -> None:
    launcher = Launcher(hosts.config("gone", "b"))
    errors: list[HostUnreachableError] = []

    def run() -> None:
        with pytest.raises(HostUnreachableError) as failed:
            launcher.run()
        errors.append(failed.value)

    running = threading.Thread(target=run)
    running.start()
    wait_for(lambda: hosts.lines("started").count(ACTORS) == 1, "the other host of actors")
    launcher.stop()
    running.join(PATIENCE)
    assert str(errors[0]) == "gone: actor-worker: ssh: connect to host gone port 22: No route to host"
    assert hosts.lines("ended") == [f"{ACTORS} asked", f"{LEARNER} asked"]


def test_when_all_actors_have_failed_the_learner_is_ended_and_all_failures_are_named(hosts: StandInHosts) -> None:
    hosts.does(actors="4")
    with pytest.raises(RunDirectoryError) as failed:
        Launcher(hosts.config("a", "b")).run()
    why = "actor-worker ended with exit code 4: actor-worker: the disk is full"
    assert sorted(str(failed.value).splitlines()) == [f"a: {why}", f"b: {why}"]
    assert hosts.lines("ended") == [f"{LEARNER} asked"]


def test_no_actors_start_when_the_learner_does_not_answer(hosts: StandInHosts) -> None:
    hosts.does(health="6")
    with pytest.raises(LearnerUnreachableError, match=r"gpu: crossborder-health ended with exit code 6"):
        Launcher(hosts.config("a")).run()
    assert ACTORS not in hosts.lines("started")
    assert hosts.lines("ended") == [f"{LEARNER} asked"]


def test_no_actors_start_when_the_learner_fails(hosts: StandInHosts) -> None:
    hosts.does(learner="12", health="143 holds")
    with pytest.raises(CheckpointError, match=r"gpu: learner-server ended with exit code 12: learner-server: the disk"):
        Launcher(hosts.config("a")).run()
    assert ACTORS not in hosts.lines("started")
