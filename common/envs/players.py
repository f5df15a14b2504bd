"""Opponents: who plays the seats of an environment of PettingZoo on which no agent learns.

A script makes a player for each game, so a player may keep what it likes until the game ends:

    def greedy(spec: EnvSpec, rng: np.random.Generator) -> Player:
        return lambda obs: int(np.argmax(obs["action_mask"]))

An observation and an action are elements of the spaces in ``spec``, as the environment has them. A *frozen policy*, an
earlier model of the run or a saved policy, plays in many games at once, so the environment asks it for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from common.action_masks import RandomActions
from common.data import Array, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.lanes.interface_faults import GameResults, InterfaceError, odd_infos, read_begin, read_outcome, read_step
from common.lanes.lanes import OPPONENT, RESULT
from common.leaves import describe, pick_leaves
from common.plugins import part_loading
from common.spaces import flatten, unflatten

Player = Callable[[Any], Any]
"""Chooses an action for an observation."""
Script = Callable[[EnvSpec, np.random.Generator], Player]
"""Makes the player of one game; random numbers of the player come from the generator."""
LEARNER: Final = "learner"
RANDOM: Final = "random"
POOL: Final = "pool"
"""The player whose games earlier models of the run play."""
SAVED: Final = "saved"
"""The key under which a player names the directory of a saved policy."""
_LOAD: Final = "learner.storage.checkpoint:load_policy"
MAX_GAMES: Final = 1000
"""So many games in a row may end before the learner has acted."""


@runtime_checkable
class FrozenPolicy(Protocol):
    """A policy that never changes; ``common.lanes.policy:Policy`` is one."""

    spec: EnvSpec
    """The spaces of one seat."""
    opt_steps: int
    """The opt steps of its model."""

    def sample(self, obs: Leaves, begins: Array, lanes: Array) -> Leaves:
        """Choose actions for some of its lanes, ``[k]`` int64; ``begins``, ``[k]`` bool, says where games begin."""


class OpponentPool(Protocol):
    """Frozen models of which one is drawn for each game."""

    def draw(self, rng: np.random.Generator) -> FrozenPolicy:
        """The model that plays the next game."""


class FrozenPolicies:
    """The frozen policies that play seats of an environment."""

    def __init__(self) -> None:
        self.pool: OpponentPool | None = None
        """The earlier models of the run; None outside an actor."""
        self._saved: dict[str, FrozenPolicy] = {}

    def draw(self, _: EnvSpec, rng: np.random.Generator) -> FrozenPolicy:
        """Draw an earlier model of the run.

        Raises:
            ConfigError: there is no run.
        """
        if self.pool is None:
            raise ConfigError(
                f"env.params.players: '{POOL}' plays only where actors of a run act; name other players here, in an "
                "evaluation by env.eval_params.players"
            )
        return self.pool.draw(rng)

    def load(self, path: str) -> FrozenPolicy:
        """The saved policy in a directory, which is read once.

        Raises:
            CheckpointError, PluginError: it cannot be loaded.
        """
        if path not in self._saved:
            self._saved[path] = part_loading.load_part(_LOAD)(path)
        return self._saved[path]


Source: TypeAlias = Callable[[EnvSpec, np.random.Generator], Player | FrozenPolicy]
"""Gives the player of one game."""


def random_player(spec: EnvSpec, rng: np.random.Generator) -> Player:
    """A player whose actions are uniformly random, of those that the mask in its observation allows."""
    actions = RandomActions(spec, 1, int(rng.integers(1 << 31)))

    def choose(obs: Any) -> Any:
        leaves = flatten(spec.observation_space, obs)
        one = {path: leaf[None] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[None]
        return unflatten(spec.action_space, pick_leaves(actions.draw(one), 0))

    return choose


def read_sides(given: Any, agents: Sequence[Any], frozen: FrozenPolicies) -> list[dict[Any, list[Source]]]:
    """The players of each agent that does not learn, one mapping for each *side* that the learner may take.

    Args:
        given: a mapping by agent, see ``read_players``, a list of mappings, or one player: then each side has one agent
            that learns, and this player plays all others.
        agents: all agents of the environment.
        frozen: the policies that players may name.

    Raises:
        ConfigError, PluginError: see ``read_players``.
    """
    if isinstance(given, str | FrozenPolicy) or (isinstance(given, Mapping) and set(given) == {SAVED}):
        given = [{other: given for other in agents if other != learner} for learner in agents]
    sides = [given] if isinstance(given, Mapping) else [*given] or [{}]
    return [read_players(side, agents, frozen) for side in sides]


def read_players(given: Any, agents: Sequence[Any], frozen: FrozenPolicies) -> dict[Any, list[Source]]:
    """The players of each agent that does not learn.

    Args:
        given: by agent ``learner``, ``random``, ``pool``, a saved policy as ``{saved: PATH}``, the ``module:attr`` of a
            script, or a list of players.
        agents: all agents of the environment.
        frozen: the policies that players may name.

    Raises:
        ConfigError: there is no such agent or player, or nobody learns.
        PluginError: a script cannot be loaded.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"env.params.players: expected a mapping of agents to players, found {given!r:.80}")
    found = {}
    for name, players in given.items():
        if name not in agents:
            raise ConfigError(f"env.params.players: expected names of {', '.join(map(str, agents))}, found '{name}'")
        if players != LEARNER:
            found[name] = [
                _read_player(f"env.params.players.{name}", each, frozen)
                for each in (players if isinstance(players, list) and players else [players])
            ]
    if len(found) == len(agents):
        raise ConfigError("env.params.players: expected an agent that learns, found players for all agents")
    return found


