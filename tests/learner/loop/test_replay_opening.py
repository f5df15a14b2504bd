"""A run's replay is opened, made, or missed; its buffer is the one that the configuration names."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.data import Items, Schema, Snapshot
from common.episode_files import write_episode
from common.errors import ConfigError, PluginError, SchemaMismatchError
from common.interfaces import RowMap
from common.settings import validate
from examples.own_replay import RecentReplay
from learner.commands.sync_train import main
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.replay_opening import build_buffer, build_view, place_on_device
from learner.loop.resident import ResidentReplay
from learner.loop.server import train_async
from learner.loop.trainer_metrics import count_draws
from learner.replay.memory import ReplayMemory
from learner.replay.mixed_replay import MixedReplay
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.queue import QueueReplay
from learner.replay.uniform import UniformReplay
from learner.views.items import SelfContained
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS, cartpole
from tests.learner.replay.memories import SCHEMA as ITEMS
from tests.learner.views.lanes import SCHEMA, Lanes

RECENT: dict[str, Any] = {"target": "examples.own_replay:RecentReplay", "params": {"share": 0.5}}


class NoBuffer:
    """Takes what a replay buffer is given, but is none."""

    def __init__(self, memory: object, view: object, seed: int) -> None:
        self.seed = seed


class NoView:
    """Stands where a view is expected."""


class Taught(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A teacher takes the first steps of every episode."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        if self._step > 3:
            return super().step(action)
        obs, reward, terminated, truncated, info = super().step(self._step % 2)
        return obs, reward, terminated, truncated, {**info, "intervene_action": self._step % 2}


class WithoutInterventions(RowMap):
    """Leaves out who acted."""

    def schema(self, rows: Schema) -> Schema:
        return rows.without(rows.by_name["intervened"])

    def map(self, rows: Items) -> Items:
        return {name: column for name, column in rows.items() if name != "intervened"}


def untimed_rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if "sec" not in k} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("replay", "kind"), [({}, UniformReplay), ({"prioritized": {}}, PrioritizedReplay), (RECENT, RecentReplay)]
)
def test_the_buffer_is_uniform_prioritised_or_the_users_own(
    tmp_path: Path, make_config: MakeConfig, replay: dict[str, Any], kind: type
) -> None:
    assert type(build_buffer(Lanes(tmp_path).memory, make_config(replay=replay))) is kind


def test_a_queue_is_named_like_a_buffer_of_ones_own(tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config(replay={"target": "learner.replay.queue:QueueReplay"})
    config.check()
    assert isinstance(build_buffer(Lanes(tmp_path).memory, config), QueueReplay)


def test_the_view_gets_the_agents_discount_factor_and_the_stack_of_the_environment(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(6)
    agent = {"target": "common.agents.dqn:DQN", "params": {"discount_factor": 0.5}}
    config = make_config(agent=agent, env={"frame_stack": 2}, replay={"view": {"params": {"n": 2}}})
    batch = build_buffer(lanes.memory, config).batch(8)
    assert batch["obs/at"].shape == (8, 2)
    assert set(batch["discount"].tolist()) == {0.25, 0.5}


def test_self_contained_items_need_no_view(tmp_path: Path, make_config: MakeConfig) -> None:
    assert isinstance(build_view(ITEMS, make_config()), SelfContained)
    with pytest.raises(ConfigError, match=r"self-contained items need the view SelfContained"):
        build_view(ITEMS, make_config(replay={"view": {"params": {"n": 1}}}))


def test_rollouts_that_are_longer_than_the_replay_are_refused(make_config: MakeConfig) -> None:
    replay = {"capacity": 50, "view": {"target": "learner.views.rollouts:Rollouts", "params": {"length": 50}}}
    config = make_config(replay=replay, push={"n_buffer": 4}, trainer={"warmup_period": 1})
    with pytest.raises(ConfigError, match=r"replay\.capacity: expected at least 51 rows, for a draw .* found 50"):
        build_view(SCHEMA, config)


def test_steps_that_are_further_apart_than_the_replay_is_long_are_refused(make_config: MakeConfig) -> None:
    agent = {"target": "common.agents.dqn:DQN"}
    config = make_config(agent=agent, replay={"capacity": 50, "view": {"params": {"n": 51}}})
    with pytest.raises(ConfigError, match=r"replay\.capacity: expected at least 51 rows, for a draw .* found 50"):
        build_view(SCHEMA, config)


def test_a_part_that_is_not_a_view_is_refused_by_name(make_config: MakeConfig) -> None:
    config = make_config(replay={"view": {"target": "tests.learner.loop.test_replay_opening:NoView"}})
    with pytest.raises(PluginError, match=r"replay\.view\.target: expected a crossborder\.View, found NoView"):
        build_view(SCHEMA, config)


@pytest.mark.parametrize("resident", [False, True])
def test_shares_of_a_batch_come_from_sources(tmp_path: Path, make_config: MakeConfig, resident: bool) -> None:
    own, demos = Lanes(tmp_path / "own"), Lanes(tmp_path / "demos")
    own.play(20)
    demos.play(30)
    sources = {"demos": {"dataset": "unused here", "share": 0.25}}
    config = make_config(replay={"sources": sources, "resident": resident})
    replay = place_on_device(build_buffer(own.memory, config, {"demos": demos.memory}), config)
    assert type(replay) is (ResidentReplay if resident else MixedReplay)
    batch = replay.tensors(8) if resident else replay.batch(8)
    assert batch is not None
    assert batch["source"].tolist() == [0] * 6 + [1] * 2


def test_shares_that_leave_nothing_to_the_actors_are_refused(make_config: MakeConfig) -> None:
    sources = {name: {"dataset": name, "share": 0.5} for name in ("a", "b")}
    with pytest.raises(ConfigError, match="sources: expected shares of less than 1 together, found 1"):
        make_config(replay={"sources": sources})


def test_actors_fill_a_replay_buffer_of_ones_own_and_the_agent_learns_from_it(make_config: MakeConfig) -> None:
    config = make_config(replay={**RECENT, "samples_per_insert": 4}, trainer={"max_opts": 50})
    assert train_async(config, 1).opt_steps == 50  # The agent has checked every row.


THREE_STEPS: dict[str, Any] = {"view": {"params": {"n": 3}}}
DRAWN = {
    "a buffer of ones own": RECENT,
    "a buffer of ones own on the device": {**RECENT, "resident": True},
    "three steps": THREE_STEPS,
    "three steps by priority": {**THREE_STEPS, "prioritized": {"beta_0": 1.0}},
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path, name: str) -> None:
    def train(name_of_run: str, max_opts: int) -> Path:
        values = cartpole(tmp_path / name_of_run, 3, **DRAWN[name]).model_dump(mode="json")
        values["trainer"]["max_opts"] = max_opts
        return train_in_turns(validate(RunConfig, values), resume=True).run_dir

    alone = untimed_rows(train("alone", 100))
    train("resumed", 50)
    assert untimed_rows(train("resumed", 100)) == alone


def test_bad_items_are_not_drawn_from_a_buffer_of_ones_own(tmp_path: Path) -> None:
    with Trainer(cartpole(tmp_path / "run", 3, **RECENT)) as trainer:
        trainer.train()
        buffer, memory = trainer.run.buffer, trainer.run.memory
        bad = np.arange(memory.first(), memory.committed)[::5]
        memory.exclude(bad)
        buffer.batch(500)
        assert not np.isin(buffer.last_drawn, bad).any()
        assert not np.isin(buffer.last_drawn + 1, bad).any(), "the next observations"


def test_a_part_that_is_not_a_replay_buffer_is_refused_by_name(make_config: MakeConfig) -> None:
    target = "tests.learner.loop.test_replay_opening:NoBuffer"
    message = r"replay\.target: expected a crossborder\.SharedReplay, found NoBuffer"
    with pytest.raises(PluginError, match=message), Trainer(make_config(agent=IN_TURNS, replay={"target": target})):
        pass


def test_the_check_finds_a_wrong_parameter_of_a_buffer_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "examples/own_replay.yaml", "--check"]
    assert main(words) == 0
    assert main([*words, "--set", "replay.params.shere=0.1"]) == ConfigError.exit_code
    assert "replay.params.shere: unknown parameter (did you mean 'share'?)" in capsys.readouterr().err


def test_the_check_compares_the_columns_of_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = {"action": np.zeros(5, np.int64), "reward": np.zeros(5)}
    for width in (4, 3):
        write_episode(tmp_path / f"{width}.npz", {"obs": np.zeros((6, width)), **episode})
    words = ["--config", "configs/cartpole.yaml", "--check", "--set"]
    source = "replay.sources={{demos: {{dataset: '{}', share: 0.5}}}}"
    assert main([*words, source.format(tmp_path / "4.npz")]) == 0
    assert main([*words, source.format(tmp_path / "3.npz")]) == SchemaMismatchError.exit_code
    assert "3.npz: array 'obs': the run expects float32 [4] for each step, found float64 [3]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({**RECENT, "prioritized": {}}, "target and prioritized both name a replay buffer: leave out one of them"),
        ({"params": {"share": 0.5}}, "params belong to target, which is null"),
    ],
)
def test_settings_of_two_buffers_or_of_none_are_refused(
    make_config: MakeConfig, replay: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(replay=replay)


@pytest.mark.parametrize(
    "changed",
    [
        {"replay": {"view": {"params": {"n": 3}}}},
        {"replay": {"half_age": 2}},
        {"replay": {"view": {"target": "learner.views.sequences:Sequences", "params": {"length": 2}}}},
        {"agent": {"target": "common.agents.dqn:DQN", "params": {"discount_factor": 0.5}}},
        {"env": {"params": {"reward": 2.0}}},
        {},
    ],
)
def test_batches_that_were_gathered_before_a_resume_are_drawn_only_by_the_same_view(
    tmp_path: Path, make_config: MakeConfig, changed: dict[str, Any]
) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)
    agent = {"target": "common.agents.dqn:DQN"}
    before = build_buffer(lanes.memory, make_config(agent=agent))
    for _ in range(3):
        before.batch(4)
    state = before.state()
    values = {name: value for name, value in state.values.items() if name != "ahead"}
    config = make_config(**{"agent": agent, **changed})
    resumed, gathering_anew = build_buffer(lanes.memory, config), build_buffer(lanes.memory, config)
    resumed.restore(state)
    gathering_anew.restore(Snapshot(values))
    found, anew = resumed.batch(4), gathering_anew.batch(4)
    is_same = found.keys() == anew.keys() and all(np.array_equal(found[name], anew[name]) for name in anew)
    assert is_same == bool(changed)


def test_a_missing_replay_begins_empty_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = cartpole(tmp_path / "run", 3)
    train_in_turns(config)
    stored = ReplayMemory.open_saved(tmp_path / "run" / "shared" / "replay").steps
    (tmp_path / "run" / "shared" / "replay").rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING), Trainer(config, resume=True) as trainer:
        assert (trainer.run.memory.drawable, trainer.run.memory.steps_began) == (0, stored)
    assert "the replay is missing (shared/replay)" in caplog.text


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("prioritized", [None, {}])
def test_draws_are_weighed_by_their_age(
    tmp_path: Path, make_config: MakeConfig, resident: bool, prioritized: dict[str, float] | None
) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(40)
    replay = {"half_age": 2, "resident": resident, "prioritized": prioritized}
    config = make_config(replay=replay)
    buffer = place_on_device(build_buffer(lanes.memory, config), config)
    batch = buffer.tensors(64) if resident else buffer.batch(64)
    assert batch is not None
    found = {
        (int(at) // 2, round(float(weight), 4)) for at, weight in zip(batch["obs/at"], batch["weight"], strict=True)
    }
    assert found == {(version, round(1 / (1 + (20 - version) / 2), 4)) for version, _ in found}
    assert len(found) > 5


# Sources with interventions.

TAUGHT: dict[str, Any] = {
    "target": "gymnasium:make",
    "params": {"id": "CartPole-v1"},
    "wrappers": [{"target": f"{__name__}:Taught"}],
    "intervention": "intervene_action",
}


def taught(run_dir: Path, max_opts: int = 100, **replay: Any) -> RunConfig:
    """A short run in turns in which a teacher intervenes."""
    values = cartpole(run_dir, 3).model_dump(mode="json")
    values["trainer"] |= {"max_opts": max_opts, "eval_interval": 0}
    values["push"]["n_buffer"] = 10
    values["replay"] |= {"sources": {"people": {"interventions": True, "share": 0.5}}, **replay}
    return validate(RunConfig, values | {"env": TAUGHT})


@pytest.mark.parametrize("replay", [{}, {"prioritized": {"beta_0": 1.0}}], ids=str)
def test_a_resumed_run_draws_the_interventions_that_it_would_have_drawn(tmp_path: Path, replay: dict[str, Any]) -> None:
    def train(name: str, max_opts: int) -> Path:
        return train_in_turns(taught(tmp_path / name, max_opts, capacity=150, **replay), resume=True).run_dir

    alone = untimed_rows(train("alone", 100))
    train("resumed", 50)
    assert untimed_rows(train("resumed", 100)) == alone


def test_the_shares_of_a_run_are_drawn_from_its_dataset_and_its_interventions(tmp_path: Path) -> None:
    train_in_turns(taught(tmp_path / "demos", 20))
    sources = {"people": {"dataset": str(tmp_path / "demos"), "interventions": True, "share": 0.5}}
    with Trainer(taught(tmp_path / "run", sources=sources)) as trainer:
        trainer.train()
        batch = trainer.run.buffer.batch(256)
        own, dataset, interventions = trainer.run.buffer.parts  # type: ignore[union-attr]
        told = count_draws(trainer.run)
    people = dataset.sampled + interventions.sampled
    assert told == {"actors": own.sampled, "people": people}
    assert np.bincount(batch["source"]).tolist() == [128, 128]
    assert dataset.sampled > interventions.sampled > 0
    assert 0 < float(untimed_rows(tmp_path / "run")[-1]["train_intervened"]) < 0.5
    assert own.sampled == people


def test_interventions_need_the_column_that_a_step_processor_may_leave_out(tmp_path: Path) -> None:
    values = taught(tmp_path / "run").model_dump(mode="json")
    values["step_processor"] = {"target": f"{__name__}:WithoutInterventions"}
    message = r"sources\.people\.interventions: expected rows with the column 'intervened', found obs, .*step processor"
    with pytest.raises(ConfigError, match=message), Trainer(validate(RunConfig, values)):
        pass


def test_interventions_need_the_key_by_which_an_environment_tells_of_them(make_config: MakeConfig) -> None:
    sources = {"people": {"interventions": True, "share": 0.5}}
    with pytest.raises(ConfigError, match=r"replay\.sources\.people\.interventions needs env\.intervention"):
        make_config(replay={"sources": sources})


def test_a_source_without_any_rows_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="expected a dataset, interventions: true, or both, found neither"):
        make_config(replay={"sources": {"people": {"share": 0.5}}})
