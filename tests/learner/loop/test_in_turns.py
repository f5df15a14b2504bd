"""Training in turns: the same parts, one process, and the same curve every time."""

from __future__ import annotations

import csv
import errno
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from safetensors.torch import load_file

from common.config.run_config import RunConfig
from common.data import Array
from common.errors import ConfigError, RefusedError, RunDirectoryError
from common.settings import validate
from learner.loop.in_turns import train_in_turns
from learner.loop.learner import Outcome
from learner.models.model_pool import Games
from learner.storage.rundir import read_identity
from tests.conftest import MakeConfig, merged
from tests.duels import ENV, find_opponents
from tests.stored import assert_stored, open_replay, stored_rows

IN_TURNS = {"target": "tests.parts:CheckingAgent", "params": {"in_turns": True}}
IDLE = {"target": "common.agents.dqn:DQN", "params": {"units": [4]}}


class Paying(gymnasium.Env[Array, Any]):
    """Pays the same amount in each of its episodes of one step."""

    def __init__(self, pay: float, n_actions: int = 2, width: int = 1) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (width,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(n_actions)
        self._pay = pay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], self._pay, True, False, {}


class Succeeding(Paying):
    """Every other episode succeeds, and says so."""

    episodes = 0

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.episodes += 1
        return *super().step(action)[:4], {"is_success": np.bool_(self.episodes % 2 == 0)}


def test_what_the_agent_gets_in_training_is_recorded(make_config: MakeConfig) -> None:
    config = make_config(
        agent=IDLE,
        env={"target": "tests.learner.loop.test_in_turns:Succeeding", "params": {"pay": 3.0}},
        trainer={"max_opts": 4, "warmup_period": 1, "record_interval": 2, "eval_interval": 0},
    )
    run_dir = train_in_turns(config).run_dir
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["train_return"], row["train_length"]) for row in rows] == [("3.0", "1.0")] * 2
    assert [row["train_success"] for row in rows] == ["0.5"] * 2


