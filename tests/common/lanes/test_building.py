from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.wrappers import TimeLimit

from common.errors import ConfigError, FaultError, PluginError
from common.interfaces import EnvSpec
from common.lanes.building import (
    build_env,
    build_lanes,
    lanes_of,
    picks_of,
    read_spaces,
    read_spec,
    spec_of,
    stacked_spec,
)
from common.lanes.plain_lanes import PlainLanes
from common.lanes.vector_lanes import VectorLanes
from common.plugins.part_config import EnvConfig, WrapperConfig
from tests.conftest import ROOT
from tests.parts import CountingEnv, Goals


def named(target: str = "gymnasium:make", params: dict[str, Any] | None = None, **more: Any) -> EnvConfig:
    return EnvConfig(target=target, params=params or {}, **more)


def test_the_environment_that_the_configuration_names_is_built() -> None:
    env = build_env(named(params={"id": "CartPole-v1", "max_episode_steps": 5}))
    assert (env.spec.id, env.spec.max_episode_steps) == ("CartPole-v1", 5)
    env.close()


@pytest.mark.parametrize("name", ["CartPoule-v1", "CartPole-v77"])
def test_an_id_that_gymnasium_does_not_know_is_a_plugin_error_with_its_reason(name: str) -> None:
    with pytest.raises(PluginError, match=rf"env gymnasium:make .*{name}.*doesn't exist"):
        build_env(named(params={"id": name}))


def test_something_that_is_no_environment_is_refused() -> None:
    with pytest.raises(PluginError, match=r"expected a gymnasium\.Env or VectorEnv, found dict"):
        build_env(named("builtins:dict"))


@pytest.mark.parametrize("params", [{}, {"id": "CartPole-v1", "nonsense": 3}])
def test_parameters_an_environment_does_not_take_are_a_plugin_error(params: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match="gymnasium:make"):
        build_env(named(params=params))


def seeded_env(seed: int | None = None, sign: int = 1) -> CountingEnv:
    env = CountingEnv()
    env.metadata = {"seed": seed, "sign": sign}
    return env


@pytest.mark.parametrize(("params", "seeds"), [({}, [5, 6, 7]), ({"seed": 3}, [3, 3, 3])])
def test_a_factory_with_a_seed_gets_one_for_each_environment_unless_it_is_configured(
    params: dict[str, Any], seeds: list[int]
) -> None:
    lanes = build_lanes(named("tests.common.lanes.test_building:seeded_env", params), 3, seed=5)
    assert isinstance(lanes, PlainLanes)
    assert [env.metadata["seed"] for env in lanes.envs] == seeds


# Wrappers.


def test_wrappers_are_put_around_the_environment_the_first_one_innermost() -> None:
    wrappers = (
        WrapperConfig(target="gymnasium.wrappers:TimeLimit", params={"max_episode_steps": 3}),
        WrapperConfig(target="gymnasium.wrappers:TimeAwareObservation"),
    )
    env = build_env(named("tests.parts:CountingEnv", wrappers=wrappers))
    assert type(env).__name__ == "TimeAwareObservation"
    assert isinstance(env.env, TimeLimit)
    assert env.observation_space.shape == (4,)


def test_wrappers_of_vector_environments_work_too() -> None:
    wrappers = (
        WrapperConfig(target="gymnasium.wrappers.vector:RescaleAction", params={"min_action": 0, "max_action": 1}),
    )
    params = {"id": "Pendulum-v1", "num_envs": 2, "vectorization_mode": "sync"}
    lanes = build_lanes(named("gymnasium:make_vec", params, wrappers=wrappers))
    assert isinstance(lanes, VectorLanes)
    assert lanes.spec.action_space == gymnasium.spaces.Box(0, 1, (1,), np.float32)
    lanes.close()


def test_parameters_that_a_wrapper_does_not_take_are_found_when_the_configuration_is_checked() -> None:
    config = named(
        params={"id": "CartPole-v1"},
        wrappers=(WrapperConfig(target="gymnasium.wrappers:TimeLimit", params={"steps": 3}),),
    )
    with pytest.raises(ConfigError, match=r"env\.wrappers\.0\.params\.steps: unknown parameter"):
        config.check("env", frozenset())
    with pytest.raises(PluginError, match="env gymnasium:make"):
        build_env(config)


