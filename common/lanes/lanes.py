"""Lanes: n copies of one environment that step together, whether one by one or as a vector environment.

A sampler and an evaluator act in this loop:

    lanes.reset(seed)
    while …:
        obs = lanes.observe()
        if lanes.begins is not None:
            agent.begin(lanes.begins)
        taken = lanes.step(agent.sample(obs))

Lanes whose episodes have ended begin the next ones by themselves.
"""

from __future__ import annotations

import abc
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from common import spaces
from common.action_masks import MASK, OBEY, find_masks
from common.data import Array, Column, Items, Leaves
from common.errors import PluginError
from common.hints import nearest
from common.interfaces import EnvSpec
from common.lanes.interface_faults import Call, require_interface
from common.leaves import copy_leaves, describe_misfit, pick_leaves, put_leaves
from common.process.signals import put_signals_back

log = logging.getLogger(__name__)
CLOSE_SECONDS: Final = 10.0
"""The time that the environments of a process have to close: less than a parent gives a child for its whole end."""
AnyEnv = Any
"""A ``gymnasium.Env``, a ``gymnasium.vector.VectorEnv``, or an object with the interface of one of them."""
MAX_LANES: Final = 1 << 16
"""The column ``lane`` has 16 bits."""
SUCCESS: Final = "is_success"
"""The key of ``info`` by which gymnasium's robotics environments say at the end whether an episode succeeded."""
RESULT: Final = "result"
"""The key of ``info`` that says at the end of a game against others whether it was won (1), drawn (0) or lost (-1)."""
OPPONENT: Final = "opponent"
"""The key of ``info`` that names the earlier model of the run which plays, by its opt steps."""
DISCARDED: Final = "discarded"
"""The key of ``info`` that says whether a person ended the episode as not worth keeping."""
SEEDS: Final = 1 << 32
"""Environments get seeds below this number: many draw from generators that take no more than 32 bits."""


