"""Our own parts, and those of the examples, against the kit that we give to others."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.agents.awac import AWAC
from common.agents.bc import BC
from common.agents.discrete_sac import DiscreteSAC
from common.agents.dqn import DQN
from common.agents.impala import IMPALA
from common.agents.iql import IQL
from common.agents.ppo import PPO
from common.agents.r2d2 import R2D2
from common.agents.recurrent_ppo import RecurrentPPO
from common.agents.recurrent_sac import RecurrentSAC
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.actor_config import EvaluatorConfig
from common.config.replay_config import PrioritizedConfig
from common.data import Column, Items, Schema
from common.envs.memory_tasks import KeepElements
from common.evaluation import DefaultEvaluator
from common.interfaces import Agent, EnvSpec, Step
from common.lanes.building import Env, spec_of
from common.parts import row_schema
from common.settings import validate
from common.spaces import columns_of
from crossborder.testing import (
    RowMemory,
    check_agent,
    check_env,
    check_evaluator,
    check_recorder,
    check_replay_buffer,
    check_row_map,
    check_step_processor,
    check_view,
    play,
    rows_of,
)
from crossborder.testing.agent_checks import MakeAgent, MakeView
from examples.own_agent import MunchausenDQN
from examples.own_parts import Corridor, TabularQ
from examples.own_processor import ScaledReward
from examples.own_replay import RecentReplay
from examples.own_view import WithReturn
from examples.recurrent_agent import LstmDqn
from learner.records.csv_recorder import CsvRecorder
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.views.rollouts import Rollouts
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.common.agents.parts import CHECKED_CRITICS, CRITICS, CROSSQ
from tests.parts import CountingEnv, Goals, counting_action

VIEW: MakeView = partial(Transitions, n=3, discount_factor=0.99)
"""Without it, agents learn from single steps."""
DUELING = {"target": "examples.own_network:Dueling", "params": {"width": 16}}
AGENTS: dict[str, MakeAgent] = {
    "plain": partial(DQN, units=(16,), batch_size=16),
    "single": partial(DQN, units=(16,), batch_size=16, double_dqn=False, tau=0.1, soft_update_interval=1),
    "own network": partial(DQN, network=DUELING, batch_size=16),
    "dueling, softmax": partial(DQN, units=(16,), batch_size=16, dueling=True, explorer={"kind": "softmax"}),
    "Munchausen": partial(DQN, units=(16,), batch_size=16, munchausen={}),
}
STEPS = 150
"""Enough for all that the check asks of our agents. ``plain`` and those of the examples play its default of 500."""


class WholeTransitions:
    """Self-contained items: border's seam."""

    def schema(self, spec: EnvSpec) -> Schema:
        obs, next_obs = (columns_of(name, spec.observation_space) for name in ("obs", "next_obs"))
        return Schema((*obs, *next_obs, Column.of("reward", np.float32)))

    def reset(self) -> None: ...

    def process(self, step: Step) -> Items:
        obs, next_obs = np.asarray(step.obs)[None], np.asarray(step.next_obs)[None]
        return {"obs": obs, "next_obs": next_obs, "reward": np.array([step.reward], np.float32)}


def cart_pole() -> Env:
    return gymnasium.make("CartPole-v1")


def test_environments_fit() -> None:
    check_env(cart_pole())
    check_env(Corridor(length=3))
    check_env(CountingEnv(), policy=counting_action)


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCar-v0", "FrozenLake-v1"])
def test_environments_of_gymnasium_with_other_spaces(name: str) -> None:
    env = gymnasium.make(name)
    check_env(env)
    check_row_map(ScaledReward(), env)


def test_a_step_processor_of_self_contained_items_fits() -> None:
    check_step_processor(WholeTransitions(), cart_pole())
    check_step_processor(WholeTransitions(), CountingEnv(), policy=counting_action)


@pytest.mark.parametrize("agent", AGENTS)
def test_dqn_fits(agent: str) -> None:
    check_agent(AGENTS[agent], cart_pole(), view=VIEW, steps=500 if agent == "plain" else STEPS)


@pytest.mark.parametrize("kind", [SAC, TD3, BC, AWAC, IQL])
def test_continuous_agents_fit(kind: type[SAC | TD3 | BC | AWAC | IQL]) -> None:
    check_agent(partial(kind, units=(16,), batch_size=16), gymnasium.make("Pendulum-v1"), view=VIEW, steps=STEPS)


def test_discrete_sac_fits() -> None:
    check_agent(partial(DiscreteSAC, units=(16,), batch_size=16), cart_pole(), view=VIEW, steps=STEPS)


@pytest.mark.parametrize("critics", CHECKED_CRITICS)
def test_sac_fits_with_each_kind_of_critics(critics: str) -> None:
    settings: dict[str, Any] = {"units": (16,), "batch_size": 16} | CRITICS[critics]
    check_agent(partial(SAC, **settings), gymnasium.make("Pendulum-v1"), steps=STEPS)


def test_td3_fits_without_targets() -> None:
    check_agent(partial(TD3, units=(16,), batch_size=16, **CROSSQ), gymnasium.make("Pendulum-v1"), steps=STEPS)


