"""Plain environments that are stepped in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from common import spaces
from common.data import Array, Leaves
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.lanes.interface_faults import require_info, require_pair
from common.lanes.lanes import SEEDS, SUCCESS, AnyEnv, Lanes, Picks, Round, close_env
from common.leaves import as_shape, copy_leaves, describe, empty_leaves, pick_leaves, put_leaves
from common.process.signals import put_signals_back

_ARRAY = np.ndarray  # A global name is found faster than an attribute.
_Steps = tuple[list[bytes], list[bytes], list[float]]  # The observation before each step, its action, its reward.


class PlainLanes(Lanes):
    """Environments of one kind that are stepped in turn, each of them reset when its episode has ended.

    So a last observation is always the true one, even if an environment has gymnasium's Autoreset wrapper. An
    environment is reset only at ``observe``, when its next observation is needed.
    """

    def __init__(self, envs: Sequence[AnyEnv], spec: EnvSpec, picks: Picks, name: str = "env") -> None:
        super().__init__(spec, len(envs), picks, name)
        self.envs = list(envs)
        self._obs = empty_leaves(spec.observation_space, self.n)
        self._shape = None if isinstance(self._obs, dict) else spec.observation_space.shape
        self._takes_numbers = spec.action_space.shape == ()  # Which no environment can change in place; see _elements.
        self._dtype: np.dtype[Any] | None = None  # Of the environments' arrays, if no value is lost by recording them.
        info = {key: np.zeros((self.n, *column.shape), column.dtype) for key, column in picks.info.items()}
        self._round = Round(np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool), self._obs, info=info)
        self._is_usual = False  # Whether the last round left all flags False.
        self._rounds = 0
        self._returns, self._began = [0.0] * self.n, [0] * self.n  # Of the present episodes.
        self._left_over: tuple[Any] | None = None  # The outcome that ``go_on`` has left to ``step``, if it has.
        has_leaves = None not in (self._shape, spec.action_space.shape)
        self._may_go_on = self.n == 1 and has_leaves and self.masks is None and not self._picks_any
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        self._seeds = [None if seed is None else (seed + j) % SEEDS for j in range(self.n)]
        self._waiting = list(range(self.n))  # The lanes that are to be reset.

    def seed_next(self, j: int, seed: int | None) -> None:
        """Have lane j begin an episode at the next ``observe``, with this seed."""
        self._seeds[j] = None if seed is None else seed % SEEDS
        if j not in self._waiting:
            self._waiting.append(j)

    def next_seed(self, j: int) -> int | None:
        """The seed with which lane j is to be reset; None if it has none."""
        return self._seeds[j]

    def waits(self, j: int) -> bool:
        """Whether lane j begins an episode at the next ``observe``."""
        return j in self._waiting

    def resume(self, j: int, obs: Any, total: float, length: int) -> None:
        """Go on in lane j, whose environment is in the middle of an episode.

        Args:
            j: the lane.
            obs: the present observation, an element of the environment's space.
            total: the sum of the rewards so far.
            length: the steps so far.
        """
        self._put(j, obs)
        self._seeds[j], self._returns[j], self._began[j] = None, total, self._rounds - length
        self._waiting = [lane for lane in self._waiting if lane != j]

    def observe(self) -> Leaves:
        if not self._waiting:
            self.begins = None
        else:
            self.begins = np.zeros(self.n, bool)
            for j in self._waiting:
                self._put(j, self._reset(j))
                self.begins[j], self._returns[j], self._began[j] = True, 0.0, self._rounds
            self._waiting = []
        if self.masks is not None:
            self._require_allowed(self._obs, np.arange(self.n))
        return self._obs

    def _reset(self, j: int) -> Any:
        busy = self.busy
        try:
            while True:
                seed, self._seeds[j] = self._seeds[j], None
                busy.since = monotonic()
                try:
                    # A seed may have led to the error: the next environment is reset without one, and draws its own.
                    found = self.envs[j].reset(seed=seed)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - the keeper logs it, or it is raised
                    self._require_interface("reset", error)
                    self._replace(j, error)
                else:
                    require_pair(self.name, found)
                    self._see_reset(found[1])
                    return found[0]
        finally:
            self._end_call()

    def go_on(
        self, sample: Callable[[Leaves], Any], keep: Callable[..., None], most: int, until: float
    ) -> tuple[float, Leaves | None]:
        """Take usual steps of a single lane in one loop over local names: in half the time of single rounds.

        ``sample`` chooses an action; ``keep`` takes all steps at the end: lists of the bytes of each observation and of
        each action, and of the rewards. At most ``most`` steps are taken, and no more after the monotonic time
        ``until``. A step that is not usual, such as the last one of an episode, is left over: ``step`` takes up its
        outcome, without stepping the environment again.

        Returns:
            the seconds of choosing, and the action of the step that was left over, if one was.
        """
        if not self._may_go_on or self._dtype is None or self._waiting:
            return 0.0, None
        assert not isinstance(self._obs, dict)
        seen, given, rewards = list[bytes](), list[bytes](), list[float]()
        try:
            return self._take_usual_steps(sample, self._obs, (seen, given, rewards), most, until)
        finally:
            self._rounds += len(rewards)
            keep(seen, given, rewards)

    def _take_usual_steps(
        self, sample: Callable[[Leaves], Any], kept: Array, steps: _Steps, most: int, until: float
    ) -> tuple[float, Leaves | None]:
        """The loop of ``go_on``: adds to ``steps``, and returns the seconds of choosing and the action left over."""
        # All that the loop needs is in local names, which are found faster than attributes.
        step, busy, (seen, given, rewards), row = self.envs[0].step, self.busy, steps, kept[0]
        shape, dtype, has_number = self._shape, self._dtype, self._takes_numbers
        action_shape, action_dtype = (1, *(self.spec.action_space.shape or ())), self.spec.action_space.dtype
        total, left, choosing, ended = self._returns[0], None, 0.0, monotonic()
        for _ in range(most):
            # 1. Choose an action; an odd one is left to ``step``, which refuses it by name.
            try:
                actions = sample(kept)
            except Exception:
                self.require_indices(kept)
                raise
            acted = monotonic()
            choosing += acted - ended
            if type(actions) is not _ARRAY or actions.dtype is not action_dtype or actions.shape != action_shape:
                left = actions
                break
            # 2. Step the environment. An odd outcome is left to ``step`` too.
            busy.since = acted
            try:
                found = step(actions[0] if has_number else actions[0].copy())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the keeper logs it, or it is raised
                self._lose(0, error)
                break
            busy.since = math.inf
            put_signals_back(acted)
            try:
                obs, reward, terminated, truncated, info = found
                number, is_usual = float(reward), type(info) is dict and not (terminated or truncated)
            except spaces.UNREADABLE:
                is_usual = False
            if not (is_usual and type(obs) is _ARRAY and obs.shape == shape and obs.dtype is dtype):
                left, self._left_over = actions, (found,)
                break
            # 3. Keep the observation before the step, the action and the reward.
            seen.append(kept.tobytes())
            given.append(actions.tobytes())
            rewards.append(number)
            row[...] = obs
            total += number
            ended = monotonic()
            if ended >= until:
                break
        self._returns[0] = total
        return choosing, left

    def step(self, actions: Leaves) -> Round:
        outcome = self._round
        was_usual = self._is_usual
        if not was_usual:
            self._clear(outcome)
        self._rounds += 1
        # ``go_on`` has stepped the only lane already, and leaves the outcome of a step that was not usual to this call.
        left_over, self._left_over = self._left_over, None
        busy, rewards, returns, kept = self.busy, outcome.reward, self._returns, self._obs
        shape, dtype = self._shape, self._dtype
        elements: Any = actions if self._takes_numbers else self._elements(actions)
        ended: list[int] = []
        for j, env in enumerate(self.envs):
            action = elements[j]
            busy.since = monotonic()
            try:
                obs, reward, terminated, truncated, info = env.step(action) if left_over is None else left_over[0]
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the keeper logs it, or it is raised
                self._lose(j, error)
                continue
            # These quick comparisons pass the usual step. Only what they do not know goes to a slower check.
            try:
                number, goes_on = float(reward), not (terminated or truncated)
            except spaces.UNREADABLE as error:
                self._require_numbers(reward, terminated, truncated)
                raise PluginError(f"{self.name}: step: reward, terminated or truncated: {error}") from error
            rewards[j] = number
            returns[j] += number
            if type(obs) is _ARRAY and obs.shape == shape and obs.dtype is dtype:
                kept[j] = obs  # type: ignore[index]
            else:
                self._put(j, obs)
            if type(info) is not dict:
                require_info(self.name, info)
            if self._picks_any:
                self._pick(j, info, actions)
            if not (was_usual and goes_on):  # An environment with such values has them in each step.
                self._require_numbers(reward, terminated, truncated)
            if not goes_on:  # The episode ends; the lane is reset when the next round is observed.
                outcome.terminated[j], outcome.truncated[j] = terminated, truncated
                self._is_usual = False
                outcome.returns.append(returns[j])
                outcome.lengths.append(self._rounds - self._began[j])
                outcome.success.append(self._read_success(info.get(SUCCESS)))
                ended.append(j)
        self._end_call()
        if ended:
            self._end_episodes(outcome, ended)
        return outcome

    def _read_success(self, found: Any) -> bool | None:
        try:
            return None if found is None else bool(found)
        except spaces.UNREADABLE as error:
            raise PluginError(f"{self.name}: info['{SUCCESS}']: expected a bool, found {describe(found)}") from error

    def _end_episodes(self, outcome: Round, ended: Sequence[int]) -> None:
        """Note which lanes have ended, and with which observations; they wait for their reset."""
        outcome.ended = np.array(ended)
        outcome.final_obs = pick_leaves(self._obs, outcome.ended)
        self._require_allowed_at_cut(outcome)
        self._watch.end(len(ended))
        self._waiting.extend(ended)

    def _clear(self, outcome: Round) -> None:
        outcome.terminated[:] = outcome.truncated[:] = False
        outcome.ended = outcome.final_obs = outcome.taken = outcome.action = outcome.intervened = None
        outcome.returns, outcome.lengths, outcome.success = [], [], []
        self._is_usual = True

    def _require_numbers(self, reward: Any, terminated: Any, truncated: Any) -> None:
        """Check the types of a reward and of flags."""
        found = {"reward": reward, "terminated": terminated, "truncated": truncated}
        for name, value in found.items():
            is_number = isinstance(value, (bool, int, float, np.bool_, np.number))
            try:
                is_odd = not is_number and (np.shape(value) or np.asarray(value).dtype.kind not in "biuf")
            except spaces.UNREADABLE:
                is_odd = True
            if is_odd or (name != "reward" and math.isnan(value)):  # NaN is true, and would end an episode.
                expected = "a number" if name == "reward" else "a bool"
                raise PluginError(f"{self.name}: {name}: expected {expected}, found {value!r:.80}")

    def _elements(self, actions: Leaves) -> Sequence[Any]:
        """The actions of all lanes as elements of the action space.

        Arrays among them are copies: an environment may change its action in place, and the agent's own array and the
        row of a lane in which somebody intervened must stay as they are.
        """
        if type(actions) is _ARRAY:
            return actions.copy()  # type: ignore[return-value]
        actions = copy_leaves(actions)
        return [spaces.unflatten(self.spec.action_space, pick_leaves(actions, j)) for j in range(self.n)]

    def _lose(self, j: int, error: Exception | SystemExit) -> None:
        """Lane j loses its episode, and begins another one in a new environment."""
        self._require_interface("step", error)
        try:
            self._replace(j, error)
        finally:  # If the worker ends now, it hands over its last rows, and no environment is called any more.
            self._end_call()
        self._is_usual = False
        if self._round.taken is None:
            self._round.taken = np.ones(self.n, bool)
        self._round.taken[j] = False
        self._waiting.append(j)

    def _replace(self, j: int, error: Exception | SystemExit) -> None:
        if self.keeper is None:
            raise error
        self.envs[j] = self.keeper.replace(self.envs[j], error)

    def _pick(self, j: int, info: Mapping[str, Any], actions: Leaves) -> None:
        """Take the wanted values of lane j from its ``info``."""
        if self._watch.unseen:
            self._watch.see(info)
        for key, column in self._picks.info.items():
            value = info.get(key)
            self._round.info[key][j] = as_shape(0 if value is None else value, column.shape, f"info['{key}']")
        instead = info.get(self._picks.intervention) if self._picks.intervention else None
        if instead is not None:
            self._is_usual = False
            self._intervene(self._round, actions, instead, j)

    def _put(self, j: int, obs: Any) -> None:
        """Keep the observation of lane j."""
        try:
            put_leaves(self._obs, j, spaces.flatten(self.spec.observation_space, obs))
        except spaces.UNREADABLE as error:
            raise self.misfit(obs) from error
        if type(obs) is _ARRAY and not isinstance(self._obs, dict) and spaces.holds_all(self._obs.dtype, obs.dtype):
            self._dtype = obs.dtype

    def wrap(self, wrapper: Callable[[AnyEnv], AnyEnv]) -> None:
        self.envs = [wrapper(env) for env in self.envs]

    def close(self) -> None:
        close_env(*self.envs)
