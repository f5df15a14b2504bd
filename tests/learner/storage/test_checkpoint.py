from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.agents.products import choices
from common.config.actor_config import ActorConfig
from common.errors import CheckpointError, ConfigError, PluginError
from common.interfaces import Agent
from common.lanes.building import build_env, spec_of
from common.lanes.policy import Policy
from common.plugins.part_config import EnvConfig, PluginConfig
from examples.own_parts import Corridor, TabularQ
from learner.storage.checkpoint import Checkpoints, Saves, load_agent, load_params, load_policy, read_best
from learner.storage.rundir import RunDir
from tests.common.test_evaluation import Idle

CONFIG = ActorConfig(
    env=EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"}),
    agent=PluginConfig(target="common.agents.dqn:DQN", params={"units": [8]}),
)
OBS = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)


def dqn(seed: int) -> Agent:
    env = build_env(CONFIG.env)
    agent: Agent = CONFIG.agent.build(spec=spec_of(env), seed=seed, epsilon=0.0)
    return agent


def save_own_parts(directory: Path) -> None:
    """A checkpoint ``best`` of a user's parts, which do what they must and nothing beyond."""
    own = ActorConfig(
        env=EnvConfig(target="examples.own_parts:Corridor"), agent=PluginConfig(target="examples.own_parts:TabularQ")
    )
    agent = TabularQ(spec_of(Corridor()), seed=0, epsilon=0.0, device="cpu")
    Checkpoints(directory, own, "run").save("best", agent, opt_steps=1)


def test_a_saved_policy_is_loaded_without_the_configuration_and_acts_the_same(tmp_path: Path) -> None:
    agent = dqn(seed=5)
    Checkpoints(tmp_path, CONFIG, "run").save("best", agent, opt_steps=12, score=3.5)
    loaded, config, meta = load_agent(tmp_path / "best")
    np.testing.assert_array_equal(loaded.sample(OBS), agent.sample(OBS))
    assert (dqn(seed=6).sample(OBS) != agent.sample(OBS)).any(), "another policy would act otherwise"
    assert config == CONFIG
    assert meta == {"run_id": "run", "opt_steps": 12, "score": 3.5, "products": choices().describe()}