def test_goal_environments_with_dict_observations_fit() -> None:
    check_env(Goals())
    check_agent(partial(DQN, units=(16,), batch_size=16), Goals(), steps=STEPS)


def test_agents_that_draw_each_step_once_fit() -> None:
    make, view = partial(IMPALA, units=(16,), batch_size=8), partial(Sequences, length=5, period=5)
    check_agent(make, cart_pole(), view=view, steps=STEPS)
    learn_often = partial(PPO, units=(16,), batch_size=8, epochs=2)
    check_agent(learn_often, cart_pole(), view=partial(Rollouts, length=5), steps=STEPS)
    check_agent(learn_often, gymnasium.make("Pendulum-v1"), view=partial(Rollouts, length=5), steps=STEPS)


def test_behaviour_cloning_of_discrete_actions_fits() -> None:
    check_agent(partial(BC, units=(16,), batch_size=16), cart_pole(), steps=STEPS)


def test_my_parts_fit() -> None:
    env = Corridor(length=10)
    check_env(env)
    check_row_map(ScaledReward(), env)
    check_agent(TabularQ, env)
    check_view(WithReturn, env)


def test_an_agent_of_ones_own_with_a_memory_fits() -> None:
    check_agent(LstmDqn, KeepElements(cart_pole(), [0, 2]), view=partial(Sequences, length=8, burn_in=2), steps=200)


def test_agents_with_a_memory_fit() -> None:
    view = partial(Sequences, length=6, burn_in=2)
    settings: dict[str, Any] = {"units": (16,), "batch_size": 8}
    lstm, gru = ({"kind": kind, "width": 8} for kind in ("lstm", "gru"))
    check_agent(partial(R2D2, **settings, memory=gru), cart_pole(), view=view, steps=STEPS)
    check_agent(partial(RecurrentSAC, **settings, memory=lstm), gymnasium.make("Pendulum-v1"), view=view, steps=STEPS)
    check_agent(
        partial(RecurrentPPO, **settings, memory=lstm), cart_pole(), view=partial(Rollouts, length=6), steps=STEPS
    )


def test_a_fast_agent_of_ones_own_fits_and_is_captured() -> None:
    env = cart_pole()
    check_agent(MunchausenDQN, env, view=VIEW)
    assert MunchausenDQN(spec_of(env), seed=0, epsilon=0.0, device="cpu").is_captured


def every_draw(rows: RowMemory, view: Transitions) -> Items:
    """One draw at each row at which one can begin."""
    index = np.arange(rows.end)
    plan = view.plan(rows, index[view.can_draw(rows, index)])
    return {name: rows.take(column, at) for name, (column, at) in plan.takes.items()} | plan.made


@pytest.mark.parametrize("capacity", [1000, 100])
def test_replay_buffers_fit(tmp_path: Path, capacity: int) -> None:
    env = cart_pole()
    schema = row_schema(spec_of(env))
    rows = rows_of(schema, play(env, 300))
    view = Transitions(schema, n=3, discount_factor=0.99)
    memory = ReplayMemory(tmp_path / "replay", schema, capacity, create=True)
    writer, count = ReplayWriter(memory), len(rows["reward"])
    for seq, start in enumerate(range(0, count, 10), start=1):
        batch = {name: column[start : start + 10] for name, column in rows.items()}
        writer.append(batch, len(batch["reward"]), incarnation=1, seq=seq)
    items = every_draw(RowMemory(schema, rows, view), view)
    check_replay_buffer(UniformReplay(memory, view, seed=0), items, inserted=300)
    for normalize in ("all", "batch"):
        config = validate(PrioritizedConfig, {"normalize": normalize})
        check_replay_buffer(PrioritizedReplay(memory, view, config, seed=0, n_opts=1000), items, inserted=300)
    check_replay_buffer(RecentReplay(memory, view, seed=0), items, inserted=300)


def test_the_evaluator_fits() -> None:
    env = cart_pole()
    agent: Agent = DQN(spec_of(env), seed=0)
    check_evaluator(DefaultEvaluator(env, EvaluatorConfig(episodes=3)), agent)


def test_the_csv_recorder_fits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"

    def read() -> list[tuple[int, dict[str, float]]]:
        with path.open(newline="") as file:
            rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
        return [(int(row.pop("opt_steps")), {key: float(value) for key, value in row.items()}) for row in rows]

    check_recorder(CsvRecorder(path), read)


def test_the_wandb_recorder_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb  # It takes half a second, and mlflow more than one, which only these tests need.

    from learner.records.wandb import WandbRecorder

    monkeypatch.setenv("WANDB_MODE", "offline")
    check_recorder(WandbRecorder(tmp_path))
    wandb.teardown()


def test_the_mlflow_recorder_fits(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    from learner.records.mlflow import MlflowRecorder

    recorder = MlflowRecorder(tmp_path)
    client = MlflowClient((tmp_path / "mlflow").as_uri())

    def read() -> list[tuple[int, dict[str, float]]]:
        found = client.get_experiment_by_name("crossborder")
        assert found is not None
        (run,) = client.search_runs([found.experiment_id])
        rows: dict[int, dict[str, float]] = {}
        for key in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, key):
                rows.setdefault(metric.step, {})[key] = metric.value
        return list(rows.items())

    check_recorder(recorder, read)