def close_env(*envs: AnyEnv) -> None:
    """Close environments, one after another; what goes wrong is only logged, since a run does not fail because of it.

    An environment may wait forever for a simulator, and Python cannot end such a wait. So a separate thread closes
    them, which is left behind after ``CLOSE_SECONDS``; the end of the process ends it.
    """
    closing = threading.Thread(target=_close, args=envs, name="closing", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    if closing.is_alive():
        stack = "".join(traceback.format_stack(sys._current_frames().get(closing.ident or 0)))
        log.error("an environment's close() has not returned within %g s and is left:\n%s", CLOSE_SECONDS, stack)


def _close(*envs: AnyEnv) -> None:
    for env in envs:
        try:
            env.close()
        except (Exception, SystemExit):
            log.warning("an environment could not be closed", exc_info=True)


class EnvKeeper(Protocol):
    """Watches environments: it knows how long one has been busy, and replaces an environment that has raised.

    The actor has one, ``actor.sampling.guard``, which this package may not import.
    """

    busy: Busy

    def replace(self, env: AnyEnv, error: Exception | SystemExit) -> AnyEnv:
        """Return a new environment to replace ``env``, which raised ``error``.

        Raises:
            Exception: ``error``, if environments raise too often, or that of the new environment.
        """


class Busy:
    """The monotonic time at which an environment became busy, in seconds; infinite while none is busy.

    The acting thread writes it and a watchdog's thread reads it, without a lock: it is one number, and a watchdog that
    reads it a moment too early looks again.
    """

    since = math.inf


@dataclass(frozen=True)
class Picks:
    """The values that are picked from ``info``.

    Args:
        info: by key, the column that takes the value; a value that ``info`` lacks is 0.
        intervention: the key of the action that was executed instead of the agent's; None if there is no such key.
    """

    info: Mapping[str, Column] = field(default_factory=dict)
    intervention: str | None = None


class KeyWatch:
    """Warns of keys that a configuration picks from ``info`` but an environment never gives: they may be misspelt.

    It warns after the first episode, and whenever the number of episodes has doubled. The key of interventions may be
    absent as long as nobody intervenes: of that key it warns only if ``info`` has a similar key.
    """

    def __init__(self, picks: Picks) -> None:
        self.unseen = {*picks.info, *([picks.intervention] if picks.intervention else [])}
        """The keys that no ``info`` has had so far."""
        self._intervention, self._known = picks.intervention, set[str]()
        self._episodes, self._warn_at = 0, 1

    def see(self, keys: Iterable[str]) -> None:
        """Note the keys of one ``info``; calls are not needed when ``unseen`` is empty."""
        self._known.update(key for key in keys if not key.startswith(("_", "final_")))
        self.unseen -= self._known

    def end(self, episodes: int) -> None:
        """Count episodes that have ended, and warn if it is time."""
        self._episodes += episodes
        if self.unseen and self._episodes >= self._warn_at:
            self._warn_at = 2 * self._episodes
            for key in sorted(self.unseen):
                self._warn(key)

    def _warn(self, key: str) -> None:
        hint = nearest(key, self._known)
        if key != self._intervention:
            log.warning(
                "env.info.%s: no info had this key in %d episodes, so 0 is recorded%s", key, self._episodes, hint
            )
        elif "did you mean" in hint:
            log.warning("env.intervention: no info had the key '%s' in %d episodes%s", key, self._episodes, hint)


class GameResult(NamedTuple):
    """How a game against others ended in one lane."""

    lane: int
    result: int
    """1, 0 or -1: won, drawn or lost."""
    opponent: int | None
    """The opt steps of the earlier model of the run that played; None if none did."""


@dataclass(eq=False)
class Round:
    """The outcome of one step in each of n lanes. Its arrays are valid until the next ``step``."""

    reward: Array
    """``[n]``, float."""
    terminated: Array
    """``[n]`` bool."""
    truncated: Array
    """``[n]`` bool."""
    obs: Leaves
    """The observations after the step, ``[n, *shape]``. In a lane of ``ended``, it may be the first observation of the
    next episode; ``final_obs`` has the last observation of the ended episode."""
    ended: Array | None = None
    """The lanes whose episodes ended, ``[k]`` in ascending order; None if none did."""
    final_obs: Leaves | None = None
    """The true last observations of the lanes in ``ended``, ``[k, *shape]``."""
    taken: Array | None = None
    """The lanes that took a step, ``[n]`` bool; None: all. The other lanes lost their episodes, only began the next
    episodes, or are empty, and their entries in all arrays mean nothing."""
    info: Items = field(default_factory=dict)
    """The values of ``Picks.info`` by key, ``[n, *shape]``."""
    action: Leaves | None = None
    """The executed actions, ``[n, *action_shape]``; None: the actions that ``step`` was called with."""
    intervened: Array | None = None
    """The lanes in which another action than the agent's was executed, ``[n]`` bool; None: none."""
    returns: list[float] = field(default_factory=list)
    """For each lane of ``ended`` the sum of the rewards of its episode."""
    lengths: list[int] = field(default_factory=list)
    """For each lane of ``ended`` the steps of its episode."""
    success: list[bool | None] = field(default_factory=list)
    """For each lane of ``ended`` whether its episode succeeded; None if the environment does not say."""
    results: list[GameResult] = field(default_factory=list)
    """Of the lanes of ``ended`` whose episodes were games against others."""


class Lanes(abc.ABC):
    """n copies of one environment that step together.

    Raises:
        ConfigError: observations have an action mask that does not fit the actions.
    """

    seats = 1
    """The lanes of one environment, one after another: more than 1 if it has several agents."""
    pool: Any = None
    """Gives the earlier models of the run that play seats of the environment (``common.envs.players``); None: none."""

    def __init__(self, spec: EnvSpec, n: int, picks: Picks, name: str) -> None:
        self.spec, self.n, self.name = spec, n, name
        self._picks, self._picks_any = picks, bool(picks.info or picks.intervention)
        self._watch = KeyWatch(picks)
        self.begins: Array | None = None
        """The lanes whose present observations begin an episode, ``[n]`` bool; None if none does."""
        self.keeper: EnvKeeper | None = None
        self.busy = Busy()
        self.masks = find_masks(spec)
        """The action masks in the observations; None if there are none."""
        self._is_told = False  # Whether the log has said that masks in ``info`` are not obeyed.

    @abc.abstractmethod
    def reset(self, seed: int | None = None) -> None:
        """Have all lanes begin episodes at the next ``observe``, lane j with ``seed + j``."""

    @abc.abstractmethod
    def observe(self) -> Leaves:
        """The observations to act on, ``[n, *shape]``, valid until the next ``step``; sets ``begins``.

        If a lane's episode has ended, its next episode begins here, unless the environment began it by itself.
        """

    @abc.abstractmethod
    def step(self, actions: Leaves) -> Round:
        """Take one step in every lane.

        Args:
            actions: ``[n, *action_shape]``, for a structured space one array for each leaf, by path.
        """

    def over(self, ended: Array) -> Array:
        """The lanes ``[k]`` whose games are over after a step, of which ``ended`` are the lanes whose episodes ended.

        The game of an environment with several agents goes on as long as one of them is there.
        """
        return ended

    def misfit(self, obs: Any, lanes: tuple[int, ...] = ()) -> PluginError:
        """The error about an observation that does not fit its space; with ``lanes`` a batch ``[*lanes, *shape]``."""
        found = describe_misfit(self.spec.observation_space, obs, lanes)
        return PluginError(
            f"{self.name}: observation: {found}; correct the space or the values, in the environment or in a wrapper "
            "(env.wrappers)"
        )

    def require_indices(self, obs: Leaves) -> None:
        """Look at observations ``[n, *shape]`` with which an agent failed: it may have used one as an index.

        Raises:
            PluginError: one of their whole numbers is outside its space.
        """
        given = spaces.unflatten(self.spec.observation_space, obs)
        if describe_misfit(self.spec.observation_space, given, (self.n,)):
            raise self.misfit(given, (self.n,))

    def _require_allowed(self, obs: Leaves, lanes: Array) -> None:
        """Look at the masks in observations, ``[k, *shape]`` of lanes ``[k]``, after which an episode goes on."""
        if self.masks is None:
            return
        found = self.masks.find_dead_ends(obs)
        if len(found):
            raise PluginError(
                f"{self.name}: observation: leaf '{MASK}': expected at least one allowed action in lane "
                f"{lanes[found[0]]}, found none; only the last observation of a terminated episode may allow none"
            )

    def _require_allowed_at_cut(self, outcome: Round) -> None:
        """Look at the masks in the last observations of episodes that were cut off, on which an agent bootstraps."""
        if self.masks is not None and outcome.ended is not None and outcome.final_obs is not None:
            cut = ~outcome.terminated[outcome.ended]
            self._require_allowed(pick_leaves(outcome.final_obs, cut), outcome.ended[cut])

    def _see_reset(self, info: Mapping[str, Any]) -> None:
        """Warn once if masks are in ``info`` alone, where agents do not see them."""
        if MASK in info and self.masks is None and not self._is_told:
            self._is_told = True
            log.warning("%s: info has an %s, which agents do not obey: %s", self.name, MASK, OBEY)

    def _intervene(self, outcome: Round, actions: Leaves, instead: Any, lanes: int | Array) -> None:
        """Note that another action than the agent's was executed in a lane, or a batch of others in lanes ``[n]``."""
        space, is_batch = self.spec.action_space, not isinstance(lanes, int)
        if outcome.action is None or outcome.intervened is None:
            outcome.action, outcome.intervened = copy_leaves(actions), np.zeros(self.n, bool)
        try:
            given = spaces.flatten(space, instead)
            put_leaves(outcome.action, lanes, pick_leaves(given, lanes) if is_batch else given)
        except spaces.UNREADABLE as error:
            misfit = describe_misfit(space, instead, (self.n,) if is_batch else ())
            what = "actions" if is_batch else "action"
            raise PluginError(f"{self.name}: info['{self._picks.intervention}']: {what}: {misfit}") from error
        outcome.intervened[lanes] = True

    def _end_call(self) -> None:
        """Note that no environment is busy any more, and put back the signals that one may have taken."""
        since, self.busy.since = self.busy.since, math.inf
        put_signals_back(since)

    def _require_interface(self, call: Call, error: BaseException) -> None:
        """Raise PluginError if an exception of a call shows that the environment has another interface."""
        require_interface(self.name, call, error, self.spec.action_space, Lanes)

    def keep(self, keeper: EnvKeeper) -> None:
        """Have ``keeper`` replace environments that raise: their lanes lose their episodes, and begin others.

        Without a keeper, ``observe`` and ``step`` raise the exceptions of environments.
        """
        self.keeper, self.busy = keeper, keeper.busy

    @abc.abstractmethod
    def wrap(self, wrapper: Callable[[AnyEnv], AnyEnv]) -> None:
        """Replace each environment by the result of ``wrapper``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close all environments."""
