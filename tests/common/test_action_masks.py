"""Masks in observations: what they allow, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from common.action_masks import ActionMasks, RandomActions, find_masks
from common.config.actor_config import EvaluatorConfig
from common.data import Array, Leaves
from common.envs.masked_tasks import TakeAway
from common.envs.wrappers import MaskFromInfo
from common.errors import ConfigError, PluginError
from common.evaluation import DefaultEvaluator
from common.interfaces import Agent, EnvSpec
from common.lanes.building import lanes_of
from crossborder.testing import check_env
from crossborder.testing.play import play

X = Box(-1, 1, (2,), np.float32)


def masks_of(actions: Any, mask: Any) -> ActionMasks:
    found = find_masks(EnvSpec(Dict(action_mask=mask, x=X), actions))
    assert found is not None
    return found


@pytest.mark.parametrize("space", [Discrete(5, start=-2, dtype=np.int32), MultiDiscrete([3, 2], start=[1, 0])])
@given(seed=st.integers(0, 1 << 30))
def test_random_actions_are_allowed_elements_of_the_space(space: Any, seed: int) -> None:
    masks, rng = masks_of(space, MultiBinary(5)), np.random.default_rng(seed)
    found = rng.integers(2, size=(20, 5), dtype=np.int8)
    found[:, 0] |= found[:, :3].max(axis=1) == 0
    found[:, 3] |= found[:, 3:].max(axis=1) == 0
    obs: Leaves = {"action_mask": found, "x": np.zeros((20, 2), np.float32)}
    actions = masks.draw(obs, np.zeros(0), rng)
    assert all(space.contains(action) for action in actions)
    assert masks.are_allowed(obs, actions).all()
    assert not len(masks.find_dead_ends(obs))


def test_each_component_needs_an_allowed_value() -> None:
    masks = masks_of(MultiDiscrete([2, 3]), MultiBinary(5))
    found = np.array([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]], np.int8)
    assert masks.find_dead_ends({"action_mask": found}).tolist() == [1, 2]


def test_observations_without_a_mask_and_continuous_actions_have_none() -> None:
    assert find_masks(EnvSpec(Dict(x=X), Discrete(3))) is None
    assert find_masks(EnvSpec(X, Discrete(3))) is None
    assert find_masks(EnvSpec(Dict(x=X, action_mask=MultiBinary(3)), Box(-1, 1, (3,), np.float32))) is None


class Stuck(gymnasium.Env[Any, Any]):
    """Episodes of two steps; ``after`` says after how many steps nothing is allowed."""

    action_space = Discrete(2)

    def __init__(self, after: int, *, is_terminated: bool = True, size: int = 2) -> None:
        self._after, self._is_terminated = after, is_terminated
        self.observation_space = Dict(action_mask=MultiBinary(size), x=X)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        ends = self._steps == 2
        return self._observe(), 1.0, ends and self._is_terminated, ends and not self._is_terminated, {}

    def _observe(self) -> Any:
        return {"action_mask": np.full(2, self._steps != self._after, np.int8), "x": np.zeros(2, np.float32)}


MODES = [None, *AutoresetMode]


def play_in(mode: AutoresetMode | None, after: int, *, is_terminated: bool) -> list[Array]:
    """Step two copies six times; ``mode`` is that of a vector environment, None: of plain environments."""

    def make(first: int) -> gymnasium.Env[Any, Any]:
        return Stuck(first, is_terminated=is_terminated)

    envs: Any = [make(7), make(after)]
    lanes = lanes_of(
        envs if mode is None else SyncVectorEnv([lambda: make(7), lambda: make(after)], autoreset_mode=mode)
    )
    actions, seen = RandomActions(lanes.spec, 2, 0), []
    for _ in range(6):
        obs = lanes.observe()
        assert isinstance(obs, dict)
        seen.append(obs["action_mask"].copy())
        lanes.step(actions.draw(obs))
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_allows_nothing_is_refused_by_leaf_and_lane(mode: AutoresetMode | None) -> None:
    for after, is_terminated in ((0, True), (1, True), (2, False)):
        with pytest.raises(PluginError, match=r"env: observation: leaf 'action_mask': expected .* in lane 1, found"):
            play_in(mode, after, is_terminated=is_terminated)


@pytest.mark.parametrize("mode", MODES)
def test_after_the_last_step_of_a_terminated_episode_nothing_needs_to_be_allowed(mode: AutoresetMode | None) -> None:
    seen = play_in(mode, 2, is_terminated=True)
    assert mode is AutoresetMode.NEXT_STEP or np.all(seen)


def test_a_mask_of_another_size_is_refused_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match="leaf 'action_mask': expected 2 elements"):
        lanes_of(Stuck(7, size=3))
    with pytest.raises(AssertionError, match=r"mask of actions does not fit .* expected 2 elements"):
        check_env(Stuck(7, size=3))


@pytest.mark.parametrize(("after", "where"), [(0, "reset"), (1, "step")])
def test_the_check_of_an_environment_names_a_mask_that_allows_nothing(after: int, where: str) -> None:
    with pytest.raises(AssertionError, match=rf"{where}\(\) gave an action_mask that allows no action"):
        check_env(Stuck(after))
    check_env(Stuck(2))


class Taking(Agent):
    """Takes random allowed actions."""

    def __init__(self, spec: EnvSpec) -> None:
        self._actions = RandomActions(spec, 1, 0)

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Leaves:
        return self._actions.draw(obs)

    def opt(self, buffer: Any) -> Any:
        return None

    def model_info(self) -> Any:
        return {}

    def sync_model(self, model: Any) -> None:
        pass

    save_params = model_info

    def load_params(self, params: Any) -> None:
        pass

    def training_state(self) -> Any:
        raise NotImplementedError

    def load_training_state(self, state: Any) -> None:
        raise NotImplementedError


def test_evaluations_end_although_episodes_of_other_lanes_still_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.evaluation.MAX_ENVS", 3)
    env = TakeAway(stones=7)
    agent = Taking(EnvSpec(env.observation_space, env.action_space))
    config = EvaluatorConfig(episodes=6)
    found = DefaultEvaluator(env, config, make_env=lambda: TakeAway(stones=7)).evaluate(agent)
    assert -1 <= found.score <= 1


class InInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """gymnasium's convention: the mask of ``TakeAway`` is in ``info`` and not in observations."""

    def __init__(self, *, is_dict: bool = False, lacks: str = "") -> None:
        super().__init__(TakeAway())
        assert isinstance(self.env.observation_space, Dict)
        parts = {"observation": self.env.observation_space["observation"]}
        self._is_dict, self._lacks = is_dict, lacks
        self.observation_space = Dict(parts) if is_dict else parts["observation"]

    def reset(self, **given: Any) -> Any:
        obs, _ = self.env.reset(**given)
        return self._split(obs, "reset")

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        obs, info = self._split(obs, "end" if terminated else "step")
        return obs, reward, terminated, truncated, info

    def _split(self, obs: Any, where: str) -> tuple[Any, dict[str, Any]]:
        info = {} if where == self._lacks else {"action_mask": obs["action_mask"]}
        left = obs["observation"]
        return {"observation": left} if self._is_dict else left, info


