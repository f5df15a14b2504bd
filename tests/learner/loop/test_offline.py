"""Training from datasets: from files in Minari's format and from earlier runs, without an actor."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig, load_config
from common.data import Array, Items, Schema
from common.errors import DatasetError, RunDirectoryError, SchemaMismatchError
from common.interfaces import EnvSpec, Step
from common.settings import validate
from common.spaces import columns_of
from crossborder.testing import play
from learner.loop.in_turns import train_in_turns
from learner.loop.learner import Outcome
from learner.loop.offline import OfflineTrainer, train_offline
from learner.loop.run import Result
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from learner.storage.rundir import RunDir
from tests.conftest import ROOT, MakeConfig, counting_config
from tests.learner.recordings import record
from tests.parts import counting_schema, expected_rows
from tests.stored import assert_stored, stored_rows

IN_TURNS = {"target": "tests.parts:CheckingAgent", "params": {"in_turns": True}}
SCHEMA = counting_schema()


class Twice:
    """Gives every step two times, as items without links."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((*columns_of("obs", spec.observation_space), *columns_of("action", spec.action_space)))

    def reset(self) -> None:
        """It remembers nothing."""

    def process(self, step: Step) -> Items:
        obs, action = np.asarray(step.obs), np.asarray(step.action)
        return {"obs": np.stack([obs, obs]), "action": np.stack([action, action])}


def balance(obs: Array) -> int:
    """A CartPole expert: push to where the pole falls."""
    return int(obs[2] + 0.3 * obs[3] > 0)


@pytest.fixture
def cartpole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of the expert's steps."""
    env = gymnasium.make("CartPole-v1")
    return record(tmp_path, monkeypatch, play(env, 600, policy=balance), (env.observation_space, env.action_space))


def cloning(run_dir: Path, seed: int = 0, **trainer: Any) -> RunConfig:
    """A short CartPole run of behaviour cloning."""
    return validate(
        RunConfig,
        {
            "run_dir": str(run_dir),
            "seed": seed,
            "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
            "agent": {"target": "common.agents.bc:BC", "params": {"units": [32], "batch_size": 64, "lr": 0.01}},
            "trainer": {"max_opts": 300, "eval_interval": 100, "record_interval": 20, **trainer},
            "evaluator": {"episodes": 2, "max_steps": 200},
        },
    )


def rows(result: Result) -> list[dict[str, str]]:
    with (result.run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def untimed(result: Result) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if "sec" not in k} for row in rows(result)]


