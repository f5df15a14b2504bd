"""Common parts of the checks: they play an environment, keep items in memory, and give advice in errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from common import spaces
from common.action_masks import find_masks
from common.data import Array, Items, Leaves, require_record
from common.errors import PluginError
from common.interfaces import EnvSpec, ReplayBuffer, Step, StepProcessor
from common.lanes.building import Env, spec_of
from common.leaves import copy_leaves, pick_leaves

Policy = Callable[[Any], Any]
"""An action for one observation: an array ``[*shape]``, or for a structured space one array for each leaf, by path."""


class ItemMemory(ReplayBuffer):
    """A ``ReplayBuffer`` of given items in this process's memory.

    Args:
        items: columns ``[n, *shape]``; n may be 0.
        seed: of the random rows.
    """

    is_uniform = True
    inserted = sampled = 0  # Attributes instead of the interface's properties.

    def __init__(self, items: Items, seed: int = 0) -> None:
        self._items = items
        self._rng = np.random.default_rng(seed)
        self.inserted, self.sampled = len(next(iter(items.values()))), 0

    def __len__(self) -> int:
        return self.inserted

    def batch(self, size: int) -> Items:
        if not self.inserted:
            raise IndexError("nothing to draw from")
        rows = self._rng.integers(self.inserted, size=size)
        self.sampled += size
        return {name: column[rows] for name, column in self._items.items()}

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Do nothing: every item stays equally likely."""


def play(env: Env, steps: int, *, seed: int = 0, policy: Policy | None = None) -> list[list[Step]]:
    """Play for ``steps`` steps, as an actor does, and return the steps of each episode; the last may be unfinished.

    Observations and actions are as an actor records them: leaves by path, float64 as float32.

    Args:
        env: its first reset has the seed; later resets have none.
        steps: at least 1.
        seed: of the environment, and of the random actions without a policy.
        policy: chooses actions; without a policy they are drawn from the action space, those that are allowed.

    Raises:
        AssertionError: the environment gives an observation, a reward or a flag that cannot be recorded.
    """
    spec = spec_of(env)
    choose = policy or random_policy(env, seed)
    episodes: list[list[Step]] = [[]]
    obs = _record_first(spec, env.reset(seed=seed))
    for _ in range(steps):
        if episodes[-1] and (episodes[-1][-1].terminated or episodes[-1][-1].truncated):
            episodes.append([])
            obs = _record_first(spec, env.reset())
        action = choose(obs)
        found, reward, terminated, truncated, _ = env.step(spaces.unflatten(spec.action_space, action))
        with explaining("step() gave an observation that cannot be one of its space"):
            next_obs = record_leaves(spec.observation_space, found)
        with explaining(
            f"step() gave a reward of {reward!r} and {(terminated, truncated)!r}: return a number and two bools"
        ):
            episodes[-1].append(Step(obs, action, float(reward), next_obs, bool(terminated), bool(truncated)))
        obs = next_obs
    return episodes


def _record_first(spec: EnvSpec, found: Any) -> Leaves:
    """The leaves of the first observation of an episode, of what ``reset`` gave."""
    with explaining("reset() gave an observation that cannot be one of its space"):
        return record_leaves(spec.observation_space, found[0])


def random_policy(env: Env, seed: int) -> Policy:
    """A policy of uniformly random actions, of those that are allowed if there are masks."""
    spec = spec_of(env)
    masks, rng = find_masks(spec), np.random.default_rng(seed)
    env.action_space.seed(seed)

    def choose(obs: Any) -> Any:
        action = record_leaves(spec.action_space, env.action_space.sample())
        if masks is None:
            return action
        return pick_leaves(masks.draw(_as_lane(obs), _as_lane(action), rng), 0)

    return choose


def _as_lane(leaves: Leaves) -> Leaves:
    """The leaves of one element as those of one lane, ``[1, *shape]``."""
    return {path: leaf[None] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[None]


def record_leaves(space: gymnasium.Space[Any], value: Any) -> Leaves:
    """A copy of the leaves of an element, in the dtypes of ``space``.

    It is a copy because the environment may write its next observation into the same array.
    """
    return copy_leaves(spaces.flatten(space, value))


def items_of(processor: StepProcessor, episodes: Sequence[Sequence[Step]]) -> Items:
    """All items that a processor makes from episodes, joined column by column; ``{}`` if it makes none."""
    parts: list[Items] = []
    for episode in episodes:
        processor.reset()
        parts.extend(items for step in episode if (items := processor.process(step)) is not None)
    return {name: np.concatenate([items[name] for items in parts]) for name in parts[0]} if parts else {}


@contextmanager
def explaining(advice: str) -> Iterator[None]:
    """Turn any exception into an ``AssertionError`` that begins with advice."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{advice} ({type(error).__name__}: {error})") from error


def check_record(record: Mapping[str, SupportsFloat], where: str, taken: Container[str]) -> None:
    """Check that a record has names that are not taken, and finite numbers."""
    try:
        require_record(record, where, taken)
    except PluginError as error:
        raise AssertionError(str(error)) from error
    for name, value in record.items():
        assert math.isfinite(float(value)), f"{where}: {name}: expected a finite number, found {float(value)}"
