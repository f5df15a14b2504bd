"""PettingZoo: several agents in one environment (Terry et al., arXiv:2009.14471).

Here an agent is the policy that learns, so the place of one of PettingZoo's agents is called a *seat*. Each seat is a
lane. The seats of one environment are a *group*, and a *game* of a group lasts until nobody is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from common.action_masks import find_masks
from common.data import Array, Leaves
from common.envs.players import FrozenPolicies, FrozenPolicy, OpponentPool, ScriptedEnv, Source, Wanted, read_sides
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec
from common.lanes.building import narrowed
from common.lanes.interface_faults import InterfaceError, odd_infos, read_begin, read_outcome, read_step
from common.lanes.lanes import close_env
from common.leaves import describe_misfit, empty_leaves, pick_leaves, put_leaves
from common.plugins import part_loading
from common.spaces import UNREADABLE, AnySpace, flatten, unflatten

SEAT: Final = "seat"
"""The leaf of observations that says by its number which seat of its group observes."""
STATE: Final = "state"
"""The leaf of observations that is the state of the whole environment, the same for all seats of a group."""
_OBSERVATION: Final = "observation"
"""The leaf that an observation becomes which is no Dict, if a seat or state is put beside it."""
_TURN: Final = "active_agent"
"""The key that PettingZoo's conversion of turn games adds to each ``info``."""


def make(
    id: str,
    *,
    groups: int = 1,
    show_seat: bool = False,
    show_state: bool = False,
    players: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str = (),
    **params: Any,
) -> SeatsEnv:
    """Make an environment of PettingZoo; its agents are lanes that share one policy.

        env: {target: pettingzoo, params: {id: classic/connect_four-v3}}

    PettingZoo converts an ``AECEnv``: by ``aec_to_parallel`` if its metadata say ``is_parallelizable``, otherwise by
    ``turn_based_aec_to_parallel``, in which all agents step each time and only the action of one of them counts.

    Args:
        id: of PettingZoo's registry, or the function or class that makes the environment, as ``module:attr``.
        groups: how many of them to make; lane ``g * seats + s`` is seat s of environment g.
        show_seat: whether observations have a leaf ``seat``, Discrete: the number of the agent in ``possible_agents``.
            An observation that is no Dict becomes the leaf ``observation`` beside it.
        show_state: whether observations have a leaf ``state``, what the environment's ``state()`` returns.
        players: who plays, by agent: ``learner`` (also an agent that is not named), ``random``, ``pool`` for earlier
            models of the run, ``{saved: PATH}`` for a saved policy, a script as ``module:attr``, or a list of players
            of which one is drawn for each game. With a list of such mappings, the games of each group take one after
            another. One player instead plays all agents but one, which changes from game to game. Only agents that
            learn have lanes. See ``common.envs.players``.
        params: further arguments of the environment.

    Raises:
        PluginError: PettingZoo is not installed, there is no such environment or script, or it is none of PettingZoo.
        ConfigError: ``groups`` is below 1, the agents have different spaces, observations have a leaf ``seat`` or
            ``state`` already, the environment has no ``state_space``, or ``players`` names unknown agents or nobody
            who learns, or other numbers of learners in other games.
    """
    if groups < 1:
        raise ConfigError(f"env.params.groups: expected at least 1, found {groups}")
    try:
        import pettingzoo  # noqa: PLC0415 - installed by an extra
    except ImportError as error:
        raise PluginError(f"PettingZoo is not installed: pip install 'crossborder[pettingzoo]' ({error})") from error
    build = part_loading.load_part(id) if ":" in id else partial(_make_registered, pettingzoo, id)
    made: list[Any] = []
    try:
        for _ in range(groups):
            made.append(build(**params))  # noqa: PERF401 - those that were made are closed if another one raises
        return SeatsEnv(made, show_seat=show_seat, show_state=show_state, players=players)
    except BaseException:
        close_env(*made)
        raise


