from __future__ import annotations

from typing import Any

import pytest

from common.errors import ConfigError, PluginError
from common.plugins.part_config import AgentArguments, EnvConfig, PluginConfig
from common.settings import validate

GIVEN = AgentArguments.__required_keys__
NONE = frozenset[str]()


@pytest.mark.parametrize(
    ("target", "params", "given", "message"),
    [
        ("common.agents.dqn:DQN", {"lr_": 1}, NONE, r"agent\.params\.lr_: unknown key \(did you mean 'lr'\?\)"),
        ("common.agents.dqn:DQN", {"tau": 2.0}, NONE, r"agent\.params\.tau: .*less than or equal to 1, found 2\.0"),
        (
            "common.agents.dqn:DQN",
            {"explorer": {"strat": 1}},
            NONE,
            r"agent\.params\.explorer\.strat: unknown key \(did",
        ),
        (
            "common.agents.dqn:DQN",
            {"explorer": {"kind": "softmax", "start": 1}},
            NONE,
            r"agent\.params\.explorer\.start: unknown key \(known: kind, temperature\)",
        ),
        (
            "common.agents.dqn:DQN",
            {"explorer": {"kind": "boltzmann"}},
            NONE,
            r"agent\.params\.explorer\.kind: expected one of 'epsilon_greedy', 'softmax', .*, found 'boltzmann'$",
        ),
        (
            "tests.parts:CheckingAgent",
            {"batch": 1},
            GIVEN,
            r"batch: .*mean 'batch_size'",
        ),
        ("tests.parts:CheckingAgent", {"seed": 1}, GIVEN, r"seed: unknown parameter"),
        ("gymnasium:make", {"id": "CartPole-v1", "seed": 1}, GIVEN, r"seed: unknown parameter"),
        ("tests.parts:DyingEnv", {}, NONE, r"agent\.params\.marker: expected a value, found none"),
        ("gymnasium:make", {}, NONE, r"agent\.params\.id: expected a value, found none"),
        ("learner.views.sequences:Sequences", {"length": "4"}, NONE, r"params\.length: expected int, found '4'"),
        ("learner.views.sequences:Sequences", {"length": 4, "across": 1}, NONE, r"across: expected bool, found 1"),
        ("gymnasium:make", {"id": "CartPole-v1", "max_episode_steps": 0.5}, NONE, r"expected int \| None, found 0\.5"),
        ("tests.parts:CountingEnv", {"a": 1}, NONE, r"agent\.params\.a: unknown parameter \(known: none\)"),
    ],
)
def test_parameters_are_checked_by_config_or_by_signature(
    target: str, params: dict[str, Any], given: frozenset[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PluginConfig(target=target, params=params).check("agent", given)


@pytest.mark.parametrize(
    ("target", "params", "given"),
    [
        ("common.agents.dqn:DQN", {"lr": 0.1}, GIVEN),
        ("tests.parts:CheckingAgent", {"batch_size": 1}, GIVEN),
        ("tests.parts:DyingEnv", {"marker": "m"}, NONE),
        ("gymnasium:make", {"id": "CartPole-v1", "max_episode_steps": None, "anything": 1}, NONE),
        ("common.envs.wrappers:discounted_return", {"discount_factor": 1}, frozenset({"env"})),
        ("types:SimpleNamespace", {"anything": 1}, NONE),
    ],
)
def test_good_parameters_are_accepted(target: str, params: dict[str, Any], given: frozenset[str]) -> None:
    config = PluginConfig(target=target, params=params)
    config.check("agent", given)
    with pytest.raises(PluginError):
        config.model_copy(update={"target": target + "x"}).check("agent", given)


def test_a_part_is_built_with_its_parameters_and_the_systems_arguments() -> None:
    config = PluginConfig(target="builtins:dict", params={"a": 1})
    assert config.build(b=2) == {"a": 1, "b": 2}


def test_a_part_that_does_not_take_the_systems_arguments_is_refused() -> None:
    with pytest.raises(PluginError, match=r"agent: tests\.parts:CountingEnv must take seed, spec, but does not"):
        PluginConfig(target="tests.parts:CountingEnv").check("agent", frozenset({"spec", "seed"}))


@pytest.mark.parametrize("target", ["common.interfaces:RowMap", "learner.replay.view:View"])
def test_a_part_that_lacks_a_method_of_its_interface_is_refused(target: str) -> None:
    with pytest.raises(PluginError, match=rf"^it: {target} must have (map, schema|can_draw, plan)$"):
        PluginConfig(target=target).check("it", frozenset())


def test_parameters_for_evaluation_replace_those_of_training() -> None:
    env = EnvConfig(target="a:b", params={"x": 1, "y": 2}, eval_params={"y": 3, "z": 4})
    assert env.for_evaluation() == EnvConfig(target="a:b", params={"x": 1, "y": 3, "z": 4})
    assert env.params == {"x": 1, "y": 2}


def test_without_parameters_for_evaluation_its_environment_is_that_of_training() -> None:
    env = EnvConfig(target="a:b", params={"x": 1})
    assert env.for_evaluation() == EnvConfig(target="a:b", params={"x": 1})


def test_a_wrapper_of_single_actors_is_built_by_them_alone_and_by_evaluations() -> None:
    everywhere, beside_a_person = {"target": "a:b"}, {"target": "a:c", "actors": [0, 2]}
    env = validate(EnvConfig, {"target": "a:d", "wrappers": [everywhere, beside_a_person]})
    own = {actor_id: [each.target for each in env.for_actor(actor_id).wrappers] for actor_id in (0, 1, 2)}
    assert own == {0: ["a:b", "a:c"], 1: ["a:b"], 2: ["a:b", "a:c"]}
    assert env.for_evaluation().wrappers == env.wrappers


@pytest.mark.parametrize("kind", ["float32[0]", "float32[99999999999999999999]", "int8[1024, 1025]"])
def test_a_column_of_info_has_at_least_one_value_and_not_too_many(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"env\.info\.x: expected a type of 1 to 1048576 values, found '"):
        validate(EnvConfig, {"target": "CartPole-v1", "info": {"x": kind}})


def test_a_column_of_info_has_a_name() -> None:
    with pytest.raises(ConfigError, match=r"env\.info: expected a key of info, found ''"):
        validate(EnvConfig, {"target": "CartPole-v1", "info": {"": "bool"}})


def test_an_age_of_models_is_limited_only_at_a_rate() -> None:
    with pytest.raises(ConfigError, match=r"env\.max_model_age_seconds needs env\.rate_hz"):
        validate(EnvConfig, {"target": "tests.parts:CountingEnv", "max_model_age_seconds": 5})


def test_evaluations_keep_the_rate() -> None:
    assert EnvConfig(target="tests.parts:CountingEnv", rate_hz=20.0).for_evaluation().rate_hz == 20.0
