"""New runs that begin from a saved agent: its weights, and whatever else is asked for."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from common.config.run_config import RunConfig, dump_config, load_config
from common.data import Column, Schema
from common.domain import Domain
from common.errors import CheckpointError, ConfigError, RunDirectoryError, SchemaMismatchError
from common.plugins.part_config import PluginConfig
from learner.commands.sync_train import main
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.offline import OfflineTrainer
from learner.loop.server import LearnerServer
from learner.replay.memory import Layout
from learner.storage.checkpoint import load_params
from learner.storage.origin import OPTIMISER, REPLAY, Origin, act_by_policy, find_differences, require_same_spaces
from learner.storage.rundir import RunDir, list_states
from tests.conftest import ROOT, MakeConfig
from tests.learner.ingest.by_hand import Client
from tests.learner.loop.test_in_turns import cartpole
from tests.learner.loop.test_run import replay_of
from tests.learner.test_resume import changed


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 200 opt steps with best/, final/ and 100/."""
    run_dir = tmp_path_factory.mktemp("earlier") / "run"
    train_in_turns(changed(cartpole(run_dir, seed=3), trainer={"save_interval": 100}))
    return run_dir


def opened(way: str, config: RunConfig, origin: Origin) -> LearnerServer | Trainer | OfflineTrainer:
    if way == "learner-server":
        return LearnerServer(changed(config, server={"listen": "127.0.0.1:0", "grace_seconds": 0.5}), origin=origin)
    if way == "sync-train":
        return Trainer(config, origin=origin)
    return OfflineTrainer(config, None if origin.has_replay else str(origin.run), origin=origin)


def begun(run_dir: Path, seed: int = 9, **changes: Any) -> RunConfig:
    metrics = {"listen": None}
    return changed(cartpole(run_dir, seed=seed), metrics=metrics, **changes)


def params_in(state: Path) -> dict[str, torch.Tensor]:
    """The agent's tensors in a state of training."""
    tensors = load_file(state / "state.safetensors")
    return {name.removeprefix("agent."): tensor for name, tensor in tensors.items() if name.startswith("agent.")}


@pytest.mark.parametrize("way", ["learner-server", "sync-train", "offline-train"])
@pytest.mark.parametrize("options", [(), (REPLAY,), (OPTIMISER,), (OPTIMISER, REPLAY)], ids="+".join)
def test_a_new_run_begins_with_what_was_asked_for_of_the_earlier_one(
    earlier: Path, tmp_path: Path, way: str, options: tuple[str, ...]
) -> None:
    run_dir = tmp_path / "run"
    with opened(way, begun(run_dir), Origin.at(earlier, frozenset(options))) as training:
        assert (training.learner.opt_steps, training.learner.best_score) == (0, float("-inf"))
    model = list_states(earlier)[0] if OPTIMISER in options else earlier / "best"
    found, saved = params_in(run_dir / "checkpoints" / "0"), load_params(earlier / "best")[0]
    if OPTIMISER in options:
        saved = {
            k.removeprefix("agent."): v for k, v in load_file(model / "state.safetensors").items() if "agent." in k
        }
        assert [name for name in saved if name.startswith("_optimizer.")], "moments are among them"
    assert all(torch.equal(found[name], tensor) for name, tensor in saved.items())
    items = replay_of(earlier).committed if REPLAY in options or way == "offline-train" else 0
    assert replay_of(run_dir).committed == items
    identity = json.loads((run_dir / "run.json").read_text())
    before = json.loads((earlier / "run.json").read_text())
    assert identity["origin"]["run_id"] == before["run_id"] != identity["run_id"]
    assert (identity["origin"]["path"], identity["origin"]["with"]) == (str(model), sorted(options))


