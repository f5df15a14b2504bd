"""``learner-server ratio``, ``drain``, ``cordon``, ``uncordon`` and ``set-best-aside``, against real learners."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from common.config.run_config import RunConfig
from common.errors import CheckpointError, ConfigError, LearnerUnreachableError, RefusedError
from common.settings import validate
from learner.commands import server_orders
from learner.commands.admin_client import AdminClient
from learner.commands.fleet_table import FleetView
from learner.commands.learner_server import main
from learner.commands.server_orders import (
    _wait_until_gone,
    cordon_parser,
    count_actors,
    open_admin_clients,
    selection_of,
)
from learner.ingest.cordons import Selection
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.learner import Outcome
from learner.loop.server import LearnerServer
from learner.storage.checkpoint import read_best
from tests.conftest import PATIENCE, Command, MakeConfig, wait_for
from tests.e2e.test_by_hand import CALM
from tests.e2e.test_counting import train_in_thread
from tests.learner.commands.test_fleet_table import actor, look
from tests.learner.ingest.by_hand import Client, Talk
from tests.learner.loop.test_in_turns import cartpole

HOST = socket.gethostname()
ALL = Selection(everybody=True)


def test_the_actors_of_a_drained_host_leave_for_good_and_others_come_back_after_uncordon(
    start: Callable[..., Command], make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with train_in_thread(make_config(**CALM), 0) as (server, _):
        address = server.ingest.address

        def order(name: str, *words: str) -> str:
            assert main([name, "--learner", address, *words]) == 0
            return capsys.readouterr().out

        workers = start("actor-worker", "--learner", address, "--num-actors", "2")
        wait_for(lambda: (server.actor_table["items"] > 0).sum() == 2, "two actors")
        assert order("drain", "--host", HOST) == f"drained: hosts {HOST}; 2 actors told to leave, and none is left\n"
        assert workers.wait() == 0, workers.output()
        assert workers.output().count(" joined run ") == 2, "no worker was started again"
        left = server.actor_table[:2]
        assert left["items"].tolist() == left["env_steps"].tolist(), "every step was handed over"
        later = start("actor-worker", "--learner", address)
        wait_for(lambda: "this actor or its host is cordoned" in later.output(), "it waits at the cordon")
        assert order("uncordon", "--host", HOST) == f"uncordoned: hosts {HOST}; still cordoned: none\n"
        wait_for(lambda: server.control.actors_online == 1, "it is back")
        assert order("cordon", "--all") == "cordoned: all; 1 actor of them there and going on\n"
        server.learner.request_stop()
    assert later.wait() == 0, later.output()


def test_actors_that_do_not_leave_in_time_are_named(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1))
        assert main(["drain", "--learner", server.ingest.address, "--all", "--timeout", "0.1"]) == 1
        assert "1 of 1 actor have not left in time, and are to leave: 0 (here, online)" in capsys.readouterr().err
        talk.cancel()


class Learner:
    """Answers for its status with these views, one after another, and the last one again and again; None: not."""

    def __init__(self, *views: FleetView | None) -> None:
        self._views = [*views]

    def fetch_status(self) -> FleetView:
        view = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        if view is None:
            raise LearnerUnreachableError("here:1: nobody listens")
        return view


def wait_until_gone(*views: FleetView | None, seconds: float = PATIENCE) -> list[int]:
    found = _wait_until_gone([cast("AdminClient", Learner(*views))], ALL, seconds, threading.Event())
    return [actor.actor_id for actor in found]


def test_a_drain_goes_on_while_the_learner_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_orders, "LOOK_SECONDS", 0.01)
    assert wait_until_gone(None, look(1.0, actor(3)), None, None, look(2.0)) == []
    assert wait_until_gone(None, look(1.0, actor(3)), seconds=0.1) == [3]
    with pytest.raises(LearnerUnreachableError, match="nobody listens"):
        wait_until_gone(look(1.0, actor(3)), None, seconds=0.1)


PARSER = cordon_parser()


def chosen(*words: str) -> Selection:
    return selection_of(PARSER.parse_args(["--learner", "a:1", *words]))


def test_hosts_and_ids_may_be_given_together_and_again() -> None:
    found = chosen("--host", "cpu-1", "cpu-2", "--actor", "3", "--host", "cpu-4")
    assert found == Selection(frozenset({3}), frozenset({"cpu-1", "cpu-2", "cpu-4"}))
    assert chosen("--all") == Selection(everybody=True)


def test_a_command_that_names_no_actor_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected --host, --actor or --all, found none of them"):
        chosen()


def test_the_command_goes_to_every_rank_that_is_named() -> None:
    arguments = PARSER.parse_args(["--learner", "127.0.0.1:1,127.0.0.1:2", "--all"])
    with open_admin_clients(arguments) as clients:
        for client, address in zip(clients, ("127.0.0.1:1", "127.0.0.1:2"), strict=True):
            with pytest.raises(LearnerUnreachableError, match=address):
                client.cordon(selection_of(arguments))


def test_one_actor_is_counted_as_one() -> None:
    assert [count_actors(count) for count in (0, 1, 2)] == ["0 actors", "1 actor", "2 actors"]


@pytest.fixture
def held(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """Holds a replay ratio of 2 and answers admins; nobody trains."""
    with LearnerServer(make_config(replay={"samples_per_insert": 2.0})) as server:
        yield server


def test_the_command_sets_the_replay_ratio_and_prints_the_former_one(
    start: Callable[..., Command], held: LearnerServer
) -> None:
    for value, code, answer in (
        ("4", 0, "replay ratio 4 instead of 2"),
        ("null", 0, "replay ratio null instead of 4"),
        ("1e7", RefusedError.exit_code, "less than or equal to 1000000, found 10000000.0"),
    ):
        command = start("learner-server", "ratio", "--learner", held.ingest.address, value)
        assert command.wait() == code
        assert answer in command.output()


def ends_at_once(run_dir: Path) -> RunConfig:
    """A run whose first score reaches its target."""
    values = cartpole(run_dir, 3).model_dump(mode="json")
    values["trainer"] |= {"max_opts": 1000, "eval_interval": 5, "target_score": 1.0}
    return validate(RunConfig, values)


def test_a_score_that_ended_the_run_is_taken_back_and_the_run_goes_on(
    tmp_path: Path, start: Callable[..., Command]
) -> None:
    config = ends_at_once(tmp_path / "run")
    assert train_in_turns(config).outcome is Outcome.TARGET
    best = read_best(tmp_path / "run")
    assert best is not None
    with Trainer(config, resume=True) as trainer:
        assert trainer.learner.outcome is Outcome.TARGET, "nothing was taken back yet"
    command = start("learner-server", "set-best-aside", "--run", str(tmp_path / "run"))
    assert command.wait() == 0
    assert (
        f"best/ of opt step 5 with the score {best.score:g} is best-5/ now; the next score is the" in command.output()
    )
    line = json.loads((tmp_path / "run" / "audit.jsonl").read_text())
    assert {**line, "time": ""} == {
        "time": "",
        "event": "best",
        "outcome": "set aside",
        "opt_steps": 5,
        "score": best.score,
        "kept": "best-5",
    }
    with Trainer(config, resume=True) as trainer:
        assert trainer.learner.outcome is None
    again = start("learner-server", "set-best-aside", "--run", str(tmp_path / "run"))
    assert again.wait() == CheckpointError.exit_code
    assert "expected a run with a policy in best/, found none that can be read" in again.output()
