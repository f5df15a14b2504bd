"""Action masks: the leaf ``action_mask`` of an observation says which actions are allowed, 1 for each that is.

A mask has an element for each action of a Discrete space. For a MultiDiscrete space it has the elements of all
components, one component after another; it may also be a Tuple with a leaf for each component. PettingZoo has such
observations; ``common.envs.wrappers:MaskFromInfo`` makes them where gymnasium's convention is ``info["action_mask"]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from common.data import Array, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.spaces import flatten, leaves_of

MASK: Final = "action_mask"
"""The key of masks in Dict observations, and in ``info``."""
OBEY: Final = "to have it obeyed, add {target: common.envs.wrappers:MaskFromInfo} to env.wrappers"
"""What to do about masks in ``info``, for messages."""


class ActionMasks:
    """The masks in the observations of one environment.

    Args:
        paths: of their leaves.
        sizes: the number of values of each component of an action.
        actions: the action space.
    """

    def __init__(
        self, paths: Sequence[str], sizes: Sequence[int], actions: spaces.Discrete | spaces.MultiDiscrete
    ) -> None:
        self.paths, self.sizes, self._actions = tuple(paths), tuple(sizes), actions
        self._offsets = np.cumsum([0, *self.sizes[:-1]])

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

    def are_allowed(self, obs: Leaves, actions: Array) -> Array:
        """Whether actions ``[n, *action_shape]`` are allowed after observations of n lanes, ``[n]`` bool."""
        values = (actions - self._actions.start).reshape(len(actions), -1)
        taken: Array = np.take_along_axis(self.read(obs), values + self._offsets, axis=1)
        allowed: Array = np.all(taken, axis=1)
        return allowed

    def draw(self, obs: Leaves, rng: np.random.Generator) -> Array:
        """Uniformly random actions that the masks allow, ``[n, *action_shape]``."""
        parts = np.split(self.read(obs), self._offsets[1:], axis=1)
        chosen = [np.where(part, rng.random(part.shape), -1.0).argmax(axis=1) for part in parts]
        drawn = np.stack(chosen, axis=1).reshape(-1, *(self._actions.shape or ())) + self._actions.start
        actions: Array = drawn.astype(self._actions.dtype)
        return actions


class RandomActions:
    """Uniformly random actions for n lanes, of those that are allowed if there are masks.

    Args:
        spec: of one lane.
        n: the number of lanes.
        seed: of the actions.
    """

    def __init__(self, spec: EnvSpec, n: int, seed: int) -> None:
        self.masks, self._rng = find_masks(spec), np.random.default_rng(seed)
        self._spec, self._space = spec, batch_space(spec.action_space, n)
        self._space.seed(seed)

    def draw(self, obs: Leaves) -> Leaves:
        """Actions ``[n, *action_shape]`` for observations of all lanes, as leaves."""
        if self.masks is not None:
            return self.masks.draw(obs, self._rng)
        return flatten(self._spec.action_space, self._space.sample())


def find_masks(spec: EnvSpec) -> ActionMasks | None:
    """The masks in observations of these spaces; None if they have none.

    Observations with stacked frames have a mask for each frame, ``[k, n]``.

    Raises:
        ConfigError: the leaf ``action_mask`` has another size than the action space or is no mask, or it is the whole
            observation.
    """
    space, actions = spec.observation_space, spec.action_space
    if not isinstance(actions, spaces.Discrete | spaces.MultiDiscrete):
        return None
    if not (isinstance(space, spaces.Dict) and MASK in space.spaces):
        return None
    sizes = [int(n) for n in ([actions.n] if isinstance(actions, spaces.Discrete) else actions.nvec.flat)]
    masks = leaves_of(space.spaces[MASK], MASK)
    for path, leaf in masks.items():
        _require_flags(path, leaf)
    found = [(leaf.shape or ())[-1] for leaf in masks.values()]
    expected = [sum(sizes)] if list(masks) == [MASK] else sizes
    if found != expected:
        raise ConfigError(
            f"observation: leaf '{MASK}': expected {_in_words(expected)}, one element for each action of {actions}, "
            f"found {_in_words(found)}"
        )
    if len(leaves_of(space)) == len(masks):
        raise ConfigError(f"observation: expected another leaf beside '{MASK}', which agents do not see; found {space}")
    return ActionMasks(tuple(masks), sizes, actions)


def _require_flags(path: str, leaf: gymnasium.Space[Any]) -> None:
    """Check that a leaf has one axis of zeros and ones, or two axes with stacked frames.

    Raises:
        ConfigError: it has other axes or values.
    """
    is_box = isinstance(leaf, spaces.Box) and bool((leaf.low >= 0).all() and (leaf.high <= 1).all())
    if not (is_box or isinstance(leaf, spaces.MultiBinary)) or len(leaf.shape or ()) not in (1, 2):
        raise ConfigError(
            f"observation: leaf '{path}': expected a mask of actions, MultiBinary or a Box from 0 to 1 with one axis, "
            f"found {leaf}"
        )


def _in_words(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes)) + (" elements" if sum(sizes) != 1 else " element")