def _read_player(where: str, given: Any, frozen: FrozenPolicies) -> Source:
    if isinstance(given, FrozenPolicy):
        return lambda *_: given
    if given == RANDOM:
        return random_player
    if given == POOL:
        return frozen.draw
    if isinstance(given, Mapping) and set(given) == {SAVED} and isinstance(given[SAVED], str):
        return lambda *_: frozen.load(given[SAVED])
    if not isinstance(given, str) or ":" not in given:
        raise ConfigError(
            f"{where}: expected learner, random, pool, saved: PATH, module:attr or a list of players, found {given!r}"
        )
    return part_loading.load_part(given)


Wanted: TypeAlias = dict[Any, tuple[FrozenPolicy, Any, bool]]
"""By agent, the policy that plays it, what it observes, and whether the game begins for it."""
Call: TypeAlias = Generator[Wanted, Mapping[Any, Any], tuple[Any, ...]]
"""A call of ``ScriptedEnv``: it yields what frozen policies have to choose for, and is sent their actions by agent."""


class ScriptedEnv:
    """An environment of PettingZoo without the agents that others play than the learner.

    When a game begins, a player is drawn for each of them, and plays this game to its end; the pool gives one model for
    all its seats of a game. In a game in turns, players move at once: a step ends when it is a learner's turn again,
    and its reward is the sum.

    At the end of the game, the learners' infos have the ``result``: 1 if their mean return is above that of the others,
    -1 if it is below, and 0. If the pool plays, each info has the opt steps of its model as ``opponent``.

    Args:
        env: a ``ParallelEnv``.
        turns: of a turn game the ``AECEnv``, whose ``agent_selection`` says whose turn it is; otherwise None.
        players: by agent, the players of which one is drawn.
    """

    def __init__(self, env: Any, turns: Any, players: Mapping[Any, Sequence[Source]]) -> None:
        self._env, self._turns, self._sources = env, turns, players
        self.metadata, self.render_mode = env.metadata, getattr(env, "render_mode", None)
        self.possible_agents = [agent for agent in env.possible_agents if agent not in players]
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render, self.close, self.state = env.render, env.close, env.state
        self.rng = np.random.default_rng()
        """Draws players; the random numbers of scripts come from it too."""
        self._players: dict[Any, Any] = {}
        self._frozen: set[Any] = set()  # The agents that frozen policies play.
        self._opponent: dict[str, int] = {}  # What each info says of the pool's model.
        self._new: set[Any] = set()  # Those who have not acted in this game.
        self._seen: Mapping[Any, Any] = {}  # The newest observations.
        self._left: set[Any] = set()  # Those who have left, and whom the environment keeps in its agents.
        self._returns: dict[Any, float] = {}

    @property
    def _here(self) -> list[Any]:
        return [agent for agent in self._env.agents if agent not in self._left]

    @property
    def agents(self) -> list[Any]:
        """The agents that learn and are there."""
        return [agent for agent in self._here if agent not in self._sources]

    def begin(self, seed: int | None = None) -> Call:
        """Begin a game, and play it until a learner can act.

        Raises:
            InterfaceError: again and again, a game ends before a learner can act.
        """
        for _ in range(MAX_GAMES):
            self._seen, infos = read_begin(self._env.reset(seed=seed))
            self._left, self._new = set(), {*self._sources}
            self._returns = dict.fromkeys(self._env.possible_agents, 0.0)
            self._draw_players()
            while self._here and not self.agents:  # The learners come later.
                yield from self._advance({})
            yield from self._play_turns()
            if self.agents:
                return self._seen, infos
            seed = None
        raise InterfaceError(f"reset: expected a learner to act, found {MAX_GAMES} games that ended before")

    def _draw_players(self) -> None:
        """Draw who plays the next game."""
        self._opponent, of_pool = {}, None
        for agent, sources in self._sources.items():
            source = sources[int(self.rng.integers(len(sources)))]
            spec = EnvSpec(self._env.observation_space(agent), self._env.action_space(agent))
            if getattr(source, "__func__", None) is not FrozenPolicies.draw:
                self._players[agent] = player = source(spec, self.rng)
                if not isinstance(player, FrozenPolicy) and not callable(player):
                    raise InterfaceError(
                        f"env.params.players.{agent}: expected a script that returns a player, a function that chooses "
                        f"an action for an observation, found one that returned {describe(player)}"
                    )
                continue
            of_pool = of_pool or cast("FrozenPolicy", source(spec, self.rng))
            self._players[agent], self._opponent = of_pool, {OPPONENT: of_pool.opt_steps}
        self._frozen = {agent for agent, player in self._players.items() if isinstance(player, FrozenPolicy)}

    def step(self, actions: Mapping[Any, Any]) -> Call:
        """Take a step; in a game in turns also those of the others, until it is a learner's turn."""
        before = self.agents
        obs, rewards, ends, cuts, infos = yield from self._play_turns((yield from self._advance(actions)))
        told = self._opponent if self.agents else self._opponent | {RESULT: self._compare_returns()}
        if told:
            try:
                infos = {**infos, **{agent: {**(infos.get(agent) or {}), **told} for agent in before}}
            except TypeError as error:
                raise odd_infos(infos) from error
        return obs, rewards, ends, cuts, infos

    def _compare_returns(self) -> int:
        """1, 0 or -1: whether the mean return of the learners is above that of the others."""
        ours, theirs = (
            np.mean([total for agent, total in self._returns.items() if (agent in self._sources) == is_other])
            for is_other in (False, True)
        )
        return int(ours > theirs) - int(ours < theirs)

    def _advance(self, actions: Mapping[Any, Any]) -> Call:
        """Take one step of the environment with the actions of learners and others."""
        acting = self._here if self._turns is None else [self._turns.agent_selection]
        chosen, wanted = {}, Wanted()
        for each in acting:
            if each not in self._sources:
                chosen[each] = actions[each]
                continue
            if each not in self._seen:
                raise InterfaceError(f"observation: expected one for agent '{each}', found none")
            player = self._players[each]
            if each in self._frozen:
                wanted[each] = player, self._seen, each in self._new
            else:
                chosen[each] = player(self._seen[each])
        if wanted:
            chosen |= yield wanted
            self._new -= wanted.keys()
        found = self._step({each: chosen[each] for each in acting})
        self._seen, rewards, ends, cuts, infos = found
        # Those who have left may be paid on, with their team. What a learner lacks is named where its rows are made.
        everybody = self._env.possible_agents
        nothing, nobody = dict.fromkeys(everybody, 0.0), dict.fromkeys(everybody, False)
        results = self._seen, {**nothing, **rewards}, {**nobody, **ends}, {**nobody, **cuts}, infos
        for agent in everybody:
            reward, is_end, is_cut = read_outcome(agent, results)
            self._returns[agent] += reward
            if is_end or is_cut:
                self._left.add(agent)
        self._left.intersection_update(self._env.agents)
        return found

    def _step(self, actions: Mapping[Any, Any]) -> GameResults:
        """Step the environment, and blame a player for its error whose action is none of the action space."""
        try:
            return read_step(self._env.step(actions))
        except Exception as error:
            for agent in actions.keys() & self._sources.keys():
                space = self._env.action_space(agent)
                if not space.contains(actions[agent]):
                    raise InterfaceError(
                        f"env.params.players.{agent}: expected the player to choose an element of {space}, found "
                        f"{actions[agent]!r:.80}"
                    ) from error
            raise

    def _play_turns(self, found: GameResults = ({}, {}, {}, {}, {})) -> Call:
        """In a game in turns, have the others move until it is a learner's turn; return all that has happened."""
        obs, rewards, ends, cuts, infos = map(dict, found)
        while self._turns is not None and self.agents and self._turns.agent_selection in self._sources:
            later = yield from self._advance({})
            for whole, part in zip((obs, ends, cuts, infos), (later[0], *later[2:]), strict=True):
                whole.update(part)
            for agent, reward in later[1].items():
                rewards[agent] = rewards.get(agent, 0) + reward
        return obs, rewards, ends, cuts, infos