def test_a_resumed_run_still_says_where_it_began(earlier: Path, tmp_path: Path) -> None:
    config = begun(tmp_path / "run", trainer={"max_opts": 10})
    train_in_turns(config, origin=Origin.at(earlier))
    train_in_turns(changed(config, trainer={"max_opts": 20}), resume=True)
    identity = json.loads((tmp_path / "run" / "run.json").read_text())
    assert identity["incarnation"] > 1
    assert identity["origin"]["path"] == str(earlier / "best")


def test_a_run_with_a_copied_replay_steps_its_environment_from_the_beginning(earlier: Path, tmp_path: Path) -> None:
    """It does not catch up first with draws for steps that it was given."""
    config = begun(tmp_path / "run", trainer={"max_opts": 20})
    result = train_in_turns(config, origin=Origin.at(earlier, frozenset({REPLAY})))
    copied = replay_of(earlier)
    added = result.samples_total - copied.count_steps(copied.first(), copied.committed)
    assert abs(added * 16 - 20 * 64) <= 2 * 64


@pytest.mark.parametrize(
    ("name", "taken"), [(".", "best"), ("best", "best"), ("final", "final"), ("100", "100")], ids=str
)
def test_a_run_or_one_of_its_checkpoints_may_be_named(earlier: Path, name: str, taken: str) -> None:
    origin = Origin.at(earlier / name)
    assert (origin.model.resolve(), origin.run.resolve()) == (earlier / taken, earlier)
    assert str(origin).startswith(f"{origin.model} (run ")