@pytest.fixture
def other_defaults() -> Iterator[None]:
    """Those of a program that computes in float64, and has another default device."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("agent", ["dqn:DQN", "iqn:IQN", "r2d2:R2D2", "ppo:PPO", "recurrent_ppo:RecurrentPPO"])
def test_a_policy_acts_the_same_in_a_program_with_other_defaults_of_torch(
    agent: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = ActorConfig(env=CONFIG.env, agent=PluginConfig(target=f"common.agents.{agent}"))
    made: Agent = config.agent.build(spec=spec_of(build_env(CONFIG.env)), seed=5, epsilon=0.0)
    Checkpoints(tmp_path, config, "run").save("best", made, opt_steps=1)

    def act() -> list[Any]:
        policy = load_policy(tmp_path / "best")
        one = [policy(obs) for obs in OBS[:20]]
        policy.begin()
        return [*one, *policy(OBS, lanes=range(100))]

    expected = act()
    request.getfixturevalue("other_defaults")
    assert act() == expected
    assert torch.get_default_dtype() == torch.float64


class Opposed(Corridor):
    """An environment that loads a saved policy while it is built, as one with an opponent does."""

    def __init__(self, path: str, in_thread: bool) -> None:
        super().__init__()
        with ThreadPoolExecutor(1) as pool:
            self.opponent: Policy = pool.submit(load_policy, path).result(60) if in_thread else load_policy(path)


@pytest.mark.parametrize("in_thread", [False, True])
def test_an_environment_of_a_saved_policy_may_load_a_policy_itself(tmp_path: Path, in_thread: bool) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    own = ActorConfig(
        env=EnvConfig(target=f"{__name__}:Opposed", params={"path": str(tmp_path / "best"), "in_thread": in_thread}),
        agent=PluginConfig(target="examples.own_parts:TabularQ"),
    )
    agent = TabularQ(spec_of(Corridor()), seed=0, epsilon=0.0, device="cpu")
    Checkpoints(tmp_path / "opposed", own, "run").save("best", agent, opt_steps=1)
    assert load_policy(tmp_path / "opposed" / "best", allow=["any"]).opt_steps == 1


def test_saving_again_replaces_the_whole_checkpoint_and_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CONFIG, "run")
    checkpoints.save("best", dqn(seed=1), opt_steps=1)
    checkpoints.save("best", dqn(seed=2), opt_steps=2)
    loaded, _, meta = load_agent(tmp_path / "best")
    assert meta["opt_steps"] == 2
    np.testing.assert_array_equal(loaded.sample(OBS), dqn(seed=2).sample(OBS))
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_what_a_killed_save_left_behind_is_swept_away_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".best.part").mkdir()
    (tmp_path / ".best.part" / "model.safetensors").write_bytes(b"half")
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1))
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CONFIG, "run")
    checkpoints.save("best", dqn(seed=1), opt_steps=1)
    (tmp_path / "best").rename(tmp_path / ".best.old")
    assert load_agent(tmp_path / "best")[2]["opt_steps"] == 1
    with pytest.raises(CheckpointError, match="cannot be saved"):
        checkpoints.save("best", SparseAgent(), opt_steps=2)
    assert load_agent(tmp_path / "best")[2]["opt_steps"] == 1
    checkpoints.save("best", dqn(seed=3), opt_steps=3)
    assert load_agent(tmp_path / "best")[2]["opt_steps"] == 3
    assert [p.name for p in tmp_path.iterdir() if p.name != ".best.part"] == ["best"]


def test_a_draft_becomes_the_checkpoint_with_what_is_known_of_it_by_then(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CONFIG, "run")
    checkpoints.save("best", dqn(seed=1), opt_steps=1, score=1.0)
    draft = checkpoints.draft(".candidate", dqn(seed=2), opt_steps=2)
    assert load_params(draft)[1]["opt_steps"] == 2
    assert load_agent(tmp_path / "best")[2]["opt_steps"] == 1
    checkpoints.keep(draft, "best", score=2.0)
    loaded, _, meta = load_agent(tmp_path / "best")
    assert meta == {"run_id": "run", "opt_steps": 2, "score": 2.0, "products": choices().describe()}
    np.testing.assert_array_equal(loaded.sample(OBS), dqn(seed=2).sample(OBS))
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_a_draft_that_is_gone_leaves_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CONFIG, "run")
    checkpoints.save("best", dqn(seed=1), opt_steps=1)
    checkpoints.discard(".candidate")
    with pytest.raises(CheckpointError, match=r"best: cannot be saved"):
        checkpoints.keep(tmp_path / ".candidate", "best", score=2.0)
    assert load_agent(tmp_path / "best")[2]["opt_steps"] == 1


class SparseAgent(Idle):
    """A sparse tensor, which safetensors refuses."""

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {"a": torch.zeros(3).to_sparse()}


def test_a_policy_is_not_taken_for_one_that_was_set_aside_while_the_whole_directory_is_away(tmp_path: Path) -> None:
    with closing(RunDir(tmp_path / "run")) as run:
        checkpoints = Checkpoints(run.path, CONFIG, "run", saves=Saves(run.require_in_place))
        assert not checkpoints.has("best")
        checkpoints.save("best", dqn(seed=1))
        run.path.rename(tmp_path / "away")
        assert checkpoints.has("best")
        (tmp_path / "away").rename(run.path)
        assert checkpoints.has("best")
        (run.path / "best").rename(run.path / "best-1")
        assert not checkpoints.has("best")


def test_a_file_system_that_does_not_answer_costs_a_policy_and_no_more(tmp_path: Path) -> None:
    with closing(RunDir(tmp_path / "run")) as run:
        run.path.rename(tmp_path / "away")
        run.path.symlink_to(run.path)  # Any look at it is an error.
        with pytest.raises(CheckpointError, match="run: cannot be looked at, so nothing is saved: Too many levels"):
            Checkpoints(run.path, CONFIG, "run", saves=Saves(run.require_in_place)).save("best", dqn(seed=1))
        run.path.unlink()
        (tmp_path / "away").rename(run.path)


def test_a_place_that_cannot_be_written_is_an_error_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be saved: .*Not a directory"):
        Checkpoints(tmp_path / "file", CONFIG, "run").save("best", dqn(seed=1))


def test_a_damaged_or_missing_checkpoint_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_agent(tmp_path / "nothing")
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1))
    with pytest.raises(CheckpointError, match=rf"\(did you mean '{tmp_path}/best'\?\)"):
        load_agent(tmp_path)
    (tmp_path / "best" / "model.safetensors").write_bytes(b"\x08\x00")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        load_agent(tmp_path / "best")


@pytest.mark.parametrize(
    ("meta", "missing"),
    [
        ({}, "config, opt_steps, run_id"),
        ([], "config, opt_steps, run_id"),
        ({"config": 3, "opt_steps": 1, "run_id": "run"}, "config"),
        ({"config": CONFIG.model_dump(mode="json"), "run_id": "run"}, "opt_steps"),
    ],
)
def test_meta_data_without_the_keys_of_every_policy_are_refused(tmp_path: Path, meta: object, missing: str) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    (tmp_path / "best" / "meta.json").write_text(json.dumps(meta))
    message = (
        rf"best: no readable checkpoint: meta\.json: expected config, opt_steps, run_id, found no valid {missing}$"
    )
    with pytest.raises(CheckpointError, match=message):
        load_agent(tmp_path / "best")


@pytest.mark.parametrize(("name", "found"), [("layers", "unknown key"), ("lr", "expected a number, found 'high'")])
def test_a_parameter_that_the_agent_does_not_take_is_named(tmp_path: Path, name: str, found: str) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    meta = json.loads((tmp_path / "best" / "meta.json").read_text())
    meta["config"]["agent"]["params"][name] = "high"
    (tmp_path / "best" / "meta.json").write_text(json.dumps(meta))
    for load in (load_agent, load_policy):
        with pytest.raises(ConfigError, match=rf"^DQN\.{name}: {found}"):
            load(tmp_path / "best")


def read_best_score(run: Path) -> float | None:
    best = read_best(run)
    return None if best is None else best.score


def test_the_best_score_is_that_of_a_whole_policy(tmp_path: Path) -> None:
    assert read_best_score(tmp_path) is None
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1, score=3.5)
    assert read_best_score(tmp_path) == 3.5
    (tmp_path / "best").rename(tmp_path / ".best.old")
    assert read_best_score(tmp_path) == 3.5, "the run was killed while it put a better policy in this place"
    (tmp_path / ".best.old").rename(tmp_path / "best")
    meta = (tmp_path / "best" / "meta.json").read_text()
    (tmp_path / "best" / "meta.json").write_text("[]")
    assert read_best_score(tmp_path) is None
    (tmp_path / "best" / "meta.json").write_text(meta)
    (tmp_path / "best" / "model.safetensors").write_bytes(b"torn")
    assert read_best_score(tmp_path) is None


def test_a_network_of_another_shape_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    meta = json.loads((tmp_path / "best" / "meta.json").read_text())
    meta["config"]["agent"]["params"]["units"] = [9]
    (tmp_path / "best" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CheckpointError, match="does not fit"):
        load_agent(tmp_path / "best")


def test_one_part_that_is_allowed_may_be_a_text_and_allows_no_other(tmp_path: Path) -> None:
    save_own_parts(tmp_path)
    load_agent(tmp_path / "best", "examples")
    with pytest.raises(PluginError, match=r"examples\.own_parts"):
        load_agent(tmp_path / "best", "company")  # It has "any" in it.
    with pytest.raises(ConfigError, match=r"allow: expected a list of your own parts, .* found None"):
        load_agent(tmp_path / "best", None)  # type: ignore[arg-type]


def test_tensors_that_share_memory_are_saved_each(tmp_path: Path) -> None:
    agent, table = dqn(seed=1), torch.arange(6.0)
    agent.save_params = lambda: {"table": table, "rest": table[2:]}  # type: ignore[method-assign]
    Checkpoints(tmp_path, CONFIG, "run").save("best", agent, opt_steps=1)
    params, _ = load_params(tmp_path / "best")
    assert {name: tensor.tolist() for name, tensor in params.items()} == {
        "table": [0, 1, 2, 3, 4, 5],
        "rest": [2, 3, 4, 5],
    }


@pytest.mark.parametrize("device", ["gpu", "auto", "cuda:99", None])
def test_a_device_on_which_no_policy_can_act_is_refused(tmp_path: Path, device: Any) -> None:
    Checkpoints(tmp_path, CONFIG, "run").save("best", dqn(seed=1), opt_steps=1)
    with pytest.raises(ConfigError, match=f"^device: expected .*, found '?{device}"):
        load_policy(tmp_path / "best", device=device)
    assert load_policy(tmp_path / "best", device=torch.device("cpu")).opt_steps == 1  # type: ignore[arg-type]
