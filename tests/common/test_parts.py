from __future__ import annotations

from common.config.run_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from common.processors import NStep
from tests.parts import CheckingAgent, CountingEnv

CONFIG = ActorConfig(
    env=EnvConfig(target="tests.parts:CountingEnv"),
    agent=PluginConfig(target="tests.parts:CheckingAgent"),
    step_processor=PluginConfig(target="common.processors:NStep", params={"n": 2}),
    envs_per_actor=3,
)


def test_every_environment_has_a_step_processor_of_its_own() -> None:
    parts = build_parts(CONFIG, seed=5, epsilon=0.5, n_envs=CONFIG.envs_per_actor)
    assert len({id(lane.env) for lane in parts.lanes}) == len({id(lane.processor) for lane in parts.lanes}) == 3
    assert {(type(lane.env), type(lane.processor)) for lane in parts.lanes} == {(CountingEnv, NStep)}
    assert isinstance(parts.agent, CheckingAgent)
    assert (parts.agent.seed, parts.agent.epsilon) == (5, 0.5)


def test_by_default_one_environment_is_built() -> None:
    parts = build_parts(CONFIG, seed=0)
    assert parts.lanes == (parts.lanes[0],)
    assert parts.env is parts.lanes[0].env
    assert [column.name for column in parts.schema.columns][-1] == "discount"
