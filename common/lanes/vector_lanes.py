"""Vector environments: n lanes in one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from common import spaces
from common.data import Array, Leaves
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.lanes.interface_faults import require_info, require_pair
from common.lanes.lanes import (
    MAX_LANES,
    OPPONENT,
    RESULT,
    SEEDS,
    SUCCESS,
    AnyEnv,
    GameResult,
    Lanes,
    Picks,
    Round,
    close_env,
)
from common.leaves import as_shape, by_path, copy_leaves, describe, empty_leaves, on_host, pick_leaves, put_leaves


class VectorLanes(Lanes):
    """A vector environment, in any of gymnasium's three modes of autoreset; all lanes are handled at once.

    Args:
        env: with the interface of ``gymnasium.vector.VectorEnv``. Its arrays may be tensors. Without
            ``metadata["autoreset_mode"]`` it is assumed to reset a lane at the next step. Some of its lanes may be
            empty for a while, if it has an attribute ``occupied``: see ``common.envs.pettingzoo:SeatsEnv``.
        spec: of one lane, with the dtypes that are recorded.
        picks: the values to take from ``info``.
        name: of the environment in messages.

    Raises:
        PluginError: it has more lanes than a row can name, or steps only some of its lanes at once.
    """

    def __init__(self, env: AnyEnv, spec: EnvSpec, picks: Picks, name: str = "env") -> None:
        super().__init__(spec, int(env.num_envs), picks, name)
        if not 1 <= self.n <= MAX_LANES:
            raise PluginError(f"{name}: expected 1 to {MAX_LANES} lanes, found {self.n}")
        self._is_pool = hasattr(env, "all_env_ids")
        self.seats = int(getattr(_inmost(env), "seats", 1))
        self._has_seats = hasattr(_inmost(env), "occupied")
        self._occupied, self._seen = np.zeros(self.n, bool), b""  # The lanes with somebody to act, and as bytes.
        self._empty: Array | None = None  # The other lanes; None: there are none.
        at_once = env.config["batch_size"] if self._is_pool else self.n
        if at_once != self.n:
            raise PluginError(f"env.params.batch_size: expected {self.n}, so that all lanes step, found {at_once}")
        self._env = env
        self._mode = autoreset_mode(env)
        self._is_declared = self._is_pool or declares_autoreset(env)
        self._obs = empty_leaves(spec.observation_space, self.n)
        parts = spaces.leaves_of(spec.observation_space)
        self._shapes = {path: (self.n, *(leaf.shape or ())) for path, leaf in parts.items()}
        self._seed: int | None = None
        self._is_new = True  # Whether all lanes are to be reset.
        self._done: Array | None = None  # The lanes whose episodes ended at the last step.
        self._reset_now: Array | None = None  # The lanes that the last step reset.
        self._rounds = 0
        self._returns, self._began = np.zeros(self.n), np.zeros(self.n, np.int64)  # Of the present episodes.

    def reset(self, seed: int | None = None) -> None:
        self._seed, self._is_new = None if seed is None else seed % SEEDS, True
        self._done = self._reset_now = None  # The next step is a step in every lane, even if its episode has ended.

    def observe(self) -> Leaves:
        self.begins, self._reset_now = self._reset_now, None
        if self._is_new:
            self._obs, self._is_new = self._reset(), False
            self.begins = np.ones(self.n, bool)
        elif self._done is not None and self._mode is not AutoresetMode.NEXT_STEP:
            self.begins, self._done = self._done if self.begins is None else self._done | self.begins, None
            if self._mode is AutoresetMode.DISABLED and not (self._has_seats and not self._is_over().any()):
                self._obs = self._reset(self.begins)
        if self._has_seats:
            self._see_seats()
        if self.begins is not None:
            self._returns[self.begins], self._began[self.begins] = 0.0, self._rounds
        if self.masks is not None:  # In a lane that the next step resets, the action means nothing.
            idle = self._idle
            acting = np.arange(self.n) if idle is None else np.flatnonzero(~idle)
            self._require_allowed(pick_leaves(self._obs, acting), acting)
        return self._obs

    @property
    def _idle(self) -> Array | None:
        """The lanes that the next step only resets, or in which nobody is, ``[n]`` bool; None: there are none."""
        return self._done if self._empty is None else self._empty

    def _see_seats(self) -> None:
        """Note which lanes are empty. Those who have just come begin, and those who have left do not."""
        occupied = np.asarray(_inmost(self._env).occupied)
        seen = occupied.tobytes()
        if self.begins is None and seen == self._seen:  # The usual case.
            return
        begins = occupied & ~self._occupied
        if self.begins is not None:
            begins |= self.begins & occupied
        self._occupied, self._seen = occupied.copy(), seen
        self._empty = None if occupied.all() else ~occupied
        self.begins = begins if begins.any() else None

    def over(self, ended: Array) -> Array:
        if not self._has_seats:
            return ended
        return np.flatnonzero(self._is_over().repeat(self.seats))

    def _is_over(self) -> Array:
        """The groups in which nobody is left, ``[n / seats]`` bool."""
        occupied: Array = np.asarray(_inmost(self._env).occupied)
        return ~np.logical_or.reduce(occupied.reshape(-1, self.seats), axis=1)  # type: ignore[no-any-return]

    def _reset(self, lanes: Array | None = None) -> Leaves:
        """Reset these lanes, or all lanes if it is None or if the environment raised and was replaced."""
        busy = self.busy
        try:
            while True:
                seed, self._seed = self._seed, None
                seeded = {} if seed is None or self._is_pool else {"seed": seed}  # An EnvPool was made with its seed.
                arguments = seeded if lanes is None else {"options": {"reset_mask": lanes.copy()}}
                busy.since = monotonic()
                try:
                    found = self._env.reset(**arguments)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - the keeper logs it, or it is raised
                    self._require_interface("reset", error)
                    self._replace(error)
                    lanes, self.begins = None, np.ones(self.n, bool)
                else:
                    require_pair(self.name, found)
                    self._see_reset(found[1])
                    return self._batch(found[0])
        finally:
            self._end_call()

    def step(self, actions: Leaves) -> Round:
        idle = self._idle
        self.busy.since = monotonic()
        try:
            obs, reward, terminated, truncated, infos = self._env.step(
                spaces.unflatten(self.spec.action_space, copy_leaves(actions))  # It may change them in place.
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the keeper logs it, or it is raised
            self._require_interface("step", error)
            return self._lose(error)
        finally:
            self._end_call()
        require_info(self.name, infos)
        self._obs, self._reset_now, self._done = self._batch(obs), None if self._has_seats else idle, None
        outcome = Round(
            self._per_lane("reward", reward),
            self._per_lane("terminated", terminated).astype(bool, copy=False),
            self._per_lane("truncated", truncated).astype(bool, copy=False),
            self._obs,
        )
        if not self._is_declared:
            self._require_declaration(outcome, infos, idle)
        self._rounds += 1
        self._returns += outcome.reward
        done = outcome.terminated | outcome.truncated
        # This step has only reset idle lanes, or nobody is in them: they have taken no step that could end.
        if idle is not None:
            outcome.taken = self._occupied if self._has_seats else ~idle
            done &= outcome.taken
        if done.any():
            self._end(outcome, done, infos)
        self._pick(outcome, infos, actions)
        return outcome

    def _per_lane(self, name: str, values: Any) -> Array:
        """The rewards or flags of all lanes, ``[n]``."""
        try:
            found: Array = on_host(values)
        except spaces.UNREADABLE as error:
            raise PluginError(
                f"{self.name}: {name}: expected a number for each lane, [{self.n}], found {describe(values)}"
            ) from error
        if found.shape != (self.n,) or found.dtype.kind not in "biuf":
            raise PluginError(
                f"{self.name}: {name}: expected a number for each lane, [{self.n}], found {found.dtype} "
                f"{list(found.shape)}"
            )
        if name != "reward" and found.dtype.kind == "f" and np.isnan(found).any():  # NaN is true.
            raise PluginError(f"{self.name}: {name}: expected a bool for each lane, found {found}")
        return found

    def _require_declaration(self, outcome: Round, infos: Mapping[str, Any], idle: Array | None) -> None:
        """Refuse an environment that resets lanes in the step that ends their episodes and does not declare it."""
        goes_on = (
            idle is not None and (outcome.reward.astype(bool) | outcome.terminated | outcome.truncated)[idle].any()
        )
        if goes_on or "final_obs" in infos or "final_observation" in infos:
            why = (
                "the step after an episode's end gave a reward or an end" if goes_on else "infos has last observations"
            )
            raise PluginError(
                f"{self.name}: expected metadata['autoreset_mode'], which says when a lane begins its next episode, "
                f"found none: {why}, so the mode is probably SAME_STEP. Set metadata = {{'autoreset_mode': "
                "gymnasium.vector.AutoresetMode.SAME_STEP}, or NEXT_STEP or DISABLED, in the environment or in the "
                "function that env.target names"
            )

    @property
    def pool(self) -> Any:
        """Gives the earlier models of the run that play seats of the environment; None: nobody plays them."""
        return getattr(_inmost(self._env), "pool", None)

    @pool.setter
    def pool(self, pool: Any) -> None:
        _inmost(self._env).pool = pool

    def _replace(self, error: Exception | SystemExit) -> None:
        if self.keeper is None:
            raise error
        pool = self.pool
        self._env = self.keeper.replace(self._env, error)
        if pool is not None:
            self.pool = pool

    def _end(self, outcome: Round, done: Array, infos: Mapping[str, Any]) -> None:
        self._done, outcome.ended = done, np.flatnonzero(done)
        outcome.returns = self._returns[done].tolist()
        outcome.lengths = (self._rounds - self._began[done]).tolist()
        if self._mode is AutoresetMode.SAME_STEP:
            outcome.final_obs = self._final_obs(infos, outcome.ended)
        else:
            outcome.final_obs = pick_leaves(self._obs, outcome.ended)
        self._require_allowed_at_cut(outcome)
        outcome.success = [None] * len(outcome.ended)
        if infos:
            self._read_ends(outcome, outcome.ended, done, infos)

    def _read_ends(self, outcome: Round, ended: Array, done: Array, infos: Mapping[str, Any]) -> None:
        """Read which of the episodes that ended were a success, and how games ended, from the infos."""
        is_known, is_success = np.zeros(self.n, bool), np.zeros(self.n, bool)
        for info, lanes in self._infos(infos, done):
            found = _find(info, SUCCESS, lanes)
            if found is not None:
                values, having = found
                is_known |= having
                is_success[having] = _numbers(SUCCESS, values, self.n)[having]
            if self._has_seats:
                outcome.results += _results_in(info, lanes)
        outcome.success = [bool(is_success[j]) if is_known[j] else None for j in ended]

    def _infos(self, infos: Mapping[str, Any], done: Array | None) -> list[tuple[Mapping[str, Any], Array]]:
        """The infos of this step, each with the lanes ``[n]`` bool to which it applies.

        In a lane that was reset at the same step, ``final_info`` has the values of the step.
        """
        everywhere = np.ones(self.n, bool)
        if done is None or self._mode is not AutoresetMode.SAME_STEP:
            return [(infos, everywhere)]
        final = infos.get("final_info")
        return [(infos, ~done), (final if isinstance(final, Mapping) else self._merge(final), done)]

    def _merge(self, final: Any) -> dict[str, Any]:
        """Infos of single lanes, ``[n]`` of dict or None, in the form of a vector environment's infos."""
        try:
            infos = [None] * self.n if final is None else list(final)
        except TypeError:
            infos = []
        if len(infos) != self.n or not all(info is None or isinstance(info, Mapping) for info in infos):
            raise PluginError(
                f"{self.name}: info['final_info']: expected a dict, or a dict or None for each lane, [{self.n}], found "
                f"{final!r:.80}"
            )
        merged: dict[str, Any] = {}
        for lane, info in enumerate(infos):
            for key, value in (info or {}).items():
                merged.setdefault(key, np.full(self.n, None, dtype=object))[lane] = value
        return merged

    def _final_obs(self, infos: Mapping[str, Any], ended: Array) -> Leaves:
        """The last observations of lanes that have begun another episode already."""
        found = infos.get("final_obs", infos.get("final_observation"))
        if found is None:
            raise PluginError(
                f"{self.name}: with autoreset at the same step, infos['final_obs'] is expected; it is missing"
            )
        if not (isinstance(found, np.ndarray) and found.dtype == object):
            return pick_leaves(self._batch(found), ended)
        leaves = empty_leaves(self.spec.observation_space, len(ended))
        for i, lane in enumerate(ended):
            obs = found[lane]
            try:
                obs = on_host(obs)
                put_leaves(leaves, i, spaces.flatten(self.spec.observation_space, obs))
            except spaces.UNREADABLE as error:
                raise self.misfit(obs) from error
        return leaves

    def _pick(self, outcome: Round, infos: Mapping[str, Any], actions: Leaves) -> None:
        """Take the wanted values from the infos of all lanes."""
        if not self._picks_any:
            return
        done = None if outcome.ended is None else self._done
        for info, lanes in self._infos(infos, done):
            if self._watch.unseen:
                self._watch.see(info)
            for key, column in self._picks.info.items():
                picked = outcome.info.setdefault(key, np.zeros((self.n, *column.shape), column.dtype))
                found = _find(info, key, lanes)
                if found is not None:
                    values, having = found
                    picked[having] = as_shape(values, (self.n, *column.shape), f"info['{key}']")[having]
            found = _find(info, self._picks.intervention, lanes) if self._picks.intervention else None
            if found is not None:
                instead, having = found
                if having.any():
                    self._intervene(outcome, actions, instead, having)
        if outcome.ended is not None:
            self._watch.end(len(outcome.ended))

    def _lose(self, error: Exception | SystemExit) -> Round:
        """All lanes lose their episodes, and begin others in a new environment."""
        self._replace(error)
        self.reset()
        nothing = np.zeros(self.n, bool)
        return Round(np.zeros(self.n), nothing, nothing, self._obs, taken=nothing)

    def _batch(self, obs: Any) -> Leaves:
        """Observations of all lanes as leaves, which torch can read: it knows no negative strides."""
        try:
            obs = on_host(obs)
            leaves = spaces.flatten(self.spec.observation_space, obs)
        except spaces.UNREADABLE as error:
            raise self.misfit(obs, (self.n,)) from error
        parts = by_path(leaves)
        for path, leaf in parts.items():
            if leaf.shape != self._shapes[path]:
                raise self.misfit(obs, (self.n,))
            if not leaf.flags.c_contiguous and min(leaf.strides) < 0:
                parts[path] = leaf.copy()
        return parts if isinstance(leaves, dict) else parts[""]

    def wrap(self, wrapper: Callable[[AnyEnv], AnyEnv]) -> None:
        self._env = wrapper(self._env)

    def close(self) -> None:
        close_env(self._env)


