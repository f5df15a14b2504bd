from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, unflatten
from gymnasium.wrappers import FilterObservation, FlattenObservation

from common.data import INTERVENED, Array, Column, Items, Schema
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import Agent, EnvSpec, RowMap, Step, StepProcessor
from common.lanes.building import Env, spec_of
from common.parts import Parts, row_schema
from common.spaces import columns_of
from crossborder.testing import items_of, play, rows_of
from learner.datasets.opening import open_dataset
from tests.learner.recordings import SOURCE, record
from tests.parts import CountingEnv, counting_action

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


def parts(env: Env, *extras: Column, row_map: RowMap | None = None, processor: StepProcessor | None = None) -> Parts:
    """The parts of a run in this environment, as far as a dataset asks for them."""
    spec = spec_of(env)
    rows = row_schema(spec)
    for extra in extras:
        rows = rows.plus(extra)
    schema = row_map.schema(rows) if row_map else processor.schema(spec) if processor else rows
    processors = (processor,) if processor else ()
    return Parts(cast(Agent, None), schema, spec, spec, rows, row_map=row_map, processors=processors)


def loaded(env: Env, *extras: Column, source: str = SOURCE, **given: Any) -> Items:
    with open_dataset(source) as dataset:
        found = [items for _, items in dataset.items(parts(env, *extras, **given))]
    return {name: np.concatenate([items[name] for items in found]) for name in found[0]}


def played(env: Env, episodes: Sequence[Sequence[Step]]) -> Items:
    """The rows of what was played; an episode without an end counts as cut off."""
    last = episodes[-1][-1]
    last.truncated |= not last.terminated
    return rows_of(row_schema(spec_of(env)), episodes)


def assert_same(found: Items, expected: Items) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)


def test_its_steps_are_rows_as_if_just_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last episode has no end, and others end either way."""
    episodes = play(CountingEnv(), 45, policy=counting_action)
    source = record(tmp_path, monkeypatch, episodes, COUNTING)
    found = loaded(CountingEnv())
    with open_dataset(source) as dataset:
        assert len(dataset) == len(found["obs"]) == 45 + len(episodes)
    assert_same(found, played(CountingEnv(), episodes))


class Doubled(RowMap):
    """Rewards are worth twice as much."""

    def schema(self, rows: Schema) -> Schema:
        return rows

    def map(self, rows: Items) -> Items:
        return {**rows, "reward": 2 * rows["reward"]}


class Pairs:
    """Items of an observation and the next one."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((*columns_of("obs", spec.observation_space), *columns_of("next_obs", spec.observation_space)))

    def reset(self) -> None:
        """It remembers nothing."""

    def process(self, step: Step) -> Items:
        assert isinstance(step.obs, np.ndarray)
        assert isinstance(step.next_obs, np.ndarray)
        return {"obs": step.obs[None], "next_obs": step.next_obs[None]}


def test_its_rows_are_mapped_as_an_actors_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = play(CountingEnv(), 20, policy=counting_action)
    record(tmp_path, monkeypatch, episodes, COUNTING)
    expected = played(CountingEnv(), episodes)
    assert_same(loaded(CountingEnv(), row_map=Doubled()), {**expected, "reward": 2 * expected["reward"]})


def test_its_steps_go_through_a_step_processor_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = play(CountingEnv(), 20, policy=counting_action)
    record(tmp_path, monkeypatch, episodes, COUNTING)
    assert_same(loaded(CountingEnv(), processor=Pairs()), items_of(Pairs(), episodes))


def test_observations_of_several_parts_are_as_many_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = play(GoalEnv(), 12)
    record(tmp_path, monkeypatch, episodes, (GoalEnv.observation_space, GoalEnv.action_space))
    found = loaded(GoalEnv())
    assert {"obs/at", "obs/goal", "obs/on"} < found.keys()
    assert_same(found, played(GoalEnv(), episodes))


def test_parts_of_observations_that_the_run_does_not_use_are_left_out_whatever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = play(GoalEnv(), 12)
    spoken = Dict({"said": Text(9), **cast(Dict, GoalEnv.observation_space).spaces})
    spaces = (spoken, GoalEnv.action_space)
    record(tmp_path, monkeypatch, episodes, spaces, lambda obs: {"said": "go there", **cast(Any, obs)})
    expected = played(GoalEnv(), episodes)
    assert_same(loaded(GoalEnv()), expected)
    assert_same(
        loaded(FilterObservation(GoalEnv(), ["at", "on"])),
        {name: column for name, column in expected.items() if name != "obs/goal"},
    )


def test_missing_columns_are_zero_for_interventions_and_memories_and_named_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 20, policy=counting_action), COUNTING)
    state = Column("state", "<f4", (2,))
    found = loaded(CountingEnv(), INTERVENED, state)
    assert not found["intervened"].any()
    assert not found["state"].any()
    with pytest.raises(
        SchemaMismatchError, match=r"column 'log_prob': the run's rows have it, episode 0 of dataset .* does not"
    ):
        loaded(CountingEnv(), Column("log_prob", "<f4"))


def test_a_dataset_is_found_by_its_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 20, policy=counting_action), COUNTING)
    assert_same(loaded(CountingEnv(), source=str(tmp_path / "tests" / "played-v0")), loaded(CountingEnv()))


def test_observations_of_several_parts_are_flattened_as_the_environments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, space = FlattenObservation(GoalEnv()), GoalEnv.observation_space
    episodes = play(env, 12)
    record(tmp_path, monkeypatch, episodes, (space, GoalEnv.action_space), lambda obs: unflatten(space, obs))
    assert_same(loaded(env), played(env, episodes))


def test_numbers_take_the_precision_of_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make("Pendulum-v1")
    episodes, double = play(env, 20), Box(-9, 9, (3,), np.float64)
    record(tmp_path, monkeypatch, episodes, (double, env.action_space), lambda obs: obs.astype(np.float64))
    found = loaded(env)
    assert found["obs"].dtype == np.float32
    assert_same(found, played(env, episodes))


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((Box(-1, 1, (4,)), Discrete(3)), r"the columns obs <f4 \[3\]; dataset .* has obs <f4 \[4\]"),
        ((COUNTING[0], Discrete(4)), r"action <i8 \[\] of 0 to 2; dataset .* has action <i8 \[\] of 0 to 3"),
        ((COUNTING[0], Box(-1, 1, (1,))), r"action <i8 \[\] of 0 to 2; dataset .* has action <f4 \[1\]"),
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
    with pytest.raises(SchemaMismatchError, match=r"has the columns obs \|u1 \[3\]; dataset .* has obs <f4 \[3\]"):
        loaded(Pixels())


def test_a_dataset_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    message = r"dataset minari:no/such-v0: cannot be read: .*No such file .*no/such-v0"
    with pytest.raises(DatasetError, match=message), open_dataset("minari:no/such-v0"):
        pass


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, play(CountingEnv(), 7, policy=counting_action), COUNTING)
    (tmp_path / "tests" / "played-v0" / "data" / "main_data.hdf5").write_bytes(b"not at all")
    with pytest.raises(DatasetError, match=f"dataset {SOURCE}: cannot be read"):
        loaded(CountingEnv())