def test_earlier_models_play_against_the_newest_and_go_on_when_the_run_is_resumed(make_config: MakeConfig) -> None:
    def train(max_opts: int) -> Path:
        config = make_config(
            env={**ENV, "info": {"opponent": "int64"}},
            agent={"target": "tests.duels:Versioned", "params": {"in_turns": True}},
            trainer={"max_opts": max_opts, "sync_interval": 1, "record_interval": 50, "eval_interval": 0},
            pool={"every": 2, "size": 3},
        )
        return train_in_turns(config, resume=max_opts > 100).run_dir

    for max_opts in (100, 201):
        run_dir = train(max_opts)
        newest = sorted(int(path.stem.split("-")[1]) for path in (run_dir / "pool").glob("*.safetensors"))
        assert newest == [max_opts // 2 * 2 - back for back in (4, 2, 0)]
    episodes, changes, opponents = find_opponents(run_dir)
    assert (changes, len(opponents) > 30, episodes > 30) == (0, True, True)
    with (run_dir / "metrics.csv").open(newline="") as file:
        last = [*csv.DictReader(file)][-1]
    assert float(last["pool_win_rate"]) > 0.5, "the higher version wins"
    assert float(last["pool_rating"]) > 0
    ended = Games(run_dir / "pool" / "games.json").results
    assert sum(map(sum, ended.values())) >= episodes - 6, "six games at most had not ended: three in each life"


def test_models_with_tied_weights_join_the_pool(make_config: MakeConfig) -> None:
    config = make_config(
        env=ENV,
        agent={"target": "tests.duels:Tied", "params": {"in_turns": True}},
        trainer={"max_opts": 20, "sync_interval": 1, "eval_interval": 0},
        pool={"every": 10},
    )
    run_dir = train_in_turns(config).run_dir
    newest = load_file(run_dir / "pool" / "1-20.safetensors")
    assert {name: float(tensor[0]) for name, tensor in newest.items()} == {"steps": 20, "again": 20}


def test_a_full_disk_is_told_once_and_not_with_each_model_that_would_join_the_pool(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def replace_bytes(path: Path, content: bytes) -> None:
        if not path.name.endswith("-0.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("learner.models.model_pool.replace_bytes", replace_bytes)
    config = make_config(
        env=ENV,
        agent={"target": "tests.duels:Versioned", "params": {"in_turns": True}},
        trainer={"max_opts": 20, "sync_interval": 1, "eval_interval": 0},
        pool={"every": 1},
    )
    assert train_in_turns(config).opt_steps == 20
    assert caplog.text.count("the pool goes on without this model: ") == 1


@pytest.mark.parametrize("envs_per_actor", [1, 2])
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1", "Taxi-v4"])
def test_an_agent_learns_from_observations_that_are_numbers(
    env_id: str, envs_per_actor: int, make_config: MakeConfig
) -> None:
    config = make_config(
        agent=IDLE,
        env={"target": "gymnasium:make", "params": {"id": env_id, "max_episode_steps": 20}},
        envs_per_actor=envs_per_actor,
        trainer={"max_opts": 10, "warmup_period": 5, "eval_interval": 0},
    )
    assert train_in_turns(config).opt_steps == 10


@pytest.mark.parametrize("at", [1, 4])
def test_a_run_whose_environment_fails_is_in_the_way_of_the_next_start_if_it_has_stored_a_row(
    make_config: MakeConfig, tmp_path: Path, at: int
) -> None:
    params = {"marker": str(tmp_path / "failed"), "at": at}
    trainer = {"max_opts": 4, "warmup_period": 10, "eval_interval": 0}
    config = make_config(
        agent=IN_TURNS,
        env={"target": "tests.parts:FailingEnv", "params": params},
        trainer=trainer,
        push={"n_buffer": 1},
    )
    with pytest.raises(ValueError, match="once only"):
        train_in_turns(config)
    if at > 1:
        stored = stored_rows(tmp_path / "run")
        with pytest.raises(RunDirectoryError, match="expected a new run directory, found a run"):
            train_in_turns(config)
        assert len(stored_rows(tmp_path / "run")["obs"]) == len(stored["obs"]) == at - 1
        assert train_in_turns(config, resume=True).opt_steps == 4
    else:
        (tmp_path / "run" / "pool").mkdir()
        assert train_in_turns(config).opt_steps == 4
        assert not (tmp_path / "run" / "pool").exists(), "models of the former run play no games of the new one"
    assert read_identity(tmp_path / "run").is_resumed == (at > 1)


def cartpole(run_dir: Path, seed: int, envs_per_actor: int = 1, **replay: Any) -> RunConfig:
    """A short CartPole run that draws on every source of chance there is."""
    return validate(
        RunConfig,
        {
            "run_dir": str(run_dir),
            "seed": seed,
            "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
            "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [16], "explorer": {"final_step": 50}}},
            "exploration": {"epsilons": [0.2]},
            "replay": {"capacity": 1000, "samples_per_insert": 16, **replay},
            "trainer": {"max_opts": 200, "warmup_period": 50, "eval_interval": 50, "record_interval": 20},
            "evaluator": {"episodes": 2},
            "envs_per_actor": envs_per_actor,
        },
    )


def rows(run_dir: Path) -> list[dict[str, str]]:
    """What was recorded, without the times."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if "sec" not in k} for row in csv.DictReader(file)]


def test_the_same_seed_gives_the_same_curve_twice_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        rows(train_in_turns(cartpole(tmp_path / name, seed)).run_dir) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert len(first) == 10 + 2  # Every 20 steps, and at the evaluations that do not fall on one of them.
    assert first == again
    assert first != other


def test_with_priorities_the_same_seed_gives_the_same_curve_also_on_the_device(tmp_path: Path) -> None:
    def train(name: str, resident: bool) -> list[dict[str, str]]:
        config = cartpole(tmp_path / name, 3, prioritized={}, resident=resident)
        priorities = merged(config.model_dump(), {"push": {"initial_priorities": True}})
        return rows(train_in_turns(validate(RunConfig, priorities)).run_dir)

    assert train("a", True) == train("b", False)


@pytest.mark.parametrize("envs", [1, 4])
def test_the_replay_ratio_is_exact(tmp_path: Path, envs: int) -> None:
    result = train_in_turns(cartpole(tmp_path / "run", 0, envs))
    drawn_after_warmup = 200 * 64
    assert result.samples_total == pytest.approx(50 + drawn_after_warmup / 16, abs=4)
    assert result.outcome is Outcome.MAX_OPTS


def test_without_a_ratio_there_is_an_opt_step_for_each_env_step(make_config: MakeConfig) -> None:
    config = make_config(agent=IN_TURNS, trainer={"max_opts": 30, "warmup_period": 10})
    assert train_in_turns(config).samples_total == 9 + 30, "the tenth step ends the warm-up, and has an opt step"


def test_a_round_in_eight_environments_counts_as_eight_env_steps(make_config: MakeConfig) -> None:
    config = make_config(agent=IN_TURNS, envs_per_actor=8, trainer={"max_opts": 32})
    assert train_in_turns(config).samples_total == 8 + 32, "after the first round no step has a next one"


def test_each_of_several_environments_is_stored_once_and_in_order(make_config: MakeConfig) -> None:
    config = make_config(seed=5, agent=IN_TURNS, envs_per_actor=3, trainer={"max_opts": 300})
    result = train_in_turns(config)
    assert open_replay(result.run_dir).steps == result.samples_total == 303
    assert_stored(result.run_dir, {5: 101, 6: 101, 7: 101})


def test_every_row_is_stored_once_in_order_and_linked(make_config: MakeConfig) -> None:
    config = make_config(seed=5, agent=IN_TURNS, trainer={"max_opts": 500})
    result = train_in_turns(config)
    assert open_replay(result.run_dir).steps == result.samples_total == 501
    assert_stored(result.run_dir, {5: 501})


def test_each_row_has_the_version_of_the_model_that_acted(make_config: MakeConfig) -> None:
    config = make_config(seed=5, agent=IN_TURNS, trainer={"max_opts": 20})
    rows = stored_rows(train_in_turns(config).run_dir)
    versions = rows["version"][~rows["final"]].tolist()
    assert versions == sorted(versions)
    assert set(versions) == set(range(20))


def test_training_and_evaluation_each_have_their_environment(make_config: MakeConfig) -> None:
    config = make_config(
        env={"target": f"{__name__}:Paying", "params": {"pay": 1.0}, "eval_params": {"pay": 5.0}},
        agent=IDLE,
        trainer={"max_opts": 20, "eval_interval": 10},
    )
    result = train_in_turns(config)
    rows = stored_rows(result.run_dir)
    assert set(rows["reward"][~rows["final"]].tolist()) == {1.0}
    assert result.best_score == 5.0


@pytest.mark.parametrize("changed", [{"n_actions": 3}, {"width": 2}])
def test_an_environment_of_evaluations_with_other_spaces_is_refused(
    make_config: MakeConfig, changed: dict[str, Any]
) -> None:
    config = make_config(
        env={"target": f"{__name__}:Paying", "params": {"pay": 1.0}, "eval_params": changed},
        agent=IDLE,
        trainer={"eval_interval": 10},
    )
    with pytest.raises(ConfigError, match=r"env\.eval_params: expected the spaces of training, .*, found "):
        train_in_turns(config)


def test_goals_in_dict_observations_are_learnt_to_be_reached(tmp_path: Path) -> None:
    values = {
        "run_dir": str(tmp_path / "run"),
        "env": {"target": "tests.parts:Goals"},
        "agent": {
            "target": "common.agents.dqn:DQN",
            "params": {"units": [32], "lr": 0.01, "soft_update_interval": 20, "discount_factor": 0.9},
        },
        "exploration": {"epsilons": [1.0]},
        "replay": {"capacity": 10_000},
        "trainer": {"max_opts": 3000, "warmup_period": 200, "eval_interval": 100, "target_score": -1.0},
        "evaluator": {"episodes": 10},
    }
    result = train_in_turns(validate(RunConfig, values))
    assert result.outcome is Outcome.TARGET


def test_an_exception_ends_training_and_what_was_learnt_is_saved(make_config: MakeConfig) -> None:
    config = make_config(agent={"target": "tests.parts:FailingAgent", "params": {"in_turns": True}})
    with pytest.raises(ZeroDivisionError):
        train_in_turns(config)
    assert config.run_dir is not None
    assert (config.run_dir / "final" / "meta.json").exists()


def test_a_value_that_may_not_be_stored_ends_training_by_its_column(make_config: MakeConfig) -> None:
    config = make_config(env={"target": "tests.parts:NanEnv"}, agent=IN_TURNS)
    with pytest.raises(RefusedError, match="column 'reward': expected finite values, found nan in row 0"):
        train_in_turns(config)
