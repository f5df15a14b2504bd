"""Plain environments that are stepped in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from common import spaces
from common.data import Leaves
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.lanes import SUCCESS, AnyEnv, EpisodeLostError, Lanes, Picks, Round
from common.leaves import as_shape, copy_leaves, empty_leaves, pick_lanes, put_leaves

_ARRAY = np.ndarray  # A global name is found faster than an attribute.


class PlainLanes(Lanes):
    """Environments of one kind that are stepped in turn, each of them reset when its episode has ended.

    So a last observation is always the true one, also where an environment carries gymnasium's Autoreset wrapper.
    """

    def __init__(self, envs: Sequence[AnyEnv], spec: EnvSpec, picks: Picks) -> None:
        super().__init__(spec, len(envs))
        self.envs, self._picks = list(envs), picks
        self._space, self._structured = (
            spec.observation_space,
            not isinstance(spec.observation_space, spaces.LEAF_SPACES),
        )
        self._shape = spec.observation_space.shape
        self._obs = empty_leaves(spec.observation_space, self.n)
        info = {key: np.zeros((self.n, *column.shape), column.dtype) for key, column in picks.info.items()}
        self._round = Round(np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool), self._obs, info=info)
        self._is_usual = True  # Whether the arrays of flags are all False.
        self._seeds: list[int | None] = [None] * self.n
        self._waiting = list(range(self.n))  # The lanes that are to be reset.

    def reset(self, seed: int | None = None) -> None:
        self._seeds = [None if seed is None else seed + j for j in range(self.n)]
        self._waiting = list(range(self.n))

    def resume(self, j: int, obs: Any) -> None:
        """Go on in lane j, whose environment is in the middle of an episode, with this observation."""
        self._put(j, obs)
        self._waiting.remove(j)

    def waits_with(self, j: int) -> int | None:
        """The seed with which lane j is to be reset; None if it has none."""
        return self._seeds[j]

    def seed_next(self, j: int, seed: int | None) -> None:
        """Have lane j begin an episode at the next ``observe``, with this seed."""
        self._seeds[j] = seed
        if j not in self._waiting:
            self._waiting.append(j)

    def observe(self) -> Leaves:
        if not self._waiting:
            self.begins = None
            return self._obs
        self.begins = np.zeros(self.n, bool)
        for j in self._waiting:
            seed, self._seeds[j] = self._seeds[j], None
            obs, _ = self.envs[j].reset(seed=seed)
            self._put(j, obs)
            self.begins[j] = True
        self._waiting = []
        return self._obs

    def step(self, actions: Leaves) -> Round:
        outcome = self._round
        if not self._is_usual:
            self._clear(outcome)
        rewards, structured, ended = outcome.reward, self._structured, None
        for j, env in enumerate(self.envs):
            action = actions[j] if type(actions) is _ARRAY else self._element(actions, j)
            try:
                obs, rewards[j], terminated, truncated, info = env.step(action)
            except EpisodeLostError:
                self._lose(j)
                continue
            if structured or type(obs) is not _ARRAY or obs.shape != self._shape:
                self._put(j, obs)
            else:
                self._obs[j] = obs  # type: ignore[index]
            if self._picks.info or self._picks.intervention:
                self._pick(j, info, actions)
            if terminated or truncated:
                outcome.terminated[j], outcome.truncated[j] = terminated, truncated
                ended = [*(ended or ()), (j, info.get(SUCCESS))]
        if ended:
            self._end(ended)
        return outcome

    def _clear(self, outcome: Round) -> None:
        outcome.terminated[:] = outcome.truncated[:] = False
        outcome.ended = outcome.final_obs = outcome.taken = outcome.action = outcome.intervened = None
        outcome.success = ()
        self._is_usual = True

    def _element(self, actions: Leaves, j: int) -> Any:
        """The action of lane j as an element of the action space."""
        leaves = {path: leaf[j] for path, leaf in actions.items()} if isinstance(actions, dict) else actions[j]
        return spaces.unflatten(self.spec.action_space, leaves)

    def _lose(self, j: int) -> None:
        self._is_usual = False
        if self._round.taken is None:
            self._round.taken = np.ones(self.n, bool)
        self._round.taken[j] = False
        self._waiting.append(j)

    def _end(self, ended: Sequence[tuple[int, Any]]) -> None:
        self._is_usual = False
        outcome, lanes = self._round, [j for j, _ in ended]
        outcome.ended, outcome.final_obs = np.array(lanes), pick_lanes(self._obs, lanes)
        outcome.success = [None if success is None else bool(success) for _, success in ended]
        self._waiting.extend(lanes)

    def _pick(self, j: int, info: Mapping[str, Any], actions: Leaves) -> None:
        """Take the wanted values of lane j from its ``info``."""
        for key, column in self._picks.info.items():
            self._round.info[key][j] = as_shape(info.get(key, 0), column.shape, f"info['{key}']")
        instead = info.get(self._picks.intervention) if self._picks.intervention else None
        if instead is not None:
            self._is_usual, outcome = False, self._round
            if outcome.action is None:
                outcome.action, outcome.intervened = copy_leaves(actions), np.zeros(self.n, bool)
            put_leaves(outcome.action, j, spaces.flatten(self.spec.action_space, instead))
            outcome.intervened[j] = True  # type: ignore[index]

    def _put(self, j: int, obs: Any) -> None:
        """Keep the observation of lane j.

        Raises:
            PluginError: it does not fit its space.
        """
        try:
            put_leaves(self._obs, j, spaces.flatten(self._space, obs))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PluginError(f"env: expected an observation of {self._space}, found {obs!r}") from error

    def wrap(self, wrapper: Callable[[AnyEnv], AnyEnv]) -> None:
        self.envs = [wrapper(env) for env in self.envs]

    def close(self) -> None:
        for env in self.envs:
            env.close()
