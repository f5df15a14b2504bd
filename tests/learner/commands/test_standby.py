"""``learner-server --standby`` as real processes: the keeper, the process that forks learners, and the learner."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import ConfigError, PluginError, RunDirectoryError
from learner.commands.learner_server import main
from learner.commands.standby import IMPORTS, find_imports
from learner.shared.actor_table import map_actor_table
from tests.chaos.fleet import oldest_child
from tests.conftest import Command, MakeConfig, children_of, descendants_of, endpoints, is_alive, kill, wait_for
from tests.e2e.test_by_hand import CALM, grows, steps_by_actor, trains
from tests.stored import assert_stored

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]
EVERY_RUN = ["common.evaluation", "learner.views.transitions"]
"""Modules of the parts that a configuration has by default."""


def none_is_alive(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def start_keeper(start: Start, write_config: WriteConfig, tmp_path: Path) -> tuple[Command, int]:
    """A keeper whose learner trains, and the id of the process that forks its learners."""
    keeper = start("learner-server", "--config", str(write_config(**CALM)), "--standby")
    wait_for(lambda: trains(tmp_path / "run"), "training begins")
    (forks,) = children_of(keeper.process.pid)
    return keeper, forks


@pytest.mark.own_children
def test_when_the_learner_or_the_process_that_forks_it_is_killed_another_goes_on_and_nothing_acknowledged_is_lost(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = write_config(**{**CALM, "trainer": {**CALM["trainer"], "checkpoint_seconds": 0.1}})
    keeper = start("learner-server", "--config", str(config), "--standby")
    before = endpoints(run_dir)
    actor = start("actor-worker", "--learner", before["learner"])
    wait_for(lambda: steps_by_actor(run_dir), "the actor joins")
    (forks,) = children_of(keeper.process.pid)
    (learner,) = children_of(forks)
    kill(learner)
    wait_for(lambda: "resumed at opt step" in keeper.output(), "another learner goes on")
    assert oldest_child(keeper.process.pid) == forks, "which is forked from the same process"
    assert oldest_child(forks) != learner
    assert endpoints(run_dir) == before, "it has the ports that the learner had"
    grows(run_dir, {actor.process.pid})
    kill(forks)
    wait_for(lambda: keeper.output().count("resumed at opt step") == 2, "a learner of another process goes on")
    assert oldest_child(keeper.process.pid) != forks
    grows(run_dir, {actor.process.pid})
    below = descendants_of(keeper.process.pid)
    keeper.signal(signal.SIGTERM)
    assert (keeper.wait(), actor.wait()) == (143, 0), keeper.output() + actor.output()
    assert none_is_alive(below)
    assert "learner ended with exit code -9 and is started again" in keeper.output()
    assert re.search(r"^counting: it was asked to stop", keeper.output(), re.MULTILINE), "the summary is on stdout"
    table = map_actor_table(run_dir / "shared", create=False)
    (known,) = (row for row in table if row["pid"])
    assert_stored(run_dir, {0: int(known["env_steps"])})


@pytest.mark.own_children
def test_nothing_outlives_a_keeper_that_is_killed(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    keeper, _ = start_keeper(start, write_config, tmp_path)
    below = descendants_of(keeper.process.pid)
    assert len(below) >= 2
    kill(keeper.process.pid)
    wait_for(lambda: none_is_alive(below), "all end themselves")


@pytest.mark.own_children
def test_a_signal_while_no_learner_runs_ends_the_command_with_its_code(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    keeper, forks = start_keeper(start, write_config, tmp_path)
    kill(forks)
    wait_for(lambda: "is started again" in keeper.output(), "another process begins to import")
    keeper.signal(signal.SIGTERM)
    assert keeper.wait() == 143, keeper.output()


def looks(keeper: Command) -> int:
    """How often the main thread of the keeper has slept: it sleeps between two looks."""
    status = Path(f"/proc/{keeper.process.pid}/task/{keeper.process.pid}/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0])


def kill_without_run(keeper: Command, run_dir: Path, other: Path | None) -> None:
    """Rename the directory in which the learner trains, put another one in its place, and kill the learner."""
    wait_for(lambda: trains(run_dir), "training begins")
    before = looks(keeper)
    wait_for(lambda: looks(keeper) > before + 2, "the keeper has seen the run")
    run_dir.rename(run_dir.with_name("away"))
    if other is not None:
        other.rename(run_dir)
    kill(oldest_child(oldest_child(keeper.process.pid)))


def test_when_the_run_is_no_longer_in_its_directory_no_other_run_begins_there(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    keeper = start("learner-server", "--config", str(write_config(**CALM)), "--standby")
    kill_without_run(keeper, run_dir, None)
    assert keeper.wait() == RunDirectoryError.exit_code, keeper.output()
    assert f"{run_dir}: expected the run that the learner trained, found none" in keeper.output()
    assert not run_dir.exists()


def test_another_run_in_the_place_of_the_learners_is_left_alone(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir, other = tmp_path / "run", tmp_path / "other"
    config = str(write_config(**CALM))
    short = ("--local-actors", "1", "--set", "trainer.max_opts=1", "--run-dir", str(other))
    ends = start("learner-server", "--config", config, *short)
    assert ends.wait() == 0, ends.output()
    keeper = start("learner-server", "--config", config, "--standby")
    before = (other / "run.json").read_text()
    kill_without_run(keeper, run_dir, other)
    assert keeper.wait() == RunDirectoryError.exit_code, keeper.output()
    assert f"{run_dir}: expected the run that the learner trained, found another" in keeper.output()
    assert (run_dir / "run.json").read_text() == before


def test_a_run_that_takes_the_place_of_one_without_rows_is_gone_on_with(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir, words = tmp_path / "run", ("learner-server", "--config", str(write_config(**CALM)))
    former = start(*words)
    wait_for(lambda: trains(run_dir), "training begins")
    former.signal(signal.SIGTERM)
    assert former.wait() == 143
    keeper = start(*words, "--standby")
    wait_for(lambda: "a new run takes its place" in keeper.output() and trains(run_dir), "training begins anew")
    kill(oldest_child(oldest_child(keeper.process.pid)))
    wait_for(lambda: "resumed at opt step" in keeper.output(), "another learner goes on")


@pytest.mark.parametrize(
    "script",
    [
        'exec "$@" --config "$0"',
        'exec "$@" --config /dev/stdin < "$0"',
        'exec "$@" --config <(cat "$0")',
    ],
)
def test_all_learners_have_the_settings_with_which_the_command_began(
    script: str, start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir, config = tmp_path / "run", write_config(**CALM, seed=3)
    keeper = start("learner-server", "--standby", prefix=("bash", "-c", script, str(config)))
    wait_for(lambda: trains(run_dir), "training begins")
    began_with = (run_dir / "config.yaml").read_text()
    assert "seed: 3\n" in began_with
    edited = config.read_text().replace("seed: 3", "seed: 4")
    assert "seed: 4" in edited
    config.write_text(edited)
    kill(oldest_child(oldest_child(keeper.process.pid)))
    wait_for(lambda: "resumed at opt step" in keeper.output() and trains(run_dir), "another learner goes on")
    assert (run_dir / "config.yaml").read_text() == began_with


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ('exec "$@" <&- >&-', (PluginError.exit_code, "cannot import module 'no_such_module'")),
        ('cd gone && rmdir ../gone && exec "$@"', (ConfigError.exit_code, "expected a current directory, found none")),
    ],
)
def test_closed_streams_and_a_missing_directory_are_handled_as_without_standby(
    script: str, end: tuple[int, str], start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    code, said = end
    (tmp_path / "gone").mkdir()
    config = str(write_config(env={"target": "no_such_module:Env"}))
    shell = ("sh", "-c", script, "sh")
    keeper = start("learner-server", "--config", config, "--standby", cwd=tmp_path, prefix=shell)
    assert keeper.wait() == code, keeper.output()
    assert said in keeper.output()
    assert "Traceback" not in keeper.output()


def test_an_error_that_the_next_start_would_have_too_ends_the_command_with_its_code(
    start: Start, write_config: WriteConfig
) -> None:
    config = str(write_config(env={"target": "no_such_module:Env"}))
    keeper = start("learner-server", "--config", config, "--standby")
    assert keeper.wait() == PluginError.exit_code
    assert keeper.output().count("cannot import module 'no_such_module'") == 1
    assert "started again" not in keeper.output()


def test_a_rank_has_no_standby(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--config", str(write_config()), "--standby"]) == ConfigError.exit_code
    assert "--standby: expected a learner without other ranks, found WORLD_SIZE=2" in capfd.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert main(["--config", str(write_config()), "--standby"]) == ConfigError.exit_code
    assert "WORLD_SIZE: expected a number, as torchrun sets it, found 'two'" in capfd.readouterr().err


def test_learners_are_forked_with_our_parts_of_the_configuration_and_none_of_the_users(make_config: MakeConfig) -> None:
    config = make_config(agent={"target": "common.agents.dqn:DQN"}, env={"target": "common.envs.atari:make"})
    assert find_imports(config) == [*IMPORTS, "common.agents.dqn", "common.envs.atari", *EVERY_RUN]
    assert find_imports(make_config()) == [*IMPORTS, *EVERY_RUN]