def run_to_its_end(directory: Path) -> Path:
    """A counting run in turns that has ended, in this directory."""
    return train_in_turns(counting_config(directory, seed=5, agent=IN_TURNS)).run_dir


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of such a run; nobody may leave it changed."""
    return run_to_its_end(tmp_path_factory.mktemp("ended") / "earlier")


@contextmanager
def changed(run_dir: Path, column: str, row: int, value: float) -> Iterator[None]:
    """Change one value in a run's replay for a while, as an earlier release could have stored it.

    A copy would not do: what has changed in a copy counts as damaged.
    """
    ring = ReplayMemory(run_dir / "shared" / "replay", SCHEMA, 1_000_000, create=False).columns[column]
    before, ring[row] = ring[row], value
    try:
        yield
    finally:
        ring[row] = before


# Learning.


def test_an_imitator_of_an_expert_scores_like_it(tmp_path: Path, cartpole: str) -> None:
    result = train_offline(cloning(tmp_path / "run", target_score=190), cartpole)
    assert result.outcome is Outcome.TARGET
    assert (result.run_dir / "best" / "meta.json").exists()
    assert (result.run_dir / "learning_curve.png").exists()


def test_the_same_seed_gives_the_same_curve_twice_and_another_seed_another(tmp_path: Path, cartpole: str) -> None:
    first, again, other = (
        untimed(train_offline(cloning(tmp_path / name, seed, max_opts=100), cartpole))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert len(first) == 5
    assert first == again
    assert first != other


def test_what_was_loaded_before_counts_as_a_sample_and_not_as_one_a_second(tmp_path: Path, cartpole: str) -> None:
    result = train_offline(cloning(tmp_path / "run", max_opts=40, eval_interval=0), cartpole)
    assert result.samples_total == 600
    assert [(row["samples_total"], row["samples_per_sec"]) for row in rows(result)] == [("600.0", "0.0")] * 2


def test_an_agent_that_needs_more_than_there_is_is_an_error(make_config: MakeConfig, earlier: Path) -> None:
    config = make_config(agent={**IN_TURNS, "params": {"ready_at": 501}})
    with pytest.raises(DatasetError, match=r"earlier: its 50[01] steps are too few to begin"):
        train_offline(config, str(earlier))
    assert config.run_dir is not None
    assert (config.run_dir / "final" / "meta.json").exists()


# An earlier run.


def test_the_rows_of_an_earlier_run_are_learnt_from_whole_and_it_is_left_as_it_was(
    make_config: MakeConfig, earlier: Path
) -> None:
    before = {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()}
    config = make_config(agent=IN_TURNS)
    result = train_offline(config, str(earlier))
    assert result.opt_steps == 500
    assert_stored(result.run_dir, {5: 501})
    assert {path: path.read_bytes() for path in earlier.rglob("*") if path.is_file()} == before


def test_first_priorities_of_an_earlier_run_are_left_out_and_asked_of_nobody(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    ape_x: dict[str, Any] = {"replay": {"prioritized": {}}, "push": {"initial_priorities": True}}
    rating = {"target": "tests.parts:RatingAgent", "params": {"in_turns": True}}
    directory = train_in_turns(counting_config(tmp_path / "earlier", seed=5, agent=rating, **ape_x)).run_dir
    config = make_config(agent=IN_TURNS, **ape_x)
    result = train_offline(config, str(directory))
    assert_stored(result.run_dir, {5: 501})
    assert "priority" not in stored_rows(result.run_dir)


def test_a_resumed_run_has_first_priorities_only_if_it_had_them_before(
    tmp_path: Path, make_config: MakeConfig, earlier: Path
) -> None:
    ape_x: dict[str, Any] = {"replay": {"prioritized": {}}, "push": {"initial_priorities": True}}
    for max_opts in (100, 200):
        config = make_config(agent=IN_TURNS, trainer={"max_opts": max_opts}, **ape_x)
        result = train_offline(config, str(earlier), resume=True)
    assert result.opt_steps == 200
    rating = {"target": "tests.parts:RatingAgent", "params": {"in_turns": True}}
    had = train_in_turns(counting_config(tmp_path / "had", seed=5, agent=rating, **ape_x)).run_dir
    longer = counting_config(had, agent=rating, trainer={"max_opts": 600}, **ape_x)
    assert train_offline(longer, None, resume=True).opt_steps == 600


def test_rows_that_were_overwritten_or_half_written_are_not_read(tmp_path: Path, make_config: MakeConfig) -> None:
    run_dir = tmp_path / "killed"
    RunDir(run_dir).close()
    memory = ReplayMemory(run_dir / "shared" / "replay", SCHEMA, 100, create=True)
    rows, writer = expected_rows(5, 230), ReplayWriter(memory)
    for seq, start in enumerate(range(0, 230, 10), start=1):
        batch = {name: column[start : start + 10] for name, column in rows.items()}
        writer.append(batch, 10, incarnation=1, seq=seq)
    memory.header.oldest = 137  # Killed while it overwrote the oldest with seven more.
    config = make_config(agent=IN_TURNS, trainer={"max_opts": 5})
    found = stored_rows(train_offline(config, str(run_dir)).run_dir)
    np.testing.assert_array_equal(found["obs"], rows["obs"][137:230])


def test_a_run_that_goes_on_is_not_a_dataset_yet(tmp_path: Path, make_config: MakeConfig) -> None:
    run = RunDir(tmp_path / "going")
    ReplayMemory(run.shared / "replay", SCHEMA, 100, create=True)
    with pytest.raises(RunDirectoryError, match="going: another learner is using this run directory"):
        train_offline(make_config(), str(tmp_path / "going"))
    run.close()


def test_a_run_without_a_row_is_empty(tmp_path: Path, make_config: MakeConfig) -> None:
    run = RunDir(tmp_path / "empty")
    run.begin()
    ReplayMemory(run.shared / "replay", SCHEMA, 100, create=True)
    run.close()
    with pytest.raises(DatasetError, match="empty: expected rows to learn from, found none"):
        train_offline(make_config(), str(tmp_path / "empty"))


def test_another_step_processor_of_the_run_is_named_by_its_column(make_config: MakeConfig, earlier: Path) -> None:
    twice = {"target": "tests.learner.loop.test_offline:Twice"}
    config = make_config(step_processor=twice, agent={"target": "common.agents.bc:BC"})
    message = r"column 2: this run expects nothing, dataset .*earlier has reward <f4 \[\]"
    with pytest.raises(SchemaMismatchError, match=message):
        train_offline(config, str(earlier))


def test_what_is_not_a_number_is_named_by_column_and_row(make_config: MakeConfig, earlier: Path) -> None:
    message = "column 'reward': expected finite values, found nan in row 4"
    with changed(earlier, "reward", 4, np.nan), pytest.raises(DatasetError, match=message):
        train_offline(make_config(), str(earlier))


def test_an_action_that_the_environment_does_not_have_is_named_by_column_and_row(
    make_config: MakeConfig, earlier: Path
) -> None:
    message = "column 'action': expected 0 to 2, found 7 in row 13"
    with changed(earlier, "action", 13, 7), pytest.raises(DatasetError, match=message):
        train_offline(make_config(), str(earlier))


# Room, and other sources.


def test_the_replay_grows_to_the_size_of_the_dataset(make_config: MakeConfig, earlier: Path) -> None:
    config = make_config(agent=IN_TURNS, replay={"capacity": 100, "samples_per_insert": 8})
    result = train_offline(config, str(earlier))
    assert load_config(result.run_dir / "config.yaml").replay.capacity == len(expected_rows(5, 501)["obs"])
    assert_stored(result.run_dir, {5: 501})


def test_a_step_processor_that_gives_more_items_than_there_is_room_for_is_an_error(
    tmp_path: Path, cartpole: str
) -> None:
    config = cloning(tmp_path / "run").model_dump(mode="json")
    config |= {"step_processor": {"target": "tests.learner.loop.test_offline:Twice"}, "replay": {"capacity": 500}}
    with pytest.raises(DatasetError, match=r"at most 6\d\d rows, found more in its 6\d\d; raise replay\.capacity"):
        train_offline(validate(RunConfig, config), cartpole)
    config |= {"run_dir": str(tmp_path / "again"), "replay": {"capacity": 1200}}
    with OfflineTrainer(validate(RunConfig, config), cartpole) as trainer:
        assert trainer.status().inserted == 1200


def test_a_source_that_is_neither_is_refused_before_a_run_directory_is_made(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    with pytest.raises(DatasetError, match=r"expected minari:ID, .* found 'no/such'"):
        train_offline(make_config(), "no/such")
    assert not (tmp_path / "run").exists()


# The configuration that is shipped.


@pytest.mark.parametrize("agent", ["iql:IQL", "awac:AWAC"])
def test_the_configuration_that_is_shipped_learns_from_the_replay_of_a_sac_run(tmp_path: Path, agent: str) -> None:
    """In a few steps; the file says what all of them come to."""
    few = ["trainer.max_opts=60", "trainer.eval_interval=60", "trainer.record_interval=20", "evaluator.episodes=1"]
    sac = load_config(
        ROOT / "configs" / "pendulum.yaml",
        [*few, f"run_dir={tmp_path / 'sac'}", "trainer.target_score=null", "agent.params.units=[16]"],
    )
    offline = load_config(
        ROOT / "configs" / "pendulum_offline.yaml",
        [*few, f"run_dir={tmp_path / 'offline'}", f"agent.target=common.agents.{agent}"],
    )
    found = rows(train_offline(offline, str(train_in_turns(sac).run_dir)))
    assert [int(row["opt_steps"]) for row in found] == [20, 40, 60]
    imitation = [float(row["log_prob"]) for row in found]
    assert imitation[-1] > imitation[0], "the policy comes nearer to the actions of the dataset"
    assert float(found[-1]["eval_reward"]) < 0
