from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, unflatten
from gymnasium.wrappers import FlattenObservation

from common.data import Array, Items
from common.envs import Env, spec_of
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import StepProcessor
from common.parts import Lane, Parts
from common.processors import NStep, OneStep
from common.testing import items_of, play
from learner.datasets.opening import open_dataset
from tests.learner.recordings import SOURCE, record
from tests.parts import CheckingAgent, CountingEnv, counting_action

COUNTING = (CountingEnv.observation_space, CountingEnv.action_space)


class GoalEnv(gymnasium.Env[Any, Any]):
    """Observations of two parts and a choice, as in goal environments."""

    observation_space: gymnasium.Space[Any] = Dict(
        {"at": Box(-9, 9, (2,), np.float64), "goal": Box(-9, 9, (1,), np.float64), "on": Discrete(3)}
    )
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        super().reset(seed=seed)
        self._at, self._steps = np.zeros(2), 0
        return self._obs(), {}

    def _obs(self) -> dict[str, Any]:
        return {"at": self._at, "goal": np.array([0.5]), "on": np.int64(self._steps % 3)}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._at, self._steps = self._at + action, self._steps + 1
        return self._obs(), 0.0, False, self._steps == 5, {}


def parts(env: Env, processor: StepProcessor) -> Parts:
    spec = spec_of(env)
    agent = CheckingAgent(spec, seed=0, epsilon=0.0, device="cpu")
    return Parts((Lane(env, processor),), agent, processor.schema(spec))


def loaded(env: Env, processor: StepProcessor | None = None, source: str = SOURCE) -> Items:
    with open_dataset(source) as dataset:
        found = list(dataset.items(parts(env, processor or OneStep())))
    return {name: np.concatenate([items[name] for items in found]) for name in found[0]}


def assert_same(found: Items, expected: Items) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)


@pytest.mark.parametrize("processor", [OneStep(), NStep()], ids=["OneStep", "NStep"])
def test_its_steps_go_through_the_step_processor_as_if_just_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: StepProcessor
) -> None:
    """The last episode has no end, and others end either way."""
    episodes = play(CountingEnv(), 45, policy=counting_action)
    source = record(tmp_path, monkeypatch, episodes, COUNTING)
    with open_dataset(source) as dataset:
        assert len(dataset) == 45
    assert_same(loaded(CountingEnv(), processor), items_of(processor, episodes))


def test_a_dataset_is_found_by_its_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 20, policy=counting_action), COUNTING)
    assert_same(loaded(CountingEnv(), source=str(tmp_path / "tests" / "played-v0")), loaded(CountingEnv()))


def test_observations_of_several_parts_are_flattened_as_the_environments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, space = FlattenObservation(GoalEnv()), GoalEnv.observation_space
    episodes = play(env, 12)
    record(tmp_path, monkeypatch, episodes, (space, GoalEnv.action_space), lambda obs: unflatten(space, obs))
    assert_same(loaded(env), items_of(OneStep(), episodes))


def test_numbers_take_the_precision_of_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make("Pendulum-v1")
    episodes, double = play(env, 20), Box(-9, 9, (3,), np.float64)
    record(tmp_path, monkeypatch, episodes, (double, env.action_space), lambda obs: obs.astype(np.float64))
    found = loaded(env)
    assert found["obs"].dtype == found["next_obs"].dtype == np.float32
    assert_same(found, items_of(OneStep(), episodes))


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((Box(-1, 1, (4,)), Discrete(3)), r"column 'obs': the environment has Box\(.*\(3,\).*has Box\(.*\(4,\)"),
        ((COUNTING[0], Discrete(4)), r"column 'action': the environment has Discrete\(3\), .* has Discrete\(4\)"),
        ((COUNTING[0], Box(-1, 1, (1,))), r"column 'action': the environment has Discrete\(3\), .* has Box"),
    ],
)
def test_spaces_that_are_not_the_environments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spaces: tuple[Any, Any], message: str
) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 7, policy=counting_action), spaces)
    with pytest.raises(SchemaMismatchError, match=message):
        loaded(CountingEnv())


def test_floats_are_not_taken_for_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pixels(CountingEnv):
        observation_space = Box(0, 255, (3,), np.uint8)  # type: ignore[arg-type]

    record(tmp_path, monkeypatch, play(CountingEnv(), 7, policy=counting_action), COUNTING)
    with pytest.raises(SchemaMismatchError, match=r"has Box\(0, 255, \(3,\), uint8\), .* float32\)"):
        loaded(Pixels())


def test_a_dataset_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    message = r"dataset minari:no/such-v0: cannot be read: .*not found locally"
    with pytest.raises(DatasetError, match=message), open_dataset("minari:no/such-v0"):
        pass


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 7, policy=counting_action), COUNTING)
    (tmp_path / "tests" / "played-v0" / "data" / "main_data.hdf5").write_bytes(b"not at all")
    with pytest.raises(DatasetError, match=f"dataset {SOURCE}: cannot be read"):
        loaded(CountingEnv())