@pytest.mark.parametrize("given", [{}, {"is_dict": True}, {"lacks": "end"}])
def test_masks_in_info_become_the_leaf_that_the_same_task_has_itself(given: dict[str, Any]) -> None:
    wrapped = MaskFromInfo(InInfo(**given))
    assert wrapped.observation_space == TakeAway().observation_space
    check_env(wrapped)
    episodes = play(wrapped, 60), play(TakeAway(), 60)
    for one, other in zip(*([step for e in episode for step in e] for episode in episodes), strict=True):
        assert isinstance(one.obs, dict)
        assert isinstance(other.obs, dict)
        assert all(np.array_equal(one.obs[path], other.obs[path]) for path in other.obs)
        assert one.action == other.action


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_info_without_the_mask_is_refused(where: str) -> None:
    env = MaskFromInfo(InInfo(lacks=where))
    with pytest.raises(PluginError, match=r"expected info\['action_mask'\] after each reset and step, found an empty"):
        play(env, 20)


class Parts(gymnasium.Env[Any, Any]):
    observation_space, action_space = X, MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))}


def test_a_tuple_of_masks_in_info_becomes_one_mask() -> None:
    obs, _ = MaskFromInfo(Parts()).reset()
    assert obs["action_mask"].tolist() == [1, 0, 0, 1, 1]
    assert obs["action_mask"].dtype == np.int8


class Joined(gymnasium.Env[Any, Any]):
    """Its info has the masks in this structure."""

    observation_space = X

    def __init__(self, action_space: gymnasium.Space[Any], mask: Any) -> None:
        self.action_space, self._mask = action_space, mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"action_mask": self._mask}


def ones(*flags: int) -> Array:
    return np.array(flags, np.int8)


@pytest.mark.parametrize(
    ("actions", "mask"),
    [
        (Dict({"go": Discrete(2), "keys": MultiDiscrete([1, 2]), "turn": X}), [1, 0, 1, 0, 1]),
        (
            Dict({"go": Discrete(2), "keys": MultiDiscrete([1, 2]), "turn": X}),
            {"keys": (ones(1), ones(0, 1)), "go": ones(1, 0), "turn": None},
        ),
        (Tuple([Discrete(2), X, Tuple([Discrete(3)])]), (ones(1, 0), None, (ones(1, 0, 1),))),
    ],
)
def test_the_masks_of_leaves_in_info_become_one_mask(actions: Any, mask: Any) -> None:
    if not isinstance(mask, list):
        actions.sample(mask)  # gymnasium takes it so.
    obs, _ = MaskFromInfo(Joined(actions, mask)).reset()
    assert obs["action_mask"].tolist() == [1, 0, 1, 0, 1]


def test_masks_in_info_that_lack_a_leaf_are_refused() -> None:
    env = MaskFromInfo(Joined(Dict({"go": Discrete(2), "keys": Discrete(3)}), {"go": ones(1, 1)}))
    with pytest.raises(PluginError, match=r"expected a mask for Discrete\(3\), found none"):
        env.reset()


def test_what_cannot_have_masks_of_info_is_refused() -> None:
    with pytest.raises(ConfigError, match="have a leaf 'action_mask' already"):
        MaskFromInfo(TakeAway())
    with pytest.raises(ConfigError, match="expected Discrete or MultiDiscrete actions"):
        MaskFromInfo(gymnasium.make("Pendulum-v1"))
    with pytest.raises(ConfigError, match="expected a plain environment"):
        MaskFromInfo(SyncVectorEnv([TakeAway]))  # type: ignore[arg-type]


def test_masks_in_info_alone_are_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    lanes = lanes_of(InInfo())
    for _ in range(2):
        lanes.reset(0)
        lanes.observe()
    assert [record.message for record in caplog.records if "MaskFromInfo" in record.message] == [
        "env: info has an action_mask, which agents do not obey: to have it obeyed, add {target: "
        "MaskFromInfo} to env.wrappers"
    ]
