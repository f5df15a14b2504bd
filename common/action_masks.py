"""Action masks: the leaf ``action_mask`` of an observation says which actions are allowed, 1 for each that is.

A mask has an element for each action of a Discrete space. For a MultiDiscrete space it has the elements of all
components, one component after another; it may also be a Tuple with a leaf for each component. For a Dict or Tuple
space it has the elements of all discrete leaves, one leaf after another; it may also be a Dict or Tuple with a leaf for
each discrete leaf, of the same path. Box leaves have no masks. PettingZoo has such observations;
``common.envs.wrappers:MaskFromInfo`` makes them where gymnasium's convention is ``info["action_mask"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from common.data import Array, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.leaves import by_path
from common.spaces import flatten, leaves_of, name_of

MASK: Final = "action_mask"
"""The key of masks in Dict observations, and in ``info``."""
OBEY: Final = "to have it obeyed, add {target: MaskFromInfo} to env.wrappers"
"""What to do about masks in ``info``, for messages."""


DiscreteLeaves = Mapping[str, spaces.Discrete | spaces.MultiDiscrete]


def discrete_leaves(actions: gymnasium.Space[Any]) -> DiscreteLeaves:
    """The leaves of an action space that a mask is about, by path; ``{"": actions}`` if the space is such a leaf."""
    leaves = leaves_of(actions).items()
    return {path: leaf for path, leaf in leaves if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)}


def component_sizes(leaf: spaces.Discrete | spaces.MultiDiscrete) -> list[int]:
    """The number of values of each component of a leaf."""
    return [int(n) for n in ([leaf.n] if isinstance(leaf, spaces.Discrete) else leaf.nvec.flat)]


class ActionMasks:
    """The masks in the observations of one environment."""

    def __init__(self, paths: Sequence[str], actions: DiscreteLeaves) -> None:
        self.paths, self._actions = tuple(paths), actions
        counts = [component_sizes(leaf) for leaf in actions.values()]
        self.sizes = tuple(size for sizes in counts for size in sizes)
        """The number of values of each component of an action."""
        self._offsets = np.cumsum([0, *self.sizes[:-1]])
        self._ends = np.cumsum([len(sizes) for sizes in counts])  # The components of each leaf, one after another.

    def read(self, obs: Leaves) -> Array:
        """The masks in observations of n lanes: whether each action is allowed, ``[n, sum of sizes]`` bool."""
        assert isinstance(obs, dict), "observations with a mask are structured"
        newest = [obs[path][:, -1] if obs[path].ndim == 3 else obs[path] for path in self.paths]
        allowed: Array = np.concatenate(newest, axis=1) != 0
        return allowed

    def find_dead_ends(self, obs: Leaves) -> Array:
        """The lanes ``[k]`` of observations in which no action is allowed, of any component."""
        allowed = self.read(obs)
        if allowed.all():  # The usual case of many environments.
            return np.zeros(0, np.int64)
        counts = np.add.reduceat(allowed, self._offsets, axis=1, dtype=np.int64)
        return np.flatnonzero((counts == 0).any(axis=1))

    def are_allowed(self, obs: Leaves, actions: Leaves) -> Array:
        """Whether actions ``[n, *action_shape]`` are allowed after observations of n lanes, ``[n]`` bool."""
        given = by_path(actions)
        parts = [(given[path] - leaf.start).reshape(len(given[path]), -1) for path, leaf in self._actions.items()]
        taken: Array = np.take_along_axis(self.read(obs), np.concatenate(parts, axis=1) + self._offsets, axis=1)
        allowed: Array = np.all(taken, axis=1)
        return allowed

    def draw(self, obs: Leaves, actions: Leaves, rng: np.random.Generator) -> Leaves:
        """The actions ``[n, *action_shape]`` with uniformly random values that the masks allow in discrete leaves."""
        parts = np.split(self.read(obs), self._offsets[1:], axis=1)
        chosen = np.stack([np.where(part, rng.random(part.shape), -1.0).argmax(axis=1) for part in parts], axis=1)
        drawn = {
            path: (values.reshape(-1, *(leaf.shape or ())) + leaf.start).astype(leaf.dtype)
            for (path, leaf), values in zip(
                self._actions.items(), np.split(chosen, self._ends[:-1], axis=1), strict=True
            )
        }
        return {**actions, **drawn} if isinstance(actions, dict) else drawn[""]


class RandomActions:
    """Uniformly random actions for n lanes, of those that are allowed if there are masks."""

    def __init__(self, spec: EnvSpec, n: int, seed: int) -> None:
        self.masks, self._rng = find_masks(spec), np.random.default_rng(seed)
        self._spec, self._space = spec, batch_space(spec.action_space, n)
        self._space.seed(seed)

    def draw(self, obs: Leaves) -> Leaves:
        """Actions ``[n, *action_shape]`` for observations of all lanes, as leaves."""
        actions = flatten(self._spec.action_space, self._space.sample())
        return actions if self.masks is None else self.masks.draw(obs, actions, self._rng)


def find_masks(spec: EnvSpec) -> ActionMasks | None:
    """The masks in observations of these spaces; None if they have none.

    Observations with stacked frames have a mask for each frame, ``[k, n]``.

    Raises:
        ConfigError: the leaf ``action_mask`` has another size than the action space or is no mask, or it is the whole
            observation.
    """
    space, actions = spec.observation_space, discrete_leaves(spec.action_space)
    if not (actions and isinstance(space, spaces.Dict) and MASK in space.spaces):
        return None
    masks = leaves_of(space.spaces[MASK], MASK)
    for path, leaf in masks.items():
        _require_flags(path, leaf)
    found = {path: (leaf.shape or ())[-1] for path, leaf in masks.items()}
    sizes = {name_of(MASK, path): component_sizes(leaf) for path, leaf in actions.items()}
    expected = {path: sum(each) for path, each in sizes.items()}
    if list(masks) == [MASK]:
        expected = {MASK: sum(expected.values())}
    elif list(actions) == [""]:
        expected = {f"{MASK}/{i}": size for i, size in enumerate(sizes[MASK])}
    if found != expected:
        raise ConfigError(
            f"observation: leaf '{MASK}': expected {_in_words(expected)}, one element for each action of "
            f"{spec.action_space}, found {_in_words(found)}"
        )
    if len(leaves_of(space)) == len(masks):
        raise ConfigError(f"observation: expected another leaf beside '{MASK}', which agents do not see; found {space}")
    return ActionMasks(tuple(expected), actions)


def _require_flags(path: str, leaf: gymnasium.Space[Any]) -> None:
    """Check that a leaf has one axis of zeros and ones, or two axes with stacked frames."""
    is_box = isinstance(leaf, spaces.Box) and bool((leaf.low >= 0).all() and (leaf.high <= 1).all())
    if not (is_box or isinstance(leaf, spaces.MultiBinary)) or len(leaf.shape or ()) not in (1, 2):
        raise ConfigError(
            f"observation: leaf '{path}': expected a mask of actions, MultiBinary or a Box from 0 to 1 with one axis, "
            f"found {leaf}"
        )


def _in_words(sizes: Mapping[str, int]) -> str:
    if list(sizes) == [MASK]:
        return f"{sizes[MASK]} element{'s' if sizes[MASK] != 1 else ''}"
    return ", ".join(f"{size} elements in '{path}'" for path, size in sizes.items())
