"""Seats of an environment of PettingZoo that scripts play: an agent learns on the other seats.

A script makes a player for each game, so a player may keep what it likes until the game ends:

    def greedy(spec: EnvSpec, rng: np.random.Generator) -> Player:
        return lambda obs: int(np.argmax(obs["action_mask"]))

An observation and an action are elements of the spaces in ``spec``, as the environment has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from common.action_masks import RandomActions
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.lanes.interface_faults import InterfaceError
from common.leaves import pick_lanes
from common.plugins import part_loading
from common.spaces import flatten, unflatten

Player = Callable[[Any], Any]
"""Chooses an action for an observation."""
Script = Callable[[EnvSpec, np.random.Generator], Player]
"""Makes the player of one game; random numbers of the player come from the generator."""
LEARNER: Final = "learner"
RANDOM: Final = "random"
MAX_GAMES: Final = 1000
"""So many games in a row may end before the learner has acted."""


def random_player(spec: EnvSpec, rng: np.random.Generator) -> Player:
    """A player whose actions are uniformly random, of those that the mask in its observation allows."""
    actions = RandomActions(spec, 1, int(rng.integers(1 << 31)))

    def choose(obs: Any) -> Any:
        leaves = flatten(spec.observation_space, obs)
        one = {path: leaf[None] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[None]
        return unflatten(spec.action_space, pick_lanes(actions.draw(one), 0))

    return choose


def read_players(given: Mapping[str, Any], agents: Sequence[Any]) -> dict[Any, list[Script]]:
    """The scripts of each agent that does not learn.

    Args:
        given: by agent ``learner``, ``random``, the ``module:attr`` of a script, or a list of scripts.
        agents: all agents of the environment.

    Raises:
        ConfigError: there is no such agent or script, or nobody learns.
        PluginError: a script cannot be loaded.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"env.params.players: expected a mapping of agents to players, found {given!r:.80}")
    found = {}
    for name, scripts in given.items():
        if name not in agents:
            raise ConfigError(f"env.params.players: expected names of {', '.join(map(str, agents))}, found '{name}'")
        if scripts != LEARNER:
            found[name] = [
                _read_script(f"env.params.players.{name}", each)
                for each in (scripts if isinstance(scripts, list) and scripts else [scripts])
            ]
    if len(found) == len(agents):
        raise ConfigError("env.params.players: expected an agent that learns, found scripts for all agents")
    return found


def _read_script(where: str, text: Any) -> Script:
    if text == RANDOM:
        return random_player
    if not isinstance(text, str) or ":" not in text:
        raise ConfigError(f"{where}: expected learner, random, module:attr or a list of scripts, found {text!r}")
    return part_loading.load_part(text)


class ScriptedEnv:
    """An environment of PettingZoo without the agents that scripts play. It has the interface of a ``ParallelEnv``.

    When a game begins, a script is drawn for each of them, which makes the player of this game. In a game in turns,
    scripts move at once: a step ends when it is a learner's turn again, and its reward is the sum.

    Args:
        env: a ``ParallelEnv``.
        turns: of a turn game the ``AECEnv``, whose ``agent_selection`` says whose turn it is; otherwise None.
        scripts: by agent.
    """

    def __init__(self, env: Any, turns: Any, scripts: Mapping[Any, Sequence[Script]]) -> None:
        self._env, self._turns, self._scripts = env, turns, scripts
        self.metadata, self.render_mode = env.metadata, getattr(env, "render_mode", None)
        self.possible_agents = [agent for agent in env.possible_agents if agent not in scripts]
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render, self.close = env.render, env.close
        self._rng = np.random.default_rng()
        self._players: dict[Any, Player] = {}
        self._seen: dict[Any, Any] = {}  # The newest observations.
        self._left: set[Any] = set()  # Those who have left, and whom the environment keeps in its agents.

    @property
    def _here(self) -> list[Any]:
        return [agent for agent in self._env.agents if agent not in self._left]

    @property
    def agents(self) -> list[Any]:
        """The agents that learn and are there."""
        return [agent for agent in self._here if agent not in self._scripts]

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin a game, and play it until a learner can act.

        Raises:
            InterfaceError: again and again, a game ends before a learner can act.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        for _ in range(MAX_GAMES):
            self._seen, infos = self._env.reset(seed=seed)
            self._left = set()
            self._players = {agent: self._draw(agent) for agent in self._scripts}
            while self._here and not self.agents:  # The learners come later.
                self._advance({})
            self._play_turns()
            if self.agents:
                return self._seen, infos
            seed = None
        raise InterfaceError(f"reset: expected a learner to act, found {MAX_GAMES} games that ended before")

    def _draw(self, agent: Any) -> Player:
        """The player of an agent for the next game."""
        script = self._scripts[agent][int(self._rng.integers(len(self._scripts[agent])))]
        return script(EnvSpec(self._env.observation_space(agent), self._env.action_space(agent)), self._rng)

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Take a step; in a game in turns also those of the scripts, until it is a learner's turn."""
        return self._play_turns(self._advance(actions))

    def _advance(self, actions: Mapping[Any, Any]) -> Any:
        """Take one step of the environment with the actions of learners and scripts."""
        acting = self._here if self._turns is None else [self._turns.agent_selection]
        chosen = {each: self._choose(each) if each in self._scripts else actions[each] for each in acting}
        found = self._env.step(chosen)
        obs, _, ends, cuts, _ = found
        self._seen = {**self._seen, **obs}
        self._left = {each for each in self._env.agents if each in self._left or ends.get(each) or cuts.get(each)}
        return found

    def _play_turns(self, found: Any = ({}, {}, {}, {}, {})) -> tuple[dict[Any, Any], ...]:
        """In a game in turns, have the scripts move until it is a learner's turn; return all that has happened.

        Args:
            found: what the step before has returned.
        """
        obs, rewards, ends, cuts, infos = map(dict, found)
        while self._turns is not None and self.agents and self._turns.agent_selection in self._scripts:
            later = self._advance({})
            for whole, part in zip((obs, ends, cuts, infos), (later[0], *later[2:]), strict=True):
                whole.update(part)
            for agent, reward in later[1].items():
                rewards[agent] = rewards.get(agent, 0) + reward
        return obs, rewards, ends, cuts, infos

    def _choose(self, agent: Any) -> Any:
        if agent not in self._seen:
            raise InterfaceError(f"observation: expected one for agent '{agent}', found none")
        return self._players[agent](self._seen[agent])