def test_an_evaluation_has_the_same_wrappers_and_frames_with_its_own_parameters() -> None:
    config = named(params={"id": "CartPole-v1"}, eval_params={"max_episode_steps": 9}, frame_stack=2)
    found = config.for_evaluation()
    assert found == named(params={"id": "CartPole-v1", "max_episode_steps": 9}, frame_stack=2)


# Spaces.


def test_float64_becomes_float32() -> None:
    space = spec_of(Goals()).observation_space
    assert {leaf.dtype for leaf in space.spaces.values()} == {np.dtype(np.float32)}  # type: ignore[attr-defined]
    observed = build_lanes(named("tests.parts:Goals")).observe()
    assert isinstance(observed, dict)
    assert {leaf.dtype for leaf in observed.values()} == {np.dtype(np.float32)}


def test_all_other_spaces_stay_as_they_are() -> None:
    spec = spec_of(CountingEnv())
    assert spec.observation_space is CountingEnv.observation_space
    assert spec.action_space is CountingEnv.action_space


def test_a_vector_environment_has_the_spaces_of_one_lane() -> None:
    env = gymnasium.make_vec("Pendulum-v1", num_envs=3, vectorization_mode="sync")
    assert spec_of(env) == EnvSpec(env.single_observation_space, env.single_action_space)
    assert lanes_of(env).n == 3
    env.close()


def test_agents_see_stacks_of_frames() -> None:
    spec = spec_of(Goals())
    assert stacked_spec(spec, 1) is spec
    stacked = stacked_spec(spec, 3)
    assert stacked.observation_space["observation"].shape == (3, 1)  # type: ignore[index]
    assert stacked.action_space is spec.action_space


def test_spaces_are_read_from_the_configuration_without_the_environment() -> None:
    spaces = {
        "observation": {"type": "Box", "low": -1, "high": 1, "shape": [3], "dtype": "float64"},
        "action": {"type": "Discrete", "n": 4},
    }
    spec = read_spec(named("no_such_robot:Arm", spaces=spaces))
    assert spec.observation_space == gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    assert spec.action_space == gymnasium.spaces.Discrete(4)


def test_without_them_the_environment_is_built_and_closed() -> None:
    closed: list[str] = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append("closed")

    Closing.__module__, Closing.__qualname__ = __name__, "Closing"
    sys.modules[__name__].Closing = Closing  # type: ignore[attr-defined]
    assert read_spec(named(f"{__name__}:Closing")) == spec_of(CountingEnv())
    assert closed == ["closed"]


def test_picked_values_have_columns_of_their_types() -> None:
    config = named("x:y", info={"is_success": "bool", "force": "float32[2, 3]"}, intervention="human")
    picks = picks_of(config)
    assert [str(column) for column in picks.info.values()] == ["info/is_success |b1 []", "info/force <f4 [2, 3]"]
    assert picks.intervention == "human"


@pytest.mark.parametrize("text", ["text", "float33", "float32[]", "float32[a]", "float32 3", "float32[3", ""])
def test_a_type_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"info\.force: expected a type such as bool, float32 or float32\[3\]"):
        named("x:y", info={"force": text})


# What is not installed.


@pytest.mark.parametrize(
    ("id", "module", "extra"),
    [("LunarLander-v3", "Box2D", "box2d"), ("HalfCheetah-v5", "mujoco", "mujoco")],
)
def test_a_package_that_an_environment_lacks_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, id: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, name)  # So that they are imported again.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError, match=rf"is not installed.*; here: pip install 'crossborder\[{extra}\]'"):
        build_env(named(params={"id": id}))


SMOKE = """
import sys
from common.plugins.part_config import EnvConfig
from common.lanes.building import build_lanes

for id in sys.argv[1:]:
    lanes = build_lanes(EnvConfig(target="gymnasium:make", params={"id": id}))
    lanes.reset(0)
    lanes.spec.action_space.seed(0)
    for obs in (lanes.observe(), lanes.step(lanes.spec.action_space.sample()[None]).obs):
        assert obs.dtype == "float32" and lanes.spec.observation_space.contains(obs[0]), (id, obs)
    lanes.close()
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="box2d-py has no wheels")
def test_environments_of_box2d_and_mujoco_are_built_and_stepped(tmp_path: Path) -> None:
    """In a process of its own: Box2D's extension does not survive being imported where warnings are errors."""
    ids = ("LunarLander-v3", "HalfCheetah-v5", "Hopper-v5")
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, *ids],
        cwd=tmp_path,  # MuJoCo writes its log there.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Breaking(CountingEnv):
    """Fails at its third construction, and at each close once it has noted it."""

    built, closed = 0, 0

    def __init__(self, fails_at: int = 3) -> None:
        super().__init__()
        Breaking.built += 1
        if Breaking.built == fails_at:
            raise OSError("no third robot")

    def close(self) -> None:
        Breaking.closed += 1
        raise RuntimeError("the device is gone")