def test_the_run_of_a_policy_is_known_where_its_directory_has_no_name(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(earlier / "best")
    assert Origin.at(Path()).run == earlier.resolve()


def test_without_a_best_policy_the_final_one_is_taken(earlier: Path, tmp_path: Path) -> None:
    shutil.copytree(earlier / "final", tmp_path / "run" / "final")
    assert Origin.at(tmp_path / "run").model == tmp_path / "run" / "final"


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("rnu", (), CheckpointError, r"rnu: expected a run's directory with best/ or final/.*did you mean '.*run'"),
        ("run/best", (OPTIMISER,), CheckpointError, r"best: expected a run's directory with checkpoints/"),
        ("run/checkpoints", (), CheckpointError, r"checkpoints: expected a run's directory with best/ or final/"),
    ],
)
def test_a_directory_without_the_saved_agent_is_named(
    earlier: Path, name: str, options: tuple[str, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Origin.at(earlier.parent / name, frozenset(options))


@pytest.mark.parametrize("option", [(), (OPTIMISER,)], ids=["weights", "optimiser"])
def test_another_network_is_refused_naming_both_and_the_directory_stays_free(
    earlier: Path, tmp_path: Path, option: tuple[str, ...]
) -> None:
    config, origin = begun(tmp_path / "run"), Origin.at(earlier, frozenset(option))
    other = changed(config, agent={"params": {"units": [17]}})
    message = (
        r"run/(best|checkpoints/200): common\.agents\.dqn:DQN was saved there, which does not fit "
        r"common\.agents\.dqn:DQN of this run \(agent\.params\.units: \[16\] there, \[17\] here; .*\): DQN"
    )
    with pytest.raises(CheckpointError, match=message), Trainer(other, origin=origin):
        pass
    with Trainer(config, origin=origin):
        pass


def test_an_agent_that_goes_on_counts_the_opt_steps_of_the_new_run(tmp_path: Path) -> None:
    """By those of the earlier run, all rows would be too old for PPO to learn from."""
    path, trainer = ROOT / "configs/ppo_cartpole.yaml", {"eval_interval": 0, "target_score": None}

    def config_of(name: str, max_opts: int) -> RunConfig:
        given = {"run_dir": str(tmp_path / name), "agent": {"params": {"max_lag": 2, "epochs": 1, "minibatches": 1}}}
        return changed(load_config(path), **given, trainer={**trainer, "max_opts": max_opts})

    train_in_turns(config_of("earlier", max_opts=5))
    origin = Origin.at(tmp_path / "earlier", frozenset({OPTIMISER}))
    with Trainer(config_of("run", max_opts=3), origin=origin) as training:
        agent = training.run.parts.agent
        assert (agent._opt_steps, agent._gradient_steps) == (0, 5)  # type: ignore[attr-defined]
        assert training.train().opt_steps == 3


def test_rows_of_other_columns_are_refused_by_name(earlier: Path, tmp_path: Path) -> None:
    config = begun(tmp_path / "run", push={"initial_priorities": True}, replay={"prioritized": {}})
    with (
        pytest.raises(SchemaMismatchError, match="priority"),
        Trainer(config, origin=Origin.at(earlier, frozenset({REPLAY}))),
    ):
        pass


def test_a_replay_that_a_learner_uses_is_not_copied(earlier: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    shutil.copytree(earlier, live)
    run = RunDir(live, resume=True)
    with (
        pytest.raises(RunDirectoryError, match="another learner is using"),
        Trainer(begun(tmp_path / "run"), origin=Origin.at(live, frozenset({REPLAY}))),
    ):
        pass
    run.close()


def test_a_dataset_and_a_replay_are_one_too_many(earlier: Path, tmp_path: Path) -> None:
    origin = Origin.at(earlier, frozenset({REPLAY}))
    with (
        pytest.raises(ConfigError, match="--dataset: expected one source of rows"),
        OfflineTrainer(begun(tmp_path / "run"), str(earlier), origin=origin),
    ):
        pass


# The command.


def test_the_command_begins_from_a_run_and_then_goes_on_with_its_own(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = shutil.copytree(earlier / "best", tmp_path / "earlier" / "best")
    (tmp_path / "run.yaml").write_text(dump_config(begun(tmp_path / "run")))
    words = ["--config", str(tmp_path / "run.yaml"), "--from", str(origin.parent), "--resume"]
    assert main([*words, "--set", "trainer.max_opts=10"]) == 0
    assert f"a new run from {origin} (run " in capsys.readouterr().err
    shutil.rmtree(origin.parent)
    assert main([*words, "--set", "trainer.max_opts=20"]) == 0
    told = capsys.readouterr().err
    assert "a new run from" not in told
    assert "resumed at opt step 10 " in told


SMALL: dict[str, Any] = {"units": [8], "batch_size": 8, "update": "eager"}
SAC: dict[str, Any] = {"target": "common.agents.sac:SAC", "params": SMALL}
PENDULUM: dict[str, Any] = {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}}


def schema(width: int = 3, bound: float = 1.0) -> Schema:
    action = Column.of("action", np.float32, (1,), Domain.between(-bound, bound, np.float32))
    return Schema.of_rows((Column.of("obs", np.float32, (width,)), action))


def run_of(directory: Path, columns: Schema) -> Path:
    """The directory of a run whose replay has these columns."""
    replay = directory / "shared" / "replay"
    replay.mkdir(parents=True)
    Layout(columns, capacity=10, slack=0).write(replay)
    return directory


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (schema(width=4), r"expected the spaces .* obs <f4 \[3\], found obs <f4 \[4\]"),
        (schema(bound=2.0), r"action <f4 \[1\] \(-1 to 1\), found action <f4 \[1\] \(-2 to 2\)"),
    ],
)
def test_other_spaces_are_refused_by_name(tmp_path: Path, before: Schema, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        require_same_spaces(run_of(tmp_path, before), schema())


def test_spaces_are_not_compared_where_the_earlier_ones_are_not_known(tmp_path: Path) -> None:
    require_same_spaces(run_of(tmp_path / "same", schema()), schema())
    require_same_spaces(run_of(tmp_path / "items", Schema((Column.of("n", np.int64),))), schema())
    require_same_spaces(tmp_path / "no replay", schema())


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (SAC, []),
        ({}, []),
        ({**SAC, "params": {**SMALL, "units": (8,), "lr": 3e-4}}, []),
        ({**SAC, "params": {"units": [9]}}, ["units: [9] there, [8] here", "batch_size: 256 there, 8 here"]),
        ({"target": "common.agents.dqn:DQN"}, ["common.agents.dqn:DQN there, common.agents.sac:SAC here"]),
        ({**SAC, "params": {"gone": 1}}, ["gone: 1 there, nothing here"]),
    ],
)
def test_the_settings_in_which_two_agents_differ_are_named(before: dict[str, Any], found: list[str]) -> None:
    differences = find_differences(before, PluginConfig(**SAC))
    assert all(any(each.endswith(end) for each in differences) for end in found)
    assert bool(differences) == bool(found)