def is_vector(env: AnyEnv) -> bool:
    """Whether an environment steps several lanes at once, as an EnvPool does, which is an ``Env`` too."""
    names = ("num_envs", "single_observation_space", "single_action_space")
    return isinstance(env, VectorEnv) or all(hasattr(env, name) for name in names)


def _inmost(env: AnyEnv) -> AnyEnv:
    """The vector environment inside all wrappers: gymnasium's wrappers do not pass its own attributes on."""
    return getattr(env, "unwrapped", env)


def declares_autoreset(env: AnyEnv) -> bool:
    """Whether a vector environment says how it begins the next episode of a lane."""
    return "autoreset_mode" in (getattr(env, "metadata", None) or {})


def autoreset_mode(env: AnyEnv) -> AutoresetMode:
    """How a vector environment begins the next episode of a lane."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)


def _find(infos: Mapping[str, Any], key: str, among: Array) -> tuple[Any, Array] | None:
    """The values of a key in the infos of a vector environment, and which lanes of ``among`` have it, ``[n]`` bool.

    None if the infos lack the key.
    """
    if key not in infos:
        return None
    mask = infos.get(f"_{key}")
    try:
        lanes = among if mask is None else among & _numbers(f"_{key}", np.asarray(on_host(mask), bool), len(among))
        values = on_host(infos[key])
        if isinstance(values, np.ndarray) and values.dtype == object:  # A lane without the key has None.
            known = [value for value in values if value is not None]
            blank = np.zeros_like(known[0]) if known else 0
            lanes = lanes & np.array([value is not None for value in values])
            values = np.array([blank if value is None else value for value in values])
    except spaces.UNREADABLE as error:
        raise PluginError(
            f"env: info['{key}']: expected values that numpy can read, of one shape in all lanes, [{len(among)}], "
            f"found {infos[key]!r:.80}"
        ) from error
    return values, lanes


def _numbers(key: str, values: Any, n: int) -> Array:
    """Numbers or bools of all lanes in the infos of a vector environment, ``[n]`` or ``[n, 1]``, as ``[n]``."""
    found: Array = on_host(values)
    if np.shape(found) == (n, 1):
        found = found[:, 0]
    if np.shape(found) != (n,) or found.dtype.kind not in "biuf":
        raise PluginError(
            f"env: info['{key}']: expected a number or bool for each lane, [{n}], found {describe(values)}"
        )
    return found


def _results_in(info: Mapping[str, Any], among: Array) -> list[GameResult]:
    """The results of games that have ended in these lanes, ``[n]`` bool."""
    found = _find(info, RESULT, among)
    if found is None:
        return []
    results, having = found
    opponents, known = _find(info, OPPONENT, among) or (results, np.zeros_like(having))
    results, opponents = _numbers(RESULT, results, len(among)), _numbers(OPPONENT, opponents, len(among))
    return [
        GameResult(lane, int(results[lane]), int(opponents[lane]) if known[lane] else None)
        for lane in np.flatnonzero(having).tolist()
    ]
