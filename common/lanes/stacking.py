"""Stacks of frames for a policy: a lane's last k observations; an episode's first stack repeats its first frame."""

from __future__ import annotations

import numpy as np

from common.data import Array, Leaves
from common.interfaces import EnvSpec
from common.leaves import by_path, capacity_for, empty_leaves
from common.spaces import LEAF_SPACES


class Stacker:
    """Stacks the observations of n lanes.

    Args:
        spec: of one lane, with single frames.
        n: lanes.
        k: frames in one stack; with 1, observations stay as they are.
    """

    def __init__(self, spec: EnvSpec, n: int, k: int) -> None:
        frames = empty_leaves(spec.observation_space, n)
        self._is_leaf = isinstance(spec.observation_space, LEAF_SPACES)
        self._windows = {path: _Window(leaf, k) for path, leaf in by_path(frames).items()} if k > 1 else {}

    def add(self, obs: Leaves, begins: Array | None, lanes: Array | None = None) -> Leaves:
        """The stacks that end with these observations, ``[n, k, *shape]``, valid until the next call.

        Args:
            obs: the newest frames, ``[n, *shape]``.
            begins: where episodes begin with them, ``[n]`` bool; None: nowhere.
            lanes: the lanes of the rows, ``[n]`` int64, all different; a new number adds a lane, whose episode must
                begin. None: all lanes.
        """
        if not self._windows:
            return obs
        if self._is_leaf:  # The usual case; the code below takes 2 µs more.
            return self._windows[""].add(obs, begins, lanes)  # type: ignore[arg-type]
        found = by_path(obs)
        return self._leaves({path: window.add(found[path], begins, lanes) for path, window in self._windows.items()})

    def peek(self, obs: Leaves, lanes: Array | None = None) -> Leaves:
        """A copy of the stacks that would end with these observations, ``[n, k, *shape]``; nothing is added.

        With one frame, these are the observations themselves.
        """
        if not self._windows:
            return obs
        found = by_path(obs)
        return self._leaves({path: window.peek(found[path], lanes) for path, window in self._windows.items()})

    def stacks(self) -> dict[str, Array]:
        """The present stacks by path, ``[n, k, *shape]``."""
        return {path: window.stacks for path, window in self._windows.items()}

    def restore(self, stacks: dict[str, Array]) -> None:
        """Go on with stacks that ``stacks`` returned; if the number of lanes has changed, in those of both."""
        for path, window in self._windows.items():
            n = min(len(window.stacks), len(stacks[path]))
            window.stacks[:n] = stacks[path][:n]

    def _leaves(self, found: dict[str, Array]) -> Leaves:
        return found[""] if self._is_leaf else found


class _Window:
    """The frames of one leaf, ``[n, 2 k, *shape]``, through which a window of k frames moves.

    So most steps copy one frame for each lane, and not k.
    """

    def __init__(self, frames: Array, k: int) -> None:
        self._k, self._end = k, k
        self._frames = np.zeros((len(frames), 2 * k, *frames.shape[1:]), frames.dtype)

    @property
    def stacks(self) -> Array:
        return self._frames[:, self._end - self._k : self._end]

    def add(self, frames: Array, begins: Array | None, lanes: Array | None) -> Array:
        if lanes is not None:
            return self._add_for(frames, begins, lanes)
        k = self._k
        if self._end == 2 * k:
            self._frames[:, : k - 1] = self._frames[:, k + 1 :]
            self._end = k - 1
        self._frames[:, self._end] = frames
        self._end += 1
        if begins is not None:
            self._frames[begins, self._end - k : self._end - 1] = frames[begins][:, None]
        return self.stacks

    def _add_for(self, frames: Array, begins: Array | None, lanes: Array) -> Array:
        """Move the frames of these lanes instead of the window, which serves all lanes."""
        stacks = self.peek(frames, lanes)
        if begins is not None:
            stacks[begins] = frames[begins][:, None]
        self.stacks[lanes] = stacks
        return stacks

    def peek(self, frames: Array, lanes: Array | None) -> Array:
        if lanes is None:
            return np.concatenate([self.stacks[:, 1:], frames[:, None]], axis=1)
        n = len(self._frames)
        if (more := capacity_for(lanes, n) - n) > 0:
            self._frames = np.concatenate((self._frames, np.zeros((more, *self._frames.shape[1:]), self._frames.dtype)))
        return np.concatenate([self.stacks[lanes, 1:], frames[:, None]], axis=1)