def test_only_agents_with_a_random_start_get_another_setting(make_config: MakeConfig) -> None:
    assert act_by_policy(make_config(agent=SAC)).agent.params["random_opts"] == 0
    wanted = make_config(agent={**SAC, "params": {"random_opts": 5}})
    assert act_by_policy(wanted) == wanted
    assert act_by_policy(plain := make_config(agent={"target": "common.agents.dqn:DQN"})) == plain


def pendulum(run_dir: Path) -> RunConfig:
    values = {"env": PENDULUM, "agent": SAC, "trainer": {"max_opts": 3, "warmup_period": 10, "eval_interval": 0}}
    return changed(cartpole(run_dir, seed=3), **values)


def test_a_run_from_a_saved_agent_acts_by_its_policy_and_so_does_a_later_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SAC and TD3 would act at random until the first opt step, which comes after the warm-up."""
    train_in_turns(pendulum(tmp_path / "earlier"))
    config = changed(pendulum(tmp_path / "run"), agent={**SAC, "params": {**SMALL, "lr": 0.01}})
    with caplog.at_level(logging.WARNING), Trainer(config, origin=Origin.at(tmp_path / "earlier")) as trainer:
        trainer.train()
        agent = trainer.run.parts.agent
    assert "agent.params.lr: 0.0003 there, 0.01 here" in caplog.text
    assert agent.config.random_opts == 0  # type: ignore[attr-defined]
    assert load_config(tmp_path / "run" / "config.yaml").agent.params["random_opts"] == 0
    with Trainer(changed(config, trainer={"max_opts": 6}), resume=True) as trainer:
        assert trainer.run.config.agent.params["random_opts"] == 0


def test_actors_are_told_to_act_by_the_policy(tmp_path: Path) -> None:
    train_in_turns(pendulum(tmp_path / "earlier"))
    metrics = {"listen": None}
    server = {"listen": "127.0.0.1:0", "grace_seconds": 0.5}
    config = changed(pendulum(tmp_path / "run"), metrics=metrics, server=server)
    with LearnerServer(config, origin=Origin.at(tmp_path / "earlier")) as learner:
        told = json.loads(Client(learner).join().config_json)
    assert told["agent"]["params"]["random_opts"] == 0


def test_the_check_loads_the_saved_agent_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in_turns(pendulum(tmp_path / "earlier"))
    (tmp_path / "run.yaml").write_text(dump_config(pendulum(tmp_path / "run")))
    words = ["--config", str(tmp_path / "run.yaml"), "--from", str(tmp_path / "earlier"), "--check"]
    assert main(words) == 0
    assert main([*words, "--set", "agent.params.units=[9]"]) == CheckpointError.exit_code
    assert "agent.params.units: [8] there, [9] here" in capsys.readouterr().err
    assert main([*words, "--set", f"env.wrappers=[{{target: '{__name__}:Narrow'}}]"]) == CheckpointError.exit_code
    assert "action <f4 [1] (-1 to 1), found action <f4 [1] (-2 to 2)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Narrow(gymnasium.wrappers.RescaleAction[Any, Any, Any]):
    """Takes actions from -1 to 1."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, np.float32(-1), np.float32(1))