def _make_registered(pettingzoo: Any, id: str, **params: Any) -> Any:
    """The environment of an id in PettingZoo's registry; of a game that has both forms, the parallel one."""
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError  # noqa: PLC0415 - installed by an extra

    kind = "aec"
    try:
        with suppress(PettingZooRegistryError):
            pettingzoo.spec("parallel", id)
            kind = "parallel"
        return pettingzoo.make(kind, id, **params)
    except PettingZooRegistryError as error:
        raise PluginError(f"env.params.id: '{id}': {error}") from error


class SeatsEnv(VectorEnv[Any, Any, Any]):
    """Environments of PettingZoo as a vector environment with a lane for each seat.

    An agent may come later than others, or leave before them. While its seat is empty (``occupied``), the lane's action
    is ignored, and its values mean nothing. When nobody is left, ``reset`` begins the next game of the group.

    In a turn game, the mask of a waiting seat allows the first action alone, so a policy does not learn from actions
    that are ignored. The next call overwrites the arrays of observations.

    Raises:
        PluginError, ConfigError: see ``make``.
    """

    def __init__(
        self, envs: Sequence[Any], *, show_seat: bool = False, show_state: bool = False, players: Any = ()
    ) -> None:
        self._frozen = FrozenPolicies()
        self._groups = [_group_of(env, players, self._frozen) for env in envs]
        first = self._groups[0].env
        agents = list(envs[0].possible_agents)
        counts = {len(side.possible_agents) for group in self._groups for side in group.sides}
        if len(counts) > 1:
            raise ConfigError(
                f"env.params.players: expected the same number of learners in all games, found {sorted(counts)}"
            )
        self.seats = counts.pop()
        """The number of lanes of each group."""
        self.num_envs = self.seats * len(envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = getattr(first, "render_mode", None)
        space = _space_of_all(self._groups, "observation")
        self.single_action_space = _space_of_all(self._groups, "action")
        self._has_players = isinstance(first, ScriptedEnv)
        hidden = len(agents) * len(envs) if self._has_players else 0
        shown = dict[str, gymnasium.Space[Any]]()
        shown |= {SEAT: gymnasium.spaces.Discrete(len(agents))} if show_seat else {}
        shown |= {STATE: _state_space(envs[0])} if show_state else {}
        self._obs = _Observations(space, self.single_action_space, self.num_envs, shown, hidden)
        self.single_observation_space = self._obs.space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.occupied = np.zeros(self.num_envs, bool)
        """The lanes in which an agent is, ``[num_envs]`` bool."""
        for g, group in enumerate(self._groups):
            group.join(self._obs, self.occupied, g)
        self._fitting = WeakSet[FrozenPolicy]()  # The frozen policies that fit the seats.

    @property
    def pool(self) -> OpponentPool | None:
        """Gives the earlier models of the run that play; an actor sets it."""
        return self._frozen.pool

    @pool.setter
    def pool(self, pool: OpponentPool | None) -> None:
        self._frozen.pool = pool

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin games.

        Args:
            seed: group g gets ``seed + g``, or the g-th element of a list.
            options: with ``reset_mask``, bool ``[num_envs]``, only groups begin of which it names a lane and in which
                nobody is left.

        Raises:
            InterfaceError: the environment does not keep to PettingZoo's interface, or an observation does not fit.
        """
        infos: dict[str, Any] = {}
        wanted = (options or {}).get("reset_mask")
        numbers = [
            g
            for g, group in enumerate(self._groups)
            if wanted is None or (not group.here and wanted[group.slice].any())
        ]
        groups = [self._groups[g] for g in numbers]
        seeds = [seed[g] if isinstance(seed, Sequence) else None if seed is None else seed + g for g in numbers]
        calls = [group.begin(own) for group, own in zip(groups, seeds, strict=True)]
        if self._has_players:
            calls = self._finish(calls, groups)
        for group, found in zip(groups, calls, strict=True):
            self._add_infos(infos, group.note_begin(found), group.here)
        return self._obs.batch, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every group in which somebody is.

        Raises:
            InterfaceError: the environment does not keep to PettingZoo's interface, or an observation does not fit.
        """
        rewards, infos = np.zeros(self.num_envs), dict[str, Any]()
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        elements = actions if isinstance(actions, np.ndarray) else list(iterate(self.action_space, actions))
        groups = [group for group in self._groups if group.here]
        calls = [group.env.step({agent: elements[lane] for agent, lane in group.here.items()}) for group in groups]
        if self._has_players:
            calls = self._finish(calls, groups)
        for i, group in enumerate(groups):
            acting = group.here
            self._add_infos(infos, group.note_step(calls[i], rewards, terminated, truncated), acting)
        return self._obs.batch, rewards, terminated, truncated, infos

    def _finish(self, calls: list[Any], groups: Sequence[_Group]) -> list[Any]:
        """The results of calls. Agents that do not learn choose their actions until each call has ended."""
        found: list[Any] = [None] * len(calls)
        answers: dict[int, Any] = dict.fromkeys(range(len(calls)))
        while answers:
            wanted = dict[int, Wanted]()
            for i, answer in answers.items():
                try:
                    wanted[i] = calls[i].send(answer)
                except StopIteration as end:
                    found[i] = end.value
            answers = {**self._choose(wanted, groups)}
        return found

    def _choose(self, wanted: Mapping[int, Wanted], groups: Sequence[_Group]) -> dict[int, dict[Any, Any]]:
        """The actions of frozen policies, by call and agent; each policy chooses once for all its seats."""
        seats = defaultdict[FrozenPolicy, list[tuple[int, Any, int, bool]]](list)
        for i, choices in wanted.items():
            for agent, (policy, seen, begins) in choices.items():
                lane = groups[i].hidden[agent]
                self._obs.put({agent: self.num_envs + lane}, seen)
                self._obs.show_state(self.num_envs + lane, groups[i].env)
                seats[policy].append((i, agent, lane, begins))
        found: dict[int, dict[Any, Any]] = {i: {} for i in wanted}
        for policy, its_seats in seats.items():
            self._require_fit(policy)
            lanes = np.array([lane for _, _, lane, _ in its_seats])
            is_new = np.array([begins for _, _, _, begins in its_seats])
            actions = policy.sample(self._obs.pick(self.num_envs + lanes, policy.spec), is_new, lanes)
            for k, (i, agent, _, _) in enumerate(its_seats):
                found[i][agent] = unflatten(self.single_action_space, pick_leaves(actions, k))
        return found

    def _require_fit(self, policy: FrozenPolicy) -> None:
        if policy in self._fitting:
            return
        own = EnvSpec(self.single_observation_space, self.single_action_space)
        if policy.spec not in (own, narrowed(own)):
            raise ConfigError(
                f"env.params.players: expected a policy with the spaces of the seats that it plays, {narrowed(own)}, "
                f"found {policy.spec}"
            )
        self._fitting.add(policy)

    def _add_infos(self, infos: dict[str, Any], found: Mapping[Any, Any], lanes: Mapping[Any, int]) -> None:
        """Add the infos of a group's agents to those of all lanes."""
        try:
            for agent, info in found.items():
                if info and agent in lanes:
                    own = {key: value for key, value in info.items() if key != _TURN}
                    self._add_info(infos, own, lanes[agent])
        except AttributeError as error:
            raise odd_infos(found) from error

    def render(self) -> tuple[Any, ...]:
        """What each environment renders."""
        return tuple(group.env.render() for group in self._groups)

    def close_extras(self, **_: Any) -> None:
        """Close all environments."""
        for group in self._groups:
            group.env.close()


def _group_of(env: Any, players: Any, frozen: FrozenPolicies) -> _Group:
    """The group of an environment of either kind.

    Raises:
        PluginError: it is of neither kind, it does not name its agents, or a script cannot be loaded.
        ConfigError: there is no such agent or player, or nobody learns.
    """
    from pettingzoo import AECEnv, ParallelEnv  # noqa: PLC0415 - installed by an extra
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel  # noqa: PLC0415

    if not isinstance(env, AECEnv | ParallelEnv):
        raise PluginError(f"env.params.id: expected an environment of PettingZoo, found {type(env).__name__}")
    if not getattr(env, "possible_agents", None):
        raise PluginError(f"{env}: expected possible_agents, which names all agents that may come, found none")
    turns = None
    if not isinstance(env, ParallelEnv):
        if env.metadata.get("is_parallelizable", False):
            env = aec_to_parallel(env)
        else:
            env, turns = turn_based_aec_to_parallel(env), env
    return _Group(env, turns, read_sides(players, env.possible_agents, frozen))


class _Group:
    """One environment of PettingZoo, and who is there.

    Args:
        env: a ``ParallelEnv``.
        turns: of a turn game the ``AECEnv``, whose ``agent_selection`` says whose turn it is; otherwise None.
        sides: of the games, one after another: by agent, the players of which one plays in the place of the learner.
    """

    def __init__(self, env: Any, turns: Any, sides: Sequence[Mapping[Any, Sequence[Source]]]) -> None:
        self.sides = [ScriptedEnv(env, turns, side) if side else env for side in sides]
        """The environment as those see it who learn, for each of the sides that they take."""
        self.env, self._turns, self._agents = self.sides[0], turns, env.possible_agents
        self._games = 0
        self._left: set[Any] = set()
        self.here: dict[Any, int] = {}
        """By agent that is there, its lane."""

    def join(self, obs: _Observations, occupied: Array, number: int) -> None:
        """Take seats.

        Args:
            obs: of all lanes; the group writes those of its own lanes.
            occupied: of all lanes, too.
            number: of the group.
        """
        seats = len(self.env.possible_agents)
        self.slice = slice(number * seats, (number + 1) * seats)
        self.hidden = {agent: number * len(self._agents) + s for s, agent in enumerate(self._agents)}
        """By agent, the lane in which others than the learner act for it, counted after all lanes of learners."""
        self._obs, self._occupied = obs, occupied
        for agent, lane in self.hidden.items():
            obs.show_seat(self._agents.index(agent), len(occupied) + lane)
        self._take_seats()

    def _take_seats(self) -> None:
        """Note the lanes of those who learn."""
        self._lanes = {agent: self.slice.start + s for s, agent in enumerate(self.env.possible_agents)}
        for agent, lane in self._lanes.items():
            self._obs.show_seat(self._agents.index(agent), lane)

    def begin(self, seed: int | None) -> Any:
        """Begin a game, from a seed that also decides the side; return what the environment returns."""
        if len(self.sides) > 1:
            self._games = self._games + 1 if seed is None else seed
            self.env = self.sides[self._games % len(self.sides)]
            self._take_seats()
        if not isinstance(self.env, ScriptedEnv):
            return self.env.reset(seed=seed)
        if seed is not None:
            rng = np.random.default_rng(seed)
            for side in self.sides:
                side.rng = rng
        return self.env.begin(seed)

    def note_begin(self, found: Any) -> Mapping[Any, Any]:
        """Note what the environment returned at the beginning of a game; return the infos by agent."""
        obs, infos = read_begin(found)
        self.here, self._left = {}, set()
        self._occupied[self.slice] = False
        self._see_agents(obs, set())
        if not self.here:
            raise InterfaceError("reset: expected at least one agent in agents, found none")
        self._obs.show_state(self.slice, self.env)
        self._obs.fill(self.slice, ~self._occupied[self.slice], next(iter(self.here.values())))
        return infos

    def note_step(self, found: Any, rewards: Array, terminated: Array, truncated: Array) -> Mapping[Any, Any]:
        """Write the outcome of a step for the agents who are there, and return the infos by agent.

        Args:
            found: what the environment returned.
            rewards: of all lanes, ``[n]``, as the other two.
            terminated: see ``rewards``.
            truncated: see ``rewards``.
        """
        here = self.here
        obs, *_, infos = results = read_step(found)
        self._obs.put(here, obs)
        left = set()
        for agent, lane in here.items():
            rewards[lane], is_end, is_cut = read_outcome(agent, results)
            if is_end or is_cut:
                terminated[lane], truncated[lane] = is_end, is_cut
                left.add(agent)
        self._obs.show_state(self.slice, self.env)
        if left or self.env.agents != self._seen:
            self._see_agents(obs, left)
        elif self._turns is not None:
            self._hold_waiting()
        return infos

    def _see_agents(self, obs: Mapping[Any, Any], left: set[Any]) -> None:
        """Note who is there now, and take the observations of those who have come."""
        before, agents = self.here, self.env.agents
        self._seen = list(agents)
        self._left = (self._left | left) & set(agents)  # Some environments keep those in agents who have left.
        gone = before.keys() - left - set(agents)
        if gone:
            raise InterfaceError(
                f"step: expected agents to be terminated or truncated when they leave, '{min(map(str, gone))}' is no "
                "longer in agents and was neither"
            )
        try:
            self.here = {agent: self._lanes[agent] for agent in agents if agent not in self._left}
        except KeyError as error:
            raise InterfaceError(f"expected agents of possible_agents, {[*self._lanes]}, found {error}") from error
        came = {agent: lane for agent, lane in self.here.items() if agent not in before}
        self._obs.put(came, obs)
        for agent in left:
            self._occupied[before[agent]] = False
        for lane in came.values():
            self._occupied[lane] = True
        if self._turns is not None:
            self._hold_waiting()

    def _hold_waiting(self) -> None:
        """Leave the agents whose turn it is not only their first action, which the environment ignores."""
        self._obs.force([lane for agent, lane in self.here.items() if agent != self._turns.agent_selection])


class _Observations:
    """The newest observations of all lanes.

    Args:
        own: the space of an observation that the environment gives.
        actions: the space of an action.
        n: the number of lanes.
        shown: the spaces of the leaves ``seat`` and ``state``, if observations show them.
        hidden: the number of further lanes, which ``batch`` leaves out.
    """

    def __init__(
        self, own: AnySpace, actions: AnySpace, n: int, shown: Mapping[str, gymnasium.Space[Any]], hidden: int = 0
    ) -> None:
        self._own, self._shown = own, shown
        self.space = _with_leaves(own, shown) if shown else own
        self._all = empty_leaves(self.space, n + hidden)
        parts = self._all if isinstance(self._all, dict) else {}
        self._seats, self._states = (parts[name] if name in shown else None for name in (SEAT, STATE))
        self.batch: Any = unflatten(self.space, pick_leaves(self._all, slice(n)))
        """An element of the batched space, whose arrays are those of this object."""
        whole = unflatten(self.space, self._all)
        is_part = bool(shown) and not isinstance(own, gymnasium.spaces.Dict)
        self._leaves = flatten(own, whole[_OBSERVATION] if is_part else whole)  # The same memory.
        self._form = (None, None) if isinstance(self._leaves, dict) else (self._leaves.shape[1:], self._leaves.dtype)
        self._forced = _forced_masks(EnvSpec(own, actions)) if isinstance(self._leaves, dict) else {}

    def put(self, lanes: Mapping[Any, int], obs: Mapping[Any, Any]) -> None:
        """Keep the observations of these agents, each in its lane."""
        leaves, (shape, dtype) = self._leaves, self._form
        agent = None
        try:
            for agent, lane in lanes.items():
                found = obs[agent]
                # The usual case, twice as fast as the other one.
                if type(found) is np.ndarray and found.shape == shape and found.dtype == dtype:
                    leaves[lane] = found  # type: ignore[index] # Leaves of several parts have no form.
                else:
                    put_leaves(leaves, lane, flatten(self._own, found))
        except UNREADABLE as error:
            if agent not in obs:
                raise InterfaceError(f"observation: expected one for agent '{agent}', found none") from error
            raise InterfaceError(f"observation of agent '{agent}': {describe_misfit(self._own, obs[agent])}") from error

    def show_seat(self, number: int, lane: int) -> None:
        """Note which agent is in a lane; without seats in observations, and in lanes that are not kept, do nothing."""
        if self._seats is not None and lane < len(self._seats):
            self._seats[lane] = number

    def show_state(self, lanes: int | slice, env: Any) -> None:
        """Note the state of an environment in these lanes; without states in observations, do nothing."""
        if self._states is None:
            return
        state = env.state()
        if np.shape(state) != self._states.shape[1:]:
            raise InterfaceError(f"state: {describe_misfit(self._shown[STATE], state)}")
        self._states[lanes] = state

    def pick(self, lanes: Array, spec: EnvSpec) -> Leaves:
        """A copy of the observations in these lanes, in the dtypes of ``spec``."""
        return flatten(spec.observation_space, unflatten(self.space, pick_leaves(self._all, lanes)))

    def fill(self, lanes: slice, empty: Array, example: int) -> None:
        """Have the empty ones of these lanes show what another lane sees, so that every leaf is in its space."""
        for lane in np.flatnonzero(empty) + lanes.start:
            put_leaves(self._leaves, lane, pick_leaves(self._leaves, example))

    def force(self, lanes: Sequence[int]) -> None:
        """Have the masks of these lanes allow the first action alone; without masks, nothing changes."""
        for path, mask in self._forced.items():
            self._leaves[path][lanes] = mask


def _space_of_all(groups: Sequence[_Group], name: str) -> AnySpace:
    """The observation or action space that all agents have."""
    envs = [side for group in groups for side in group.sides]
    spaces = {agent: getattr(env, f"{name}_space")(agent) for env in envs for agent in env.possible_agents}
    (one, expected), *others = spaces.items()
    for agent, space in others:
        if space != expected:
            raise ConfigError(
                f"expected one {name} space for all agents, since they share a policy, found {expected} of '{one}' and "
                f"{space} of '{agent}'; pad them, as the wrappers pad_observations_v0 and pad_action_space_v0 of "
                "SuperSuit do, in the function that env.params.id names"
            )
    return expected  # type: ignore[no-any-return]


def _state_space(env: Any) -> gymnasium.Space[Any]:
    """The space of an environment's ``state()``."""
    space = getattr(env, "state_space", None)
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"env.params.show_state: expected an environment with a state_space, a Box, found {space}")
    return space


def _with_leaves(space: AnySpace, shown: Mapping[str, gymnasium.Space[Any]]) -> gymnasium.spaces.Dict:
    """The space with further leaves."""
    parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {_OBSERVATION: space}
    for name in shown.keys() & parts:
        raise ConfigError(f"env.params.show_{name}: observations have a leaf '{name}' already: leave it out")
    return gymnasium.spaces.Dict({**parts, **shown})


def _forced_masks(spec: EnvSpec) -> dict[str, Array]:
    """By the path of its leaf, the mask that allows the first action of each component alone; empty without masks."""
    masks = find_masks(spec)
    if masks is None:
        return {}
    whole = np.concatenate([np.arange(size) == 0 for size in masks.sizes])
    leaves = empty_leaves(spec.observation_space, 1)
    assert isinstance(leaves, dict)
    ends = np.cumsum([leaves[path].shape[-1] for path in masks.paths])
    return dict(zip(masks.paths, np.split(whole, ends[:-1]), strict=True))
