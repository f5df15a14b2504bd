"""Steps per second of the agents of one environment (PettingZoo), from the environment to the columns of rows.

The floor of each figure is gymnasium's ``SyncVectorEnv`` with as many environments that do the same work: a pole on a
cart, for 100 steps. With ``leave``, an agent leaves after 50 to 100 steps, so seats are empty until the last one has
left; the steps of those who are there count. Both take short turns, and ratios compare steps per second of processor
time, so they are valid beside other work.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo import ParallelEnv

from actor.sampling.recorder import RowRecorder
from benchmarks.report import report
from common.data import Array
from common.envs.pettingzoo import SeatsEnv
from common.lanes.building import lanes_of
from common.lanes.lanes import AnyEnv
from common.parts import row_schema

SECONDS = 0.5
TURNS = 15
STEPS = 100


class Pole(gymnasium.Env[Array, Any]):
    """A pole that may fall: an episode has ``steps`` steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps: int = STEPS) -> None:
        self._state, self._steps, self._taken = np.zeros(4), steps, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        del options
        super().reset(seed=seed)
        self._state, self._taken = self.np_random.uniform(-0.05, 0.05, 4), 0
        return self._state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        x, speed, angle, turn = self._state.tolist()
        force = 10.0 if action == 1 else -10.0
        self._taken += 1
        cosine, sine = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * turn**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * bend * cosine / 1.1
        self._state = np.array([x + 0.02 * speed, speed + 0.02 * pull, (angle + 0.02 * turn) % 6.0, turn + 0.02 * bend])
        return self._state.astype(np.float32), 1.0, False, self._taken == self._steps, {}


class Poles(ParallelEnv):  # type: ignore[misc] # PettingZoo has no types.
    """An environment in which each agent balances its own pole.

    Args:
        steps: of each agent, after which it leaves.
    """

    metadata: dict[str, Any] = {"name": "poles"}  # noqa: RUF012 - as PettingZoo declares it

    def __init__(self, steps: list[int]) -> None:
        self.possible_agents = [f"agent_{j}" for j in range(len(steps))]
        self._poles = {agent: Pole(own) for agent, own in zip(self.possible_agents, steps, strict=True)}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        del agent
        return Pole.observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        del agent
        return Pole.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        del options
        self.agents = [*self.possible_agents]
        found = {agent: self._poles[agent].reset(seed=seed) for agent in self.agents}
        return {agent: obs for agent, (obs, _) in found.items()}, {agent: info for agent, (_, info) in found.items()}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        obs, rewards, ends, cuts, infos = {}, {}, {}, {}, {}
        for agent, action in actions.items():
            obs[agent], rewards[agent], ends[agent], cuts[agent], infos[agent] = self._poles[agent].step(action)
        self.agents = [agent for agent in self.agents if not cuts[agent]]
        return obs, rewards, ends, cuts, infos


class Loop:
    """Acts in all lanes and records, without an agent.

    Args:
        env: a vector environment.
    """

    def __init__(self, env: AnyEnv) -> None:
        self._lanes = lanes_of(env)
        self._lanes.reset(0)
        self._records = RowRecorder(row_schema(self._lanes.spec), self._lanes.n)
        self._actions = np.random.default_rng(0).integers(2, size=(64, self._lanes.n))

    def seconds_a_step(self) -> float:
        """Processor time of one step of one lane, the mean over ``SECONDS``."""
        lanes, records, steps = self._lanes, self._records, 0
        until, began = time.perf_counter() + SECONDS, time.process_time()
        while time.perf_counter() < until:
            for actions in self._actions:
                obs = lanes.observe()
                records.begin(obs, lanes.begins, actions, None)
                outcome = lanes.step(actions)
                records.end(outcome)
                steps += lanes.n if outcome.taken is None else int(np.count_nonzero(outcome.taken))
            records.clear()
        return (time.process_time() - began) / steps


def measure(n: int, *, leave: bool) -> dict[str, object]:
    steps = np.linspace(STEPS / 2, STEPS, n).astype(int).tolist() if leave else [STEPS] * n
    ours = Loop(SeatsEnv([Poles(steps)]))
    floor = Loop(SyncVectorEnv([Pole] * n, autoreset_mode=AutoresetMode.DISABLED))
    turns = [(ours.seconds_a_step(), floor.seconds_a_step()) for _ in range(TURNS + 1)][1:]
    own, bare = map(statistics.median, zip(*turns, strict=True))
    return {
        "agents": n,
        "leave": leave,
        "steps/s": 1 / own,
        "floor steps/s": 1 / bare,
        "ratio": statistics.median(theirs / mine for mine, theirs in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.seats", description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 8, 32])
    arguments = parser.parse_args()
    rows = [measure(n, leave=leave) for n in arguments.agents for leave in (False, True)]
    report("seats", "rows recorded, not sent", rows, TURNS)


if __name__ == "__main__":
    main()
