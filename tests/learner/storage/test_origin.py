"""New runs that begin from a saved agent: its weights, and whatever else is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.config.run_config import RunConfig, dump_config
from common.errors import CheckpointError, ConfigError, RunDirectoryError, SchemaMismatchError
from learner.commands.sync_train import main
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.offline import OfflineTrainer
from learner.loop.server import LearnerServer
from learner.storage.checkpoint import load_params
from learner.storage.origin import OPTIMISER, REPLAY, Origin
from learner.storage.rundir import RunDir, list_states
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
    metrics = {"trainer_port": None, "ingest_port": None}
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