@pytest.fixture
def none_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Breaking, "built", 0)
    monkeypatch.setattr(Breaking, "closed", 0)


BREAKING = f"{__name__}:Breaking"


@pytest.mark.usefixtures("none_built")
def test_environments_are_closed_when_a_later_one_cannot_be_built() -> None:
    with pytest.raises(FaultError, match="no third robot"):
        build_lanes(named(BREAKING), 3)
    assert (Breaking.built, Breaking.closed) == (3, 2)


@pytest.mark.usefixtures("none_built")
def test_a_fault_in_the_code_of_an_environment_is_one_line_with_the_exception_as_its_cause() -> None:
    with pytest.raises(FaultError) as found:
        build_env(named(BREAKING, {"fails_at": 1}))
    assert str(found.value) == f"env {BREAKING} {{'fails_at': 1}}: OSError: no third robot"
    assert found.value.exit_code == 1  # An actor is started again after it: the robot may come back.
    assert isinstance(found.value.__cause__, OSError)


@pytest.mark.parametrize("params", [{"max_episode_steps": 0}, {"max_episode_steps": -7}])
def test_what_gymnasium_itself_refuses_is_no_fault_of_a_users_code(
    params: dict[str, Any],
) -> None:
    with pytest.raises(PluginError, match=r"^env gymnasium:make \{.*\}: .*max_episode_steps") as found:
        build_env(named(params={"id": "CartPole-v1", **params}))
    assert not isinstance(found.value, FaultError)


@pytest.mark.parametrize(("name", "found"), [("id", 5), ("render_mode", 1080), ("render_mode", []), ("id", None)])
def test_a_parameter_in_which_gymnasium_would_stumble_is_named(name: str, found: object) -> None:
    params = {"id": "CartPole-v1", name: found}
    with pytest.raises(ConfigError, match=rf"^env\.params\.{name}: expected a text, found {re.escape(repr(found))}$"):
        named(params=params).check("env", frozenset())


@pytest.mark.usefixtures("none_built")
def test_an_environment_whose_wrapper_cannot_be_built_is_closed() -> None:
    with pytest.raises(PluginError, match="max_episode_steps"):
        build_env(named(BREAKING, wrappers=(WrapperConfig(target="gymnasium.wrappers:TimeLimit"),)))
    assert (Breaking.built, Breaking.closed) == (1, 1)


@pytest.mark.usefixtures("none_built")
def test_all_environments_are_closed_though_one_raises_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    build_lanes(named(BREAKING), 2).close()
    assert Breaking.closed == 2
    assert [record.getMessage() for record in caplog.records] == ["an environment could not be closed"] * 2


@pytest.mark.usefixtures("none_built")
def test_a_vector_environment_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    lanes = build_lanes(named("gymnasium.vector:SyncVectorEnv", {"env_fns": [Breaking]}))
    lanes.close()
    assert "an environment could not be closed" in caplog.text


ACTION = {"type": "Discrete", "n": 2}
CAMERA = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
EVERY_TYPE = """
observation:
  type: Dict
  spaces:
    camera: {type: Box, low: 0, high: 255, shape: [3, 64, 64], dtype: uint8}
    state: {type: Box, low: -.inf, high: .inf, shape: [7]}
    bounds: {type: Box, low: [0, -1], high: [1, 2]}
    pair: {type: Tuple, spaces: [{type: Discrete, n: 3, start: -1}, {type: MultiBinary, n: 4}]}
action: {type: MultiDiscrete, nvec: [2, 5]}
"""


