"""What does not suit an agent is found by name before training, and nothing remains of the trial."""

from __future__ import annotations

import logging
import multiprocessing
import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.machinery.gradient_step import descend, draw
from common.agents.machinery.optimizers import adam
from common.agents.network_agent import NetworkAgent
from common.config.run_config import RunConfig, load_config
from common.data import Array, Record, Schema
from common.errors import ConfigError, PluginError, RunDirectoryError
from common.interfaces import EnvSpec, ReplayBuffer
from learner.loop.in_turns import train_in_turns
from learner.loop.learner_parts import build_learner_parts
from learner.loop.trial import try_opt
from learner.replay.view import Plan, Rows
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE, ROOT, MakeConfig
from tests.devices import needs_gpu
from tests.learner.test_poison import cartpole

SEQUENCES = {"target": "learner.views.sequences:Sequences", "params": {"length": 4}}
QUEUE = {"target": "learner.replay.queue:QueueReplay"}


class Batched(NetworkAgent):
    """Learns by a network with batch norm, which it puts into train mode or forgets to."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, forgets: bool, size: int = 8) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.nets, self.optimizer = {"value": self.net}, adam(self.net.parameters(), 1e-3)
        self.forgets, self.size = forgets, size

    def sample(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        if len(buffer) < self.size:
            return None
        self.net.train(not self.forgets)
        batch = draw(buffer, self.size, torch.device("cpu"))
        loss = self.net(batch["obs"]).mean()
        descend(loss, self.optimizer)
        return {"loss": loss.detach()}


class Replacing(Batched):
    """Has other tensors after each opt step."""

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        for parameter in self.net.parameters():
            parameter.data = parameter.data.clone()
        return record


class OnPolicy(Batched):
    """Learns from each step once."""

    draws_once = True


class Careless(Batched):
    """Raises an error that has nothing to do with its batch, after it has drawn from every generator there is."""

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        draw(buffer, self.size, torch.device("cpu"))
        random.random(), np.random.random(), torch.rand(1)
        raise ValueError("these are not my values")


def agent(name: str = "Batched", **params: Any) -> dict[str, Any]:
    return {"target": f"tests.learner.loop.test_trial:{name}", "params": {"forgets": False, **params}}


def attempt(config: RunConfig, *, quick: bool = False) -> None:
    try_opt(config, build_learner_parts(config), quick=quick)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", ["configs/cartpole.yaml", "configs/pendulum.yaml", "examples/recurrent_cartpole.yaml"])
def test_shipped_configurations_pass_the_trial(file: str, quick: bool) -> None:
    attempt(load_config(ROOT / file), quick=quick)


def test_an_agent_of_ones_own_has_a_discount_factor_for_more_steps() -> None:
    attempt(load_config(ROOT / "examples/own_agent.yaml", ["replay.view.params.n=3"]))


@pytest.mark.parametrize("quick", [False, True])
def test_a_recurrent_agent_with_transitions_is_told_the_column_and_the_view_that_has_it(quick: bool) -> None:
    config = load_config(ROOT / "examples/recurrent_cartpole.yaml", ["replay.view={}"])
    message = r"LstmDqn asks for the column 'mask', which learner\.views\.transitions:Transitions does not give; .*"
    with pytest.raises(ConfigError, match=message + r"Sequences gives it; the batch has obs float32 \[32, 2\]"):
        attempt(config, quick=quick)


def test_an_agent_of_transitions_with_sequences_is_refused_with_the_reason() -> None:
    config = load_config(ROOT / "configs/cartpole.yaml", [f"replay.view={SEQUENCES}"])
    with pytest.raises(ConfigError, match=r"DQN learns from transitions, but the view makes sequences; remove"):
        attempt(config)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("file", ["configs/masked_cartpole.yaml", "configs/masked_pendulum.yaml"])
def test_a_memory_of_one_episode_refuses_sequences_across_episodes_also_where_no_draw_shows_it(
    file: str, quick: bool
) -> None:
    short = ["agent.params.batch_size=1", "replay.view.params={length: 2, across: true}"]
    with pytest.raises(ConfigError, match=r"expected Sequences without across; found .*'across': True.* of "):
        attempt(load_config(ROOT / file, short), quick=quick)


class Careful(Transitions):
    """A view whose answer is of a wrong kind."""

    def __init__(self, schema: Schema, fault: str) -> None:
        super().__init__(schema)
        self.fault = fault

    def can_draw(self, rows: Rows, index: Array) -> Array:
        able = super().can_draw(rows, index)
        return able.astype(np.int64) if self.fault == "can_draw" else able

    def plan(self, rows: Rows, index: Array) -> Plan:
        made = super().plan(rows, index)
        return made.takes if self.fault == "plan" else made  # type: ignore[return-value]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("fault", "kind"), [("can_draw", r"an array of \d+ bool"), ("plan", r"a crossborder\.Plan")])
def test_a_view_whose_answer_is_of_another_kind_is_named(
    make_config: MakeConfig, fault: str, kind: str, quick: bool
) -> None:
    view = {"target": f"{__name__}:Careful", "params": {"fault": fault}}
    with pytest.raises(PluginError, match=rf"^replay\.view: .*:Careful\.{fault}: expected {kind}, found "):
        attempt(make_config(replay={"view": view}), quick=quick)


def test_hindsight_without_goals_is_refused() -> None:
    view = {"target": "learner.views.hindsight:Hindsight", "params": {"compute_reward": "math:cos"}}
    config = load_config(ROOT / "configs/pendulum.yaml", [f"replay.view={view}"])
    with pytest.raises(ConfigError, match=r"Hindsight needs observations with goals, obs/desired_goal and"):
        attempt(config)


@pytest.mark.parametrize("quick", [False, True])
def test_an_agent_that_learns_from_each_step_once_needs_a_queue(make_config: MakeConfig, quick: bool) -> None:
    attempt(make_config(agent=agent("OnPolicy"), replay=QUEUE), quick=quick)
    with pytest.raises(ConfigError, match=r"OnPolicy learns from each step once, so it needs .*QueueReplay"):
        attempt(make_config(agent=agent("OnPolicy")), quick=quick)
    sources = {"demonstrations": {"dataset": "nowhere", "share": 0.5}}
    with pytest.raises(ConfigError, match=r"without replay\.sources"):
        attempt(make_config(agent=agent("OnPolicy"), replay={**QUEUE, "sources": sources}), quick=quick)
    view = {"target": "learner.views.sequences:Sequences", "params": {"length": 4, "period": 2}}
    with pytest.raises(ConfigError, match=r"OnPolicy learns from each step once, so period must be the length"):
        attempt(make_config(agent=agent("OnPolicy"), replay={**QUEUE, "view": view}), quick=quick)
    attempt(make_config(agent=agent("OnPolicy"), replay={**QUEUE, "samples_per_insert": 1}), quick=quick)
    for ratio in (0.5, 2):
        with pytest.raises(ConfigError, match=rf"samples_per_insert: .* expected 1, .* or null; found {ratio:g}"):
            attempt(make_config(agent=agent("OnPolicy"), replay={**QUEUE, "samples_per_insert": ratio}), quick=quick)


@pytest.mark.parametrize("quick", [False, True])
def test_what_ppo_cannot_learn_from_is_refused_by_name(quick: bool) -> None:
    path = ROOT / "configs/ppo_cartpole.yaml"
    attempt(load_config(path), quick=quick)
    for change, message in (
        ("replay.target=learner.replay.uniform:UniformReplay", r"PPO learns from each step once, so it needs .*Queue"),
        ("replay.view={target: learner.views.transitions:Transitions}", r"replay\.view: PPO learns from rollouts"),
        (
            "agent.params.minibatches=7",
            r"minibatches: expected a number that divides the 256 steps .*\(8 x 32",
        ),
        (
            "replay.half_age=2000",
            r"replay: PPO does not weigh steps, found a column weight: remove what adds it, such as replay\.half_age",
        ),
        ("replay.samples_per_insert=4", r"samples_per_insert: .* expected 1, .*; found 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            attempt(load_config(path, [change]), quick=quick)


@pytest.mark.parametrize("quick", [False, True])
def test_an_agent_that_reports_no_errors_to_prioritised_replay_is_named(
    caplog: pytest.LogCaptureFixture, quick: bool
) -> None:
    path, bc = ROOT / "configs/cartpole.yaml", ["agent={target: BC}", "replay.view.params.n=1"]
    attempt(load_config(path, ["replay.prioritized={}"]), quick=quick)
    attempt(load_config(path, bc), quick=quick)
    assert "replay.prioritized" not in caplog.text
    attempt(load_config(path, [*bc, "replay.prioritized={}"]), quick=quick)
    assert "replay.prioritized: common.agents.bc:BC reported no TD errors" in caplog.text


@pytest.mark.parametrize("quick", [False, True])
def test_batch_norm_in_eval_mode_is_named(make_config: MakeConfig, quick: bool) -> None:
    attempt(make_config(agent=agent()), quick=quick)
    with pytest.raises(PluginError, match=r"'value' has learned while its batch norm layer '1' was in eval mode"):
        attempt(make_config(agent=agent(forgets=True)), quick=quick)


@pytest.mark.parametrize("quick", [False, True])
def test_an_agent_that_replaces_its_tensors_is_refused_since_actors_would_act_with_the_former_ones(
    make_config: MakeConfig, quick: bool
) -> None:
    with pytest.raises(
        PluginError, match=r"test_trial:Replacing: '.*': model_info\(\) gave other tensors after opt\(\)"
    ):
        attempt(make_config(agent=agent("Replacing")), quick=quick)


def test_another_error_fails_a_check_and_is_logged_before_training(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(agent=agent("Careless"))
    with pytest.raises(PluginError, match=r"ValueError: these are not my values.*the batch had obs float32 \[8, 3\]"):
        attempt(config)
    with caplog.at_level(logging.WARNING):
        attempt(config, quick=True)
    assert "these are not my values" in caplog.text


def test_training_does_not_begin_on_a_device_that_computes_nothing_after_the_trial(make_config: MakeConfig) -> None:
    """The device meta never computes; a GPU no longer does after a failed assertion. This agent stays on the CPU."""
    config = make_config(agent=agent("Careless"))
    lost = config.model_copy(update={"trainer": config.trainer.model_copy(update={"device": "meta"})})
    told = r"these are not my values.*; the device computes nothing more in this process\. Made-up observations"
    with pytest.raises(PluginError, match=told):
        try_opt(lost, build_learner_parts(config), quick=True)


class Tabular(Batched):
    """Learns by an embedding, which has no rows for most observations of the space."""

    def __init__(self, spec: EnvSpec, *, device: str, **params: Any) -> None:
        super().__init__(spec, device=device, **params)
        self.device, self.table = torch.device(device), nn.Embedding(1, 4).to(device)

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        batch = draw(buffer, self.size, self.device)
        return {"loss": self.table(batch["obs"].abs().ceil().long()).mean().detach()}


def hear_of_an_embedding(device: str) -> str:
    """What the error says of an embedding; afterwards a GPU computes nothing more in this process."""
    env = {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}}
    trainer = {"max_opts": 1, "device": device}
    values = {"name": "case", "env": env, "agent": agent("Tabular"), "trainer": trainer}
    try:
        attempt(RunConfig.model_validate(values), quick=True)
    except PluginError as error:
        return str(error)
    return ""


def test_an_embedding_that_refuses_made_up_values_on_the_cpu_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert hear_of_an_embedding("cpu") == ""
    assert "IndexError: index out of range in self); the batch had obs float32 [8, 3]" in caplog.text


@needs_gpu
def test_an_assertion_that_fails_on_a_gpu_is_told_before_training() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        told = pool.submit(hear_of_an_embedding, "cuda").result(PATIENCE)
    assert "device-side assert" in told
    assert "the device computes nothing more in this process" in told


def test_an_agent_that_wants_more_rows_is_given_more(make_config: MakeConfig) -> None:
    with pytest.raises(PluginError, match="in eval mode"):
        attempt(make_config(agent=agent(forgets=True, size=3000)))
    with pytest.raises(PluginError, match="in eval mode"):
        attempt(make_config(agent=agent(forgets=True, size=900), replay=QUEUE))


def test_a_large_batch_is_learned_from_in_a_check_alone(make_config: MakeConfig) -> None:
    config = make_config(agent=agent(forgets=True, size=1 << 18))
    attempt(config, quick=True)


def test_global_random_generators_are_left_as_they_were(make_config: MakeConfig) -> None:
    config = make_config(agent=agent("Careless"))
    parts = build_learner_parts(config)

    def draws() -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(1).item()

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    try_opt(config, parts, quick=True)
    assert draws() == expected


def test_a_run_is_refused_before_anything_is_written(tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config(agent=agent(forgets=True))
    with pytest.raises(PluginError, match="in eval mode"):
        train_in_turns(config)
    assert not list(tmp_path.rglob("config.yaml"))


def test_a_start_goes_on_without_a_trial_whose_rows_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RunDirectoryError("rows: cannot be made: No space left on device")

    monkeypatch.setattr("learner.loop.run.try_opt", refuse)
    assert train_in_turns(cartpole(tmp_path / "run", max_opts=2)).opt_steps == 2
    assert "No space left on device: this start tries no opt step on made-up rows" in caplog.text


def test_a_run_needs_no_temporary_files_and_removes_those_of_a_start_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    run_dir = train_in_turns(cartpole(tmp_path / "run", max_opts=2)).run_dir
    left = run_dir / "shared" / ".trial.part"
    assert not left.exists()
    (left / "0").mkdir(parents=True)
    (left / "0" / "cursors").write_bytes(b"of a learner that was killed")
    train_in_turns(cartpole(run_dir, max_opts=4), resume=True)
    assert not left.exists()
