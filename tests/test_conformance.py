"""Our own parts, and those of the examples, against the kit that we give to others."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import gymnasium
import pytest
from mlflow.tracking import MlflowClient

from common.agents.awac import AWAC
from common.agents.bc import BC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.config.run_config import EvaluatorConfig, PrioritizedConfig
from common.envs import Env, spec_of
from common.interfaces import Agent, StepProcessor
from common.processors import NStep, OneStep
from common.settings import validate
from common.testing import (
    check_agent,
    check_env,
    check_evaluator,
    check_recorder,
    check_replay_buffer,
    check_step_processor,
    items_of,
    play,
)
from common.testing.agent_checks import MakeAgent
from examples.own_agent import MunchausenDQN
from examples.own_parts import Corridor, TabularQ
from examples.own_processor import ScaledReward
from examples.own_replay import RecentReplay
from learner.evaluation.evaluator import DefaultEvaluator
from learner.records.csv_recorder import CsvRecorder
from learner.records.mlflow import MlflowRecorder
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from tests.parts import CountingEnv, Goals, counting_action

PROCESSORS: list[StepProcessor] = [OneStep(), NStep(1), NStep(3), NStep(20), ScaledReward()]
DUELING = {"target": "examples.own_network:Dueling", "params": {"width": 16}}
AGENTS: dict[str, MakeAgent] = {
    "plain": partial(DQN, units=(16,), batch_size=16),
    "single": partial(DQN, units=(16,), batch_size=16, double_dqn=False, tau=0.1, soft_update_interval=1),
    "own network": partial(DQN, network=DUELING, batch_size=16),
    "dueling, softmax": partial(DQN, units=(16,), batch_size=16, dueling=True, explorer={"kind": "softmax"}),
}


def cart_pole() -> Env:
    return gymnasium.make("CartPole-v1")


def test_environments_fit() -> None:
    check_env(cart_pole())
    check_env(Corridor(length=3))
    check_env(CountingEnv(), policy=counting_action)


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCar-v0", "FrozenLake-v1"])
@pytest.mark.parametrize("processor", [OneStep(), NStep()], ids=["OneStep", "NStep"])
def test_environments_of_gymnasium_with_other_spaces(name: str, processor: StepProcessor) -> None:
    env = gymnasium.make(name)
    check_env(env)
    check_step_processor(processor, env)


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: type(processor).__name__)
def test_step_processors_fit(processor: StepProcessor) -> None:
    check_step_processor(processor, cart_pole())
    check_step_processor(processor, CountingEnv(), policy=counting_action)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("processor", [OneStep(), NStep()], ids=["OneStep", "NStep"])
def test_dqn_fits(agent: str, processor: StepProcessor) -> None:
    check_agent(AGENTS[agent], cart_pole(), processor=processor)


@pytest.mark.parametrize("kind", [SAC, TD3, BC, AWAC, IQL])
@pytest.mark.parametrize("processor", [OneStep(), NStep()], ids=["OneStep", "NStep"])
def test_continuous_agents_fit(kind: type[SAC | TD3 | BC | AWAC | IQL], processor: StepProcessor) -> None:
    make = partial(kind, units=(16,), batch_size=16)
    check_agent(make, gymnasium.make("Pendulum-v1"), processor=processor)


def test_goal_environments_fit_as_the_system_flattens_them() -> None:
    check_env(Goals())
    check_step_processor(OneStep(), Goals())
    check_agent(AGENTS["plain"], Goals())


def test_behaviour_cloning_of_discrete_actions_fits() -> None:
    check_agent(partial(BC, units=(16,), batch_size=16), cart_pole())


def test_my_parts_fit() -> None:
    env = Corridor(length=10)
    check_env(env)
    check_step_processor(ScaledReward(), env)
    check_agent(TabularQ, env)


@pytest.mark.parametrize("processor", [OneStep(), NStep()], ids=["OneStep", "NStep"])
def test_a_fast_agent_of_ones_own_fits_and_is_captured(processor: StepProcessor) -> None:
    env = cart_pole()
    check_agent(MunchausenDQN, env, processor=processor)
    assert MunchausenDQN(spec_of(env), seed=0, epsilon=0.0, device="cpu").is_captured


@pytest.mark.parametrize("capacity", [1000, 100])
def test_replay_buffers_fit(tmp_path: Path, capacity: int) -> None:
    env, processor = cart_pole(), NStep()
    items = items_of(processor, play(env, 300))
    memory = ReplayMemory(tmp_path / "replay", processor.schema(spec_of(env)), capacity, create=True)
    writer, count = ReplayWriter(memory), len(items["reward"])
    for seq, start in enumerate(range(0, count, 10), start=1):
        batch = {name: column[start : start + 10] for name, column in items.items()}
        writer.append(batch, len(batch["reward"]), incarnation=1, seq=seq)
    check_replay_buffer(UniformReplay(memory, seed=0), items)
    for normalize in ("all", "batch"):
        config = validate(PrioritizedConfig, {"normalize": normalize})
        check_replay_buffer(PrioritizedReplay(memory, config, seed=0, n_opts=1000), items)
    check_replay_buffer(RecentReplay(memory, seed=0), items)


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


def test_the_mlflow_recorder_fits(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
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