def test_every_type_of_space_can_be_described() -> None:
    spec = read_spaces(yaml.safe_load(EVERY_TYPE))
    spaces = gymnasium.spaces
    assert spec.observation_space == spaces.Dict(
        {
            "camera": CAMERA,
            "state": spaces.Box(-np.inf, np.inf, (7,)),
            "bounds": spaces.Box(np.array([0, -1], np.float32), np.array([1, 2], np.float32)),
            "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(4)]),
        }
    )
    assert spec.action_space == spaces.MultiDiscrete([2, 5])


def both_spaces() -> tuple[Any, Any]:
    return CAMERA, CountingEnv.action_space


def no_spaces() -> tuple[Any, Any]:
    return CAMERA, 3


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("both_spaces", EnvSpec(*both_spaces())),
        ("CountingEnv", EnvSpec(CountingEnv.observation_space, CountingEnv.action_space)),
    ],
)
def test_a_factory_gives_both_spaces(factory: str, expected: EnvSpec) -> None:
    assert read_spaces(f"{__name__}:{factory}") == expected


@pytest.mark.parametrize("factory", ["no_spaces", "dict"])
def test_a_factory_that_gives_something_else_is_refused(factory: str) -> None:
    where = "builtins" if factory == "dict" else __name__
    with pytest.raises(ConfigError, match=r"env\.spaces: expected a gymnasium\.Space as (action|observation) space"):
        read_spaces(f"{where}:{factory}")


def three_spaces() -> tuple[Any, ...]:
    return CAMERA, CAMERA, CountingEnv.action_space


def test_a_factory_that_gives_more_than_two_spaces_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"env\.spaces: expected .*three_spaces to return an observation and an action"
    ):
        read_spaces(f"{__name__}:three_spaces")


def no_camera() -> EnvSpec:
    raise OSError("no camera")


def test_a_factory_that_raises_is_named_by_its_place() -> None:
    with pytest.raises(FaultError, match=rf"^env\.spaces {__name__}:no_camera: OSError: no camera$"):
        read_spaces(f"{__name__}:no_camera")


def test_a_factory_that_is_not_there_is_a_plugin_error() -> None:
    with pytest.raises(PluginError, match="no_such"):
        read_spaces("no_such:spaces")


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"action": ACTION}, r"env\.spaces: expected the keys observation and action, found \['action'\]"),
        (
            {"observation": 3, "action": ACTION},
            r"env\.spaces\.observation: expected a mapping with type: Box, Discrete",
        ),
        ({"observation": {"type": "Text"}, "action": ACTION}, r"observation: expected a mapping with type: Box"),
        ({"observation": {"type": ["Box"]}, "action": ACTION}, r"observation: expected a mapping with type: Box"),
        ({1: ACTION, "action": ACTION}, r"expected the keys observation and action, found \[1, 'action'\]"),
        (
            {"observation": {"type": "Dict", "spaces": [ACTION]}, "action": ACTION},
            r"observation\.spaces: expected a mapping of names to spaces, found \[",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 1, "shape": [10**5, 10**5]}, "action": ACTION},
            r"^env\.spaces\.observation\.shape: expected at most 268435456 bytes, found \[100000, 100000\], 4\d+ b",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 1, "shape": [0]}, "action": ACTION},
            r"^env\.spaces\.observation: space: expected ",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 1, "shape": [1], "dtype": ",f4"}, "action": ACTION},
            r"observation: no Box can be made of",
        ),
        (
            {"observation": {"type": "Box", "low": 0}, "action": ACTION},
            r"observation\.high: expected a value, found none",
        ),
        (
            {"observation": {"type": "Box", "low": 0, "high": 3, "dtype": "uint8"}, "action": ACTION},
            r"observation\.shape: expected a list, \[\] for a single number, found none",
        ),
        (
            {"observation": ACTION, "action": {**ACTION, "strat": 1}},
            r"action\.strat: unknown key of a Discrete .did you mean 'start'",
        ),
        (
            {"observation": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 0}]}, "action": ACTION},
            r"observation\.spaces\.0: no Discrete can be made of \{'n': 0\}",
        ),
        (
            {"observation": {"type": "Box", "low": [0, 1], "high": 2, "shape": [3]}, "action": ACTION},
            r"observation: no Box can be made of",
        ),
    ],
)
def test_a_wrong_description_is_refused_by_its_place(spaces: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_spaces(spaces)
