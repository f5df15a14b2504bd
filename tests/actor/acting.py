"""Acting by a sampler in lanes that a test gives, and what the learner would get."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.data import PRIORITY, Array, Items, Schema
from common.interfaces import Agent, EnvSpec, RowMap, StepProcessor
from common.lanes.building import Env, lanes_of, stacked_spec
from common.parts import Parts, row_schema
from common.plugins.part_config import EnvConfig
from tests.parts import CheckingAgent, CountingEnv


class Kept:
    """A sink that takes every round, and keeps copies of all."""

    def __init__(self) -> None:
        self.pushed: list[Items] = []

    def takes(self, rows: int) -> bool:
        return True

    def push(self, items: Items) -> None:
        self.pushed.append({name: column.copy() for name, column in items.items()})

    def column(self, name: str) -> Array:
        return np.concatenate([items[name] for items in self.pushed])

    def items(self) -> Items:
        return {name: self.column(name) for name in self.pushed[0]}

    def lane(self, j: int) -> Items:
        """The rows of one lane."""
        mine = self.column("lane") == j
        return {name: column[mine] for name, column in self.items().items()}


class KeptBatches(Kept):
    """Takes rows only when there are at least ``size``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def takes(self, rows: int) -> bool:
        return rows >= self._size

    def limits(self) -> tuple[int, float]:
        """See ``Sampler.act_for``."""
        return self._size, math.inf


class Acts(CheckingAgent):
    """Acts as a function says; it begins, and has extras, as a test says."""

    def __init__(self, spec: EnvSpec, function: Callable[[Any], Any]) -> None:
        super().__init__(spec, seed=0, epsilon=0.0, device="cpu")
        self._function = function
        self.begun: list[list[bool]] = []

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self.begun.append(begins.tolist())

    def sample(self, obs: Any) -> Any:
        return self._function(obs)


def together(envs: Sequence[Any], mode: AutoresetMode | None, **options: Any) -> Any:
    """These environments as a vector environment; as they are without a mode."""
    if mode is None:
        return list(envs)
    return SyncVectorEnv([partial(lambda env: env, env) for env in envs], autoreset_mode=mode, **options)


def env_config(**values: Any) -> EnvConfig:
    return EnvConfig(**{"target": "tests.parts:CountingEnv", **values})


def make_parts(
    envs: Any,
    agent: Callable[[EnvSpec], Agent] | None = None,
    *,
    config: EnvConfig | None = None,
    row_map: RowMap | None = None,
    processors: Sequence[StepProcessor] = (),
    priorities: bool = False,
) -> Parts:
    """Parts around environments of the test's own."""
    config = config or env_config()
    lanes = lanes_of(envs, config)
    spec = stacked_spec(lanes.spec, config.frame_stack)
    made = agent(spec) if agent else CheckingAgent(spec, seed=7, epsilon=0.0, device="cpu")
    rows = row_schema(lanes.spec, made, config)
    schema: Schema = processors[0].schema(spec) if processors else row_map.schema(rows) if row_map else rows
    return Parts(
        made,
        schema.plus(PRIORITY) if priorities else schema,
        spec,
        lanes.spec,
        rows,
        frame_stack=config.frame_stack,
        lanes=lanes,
        row_map=row_map,
        processors=tuple(processors),
        has_priorities=priorities,
    )


def act(
    parts: Parts, rounds: int, *, seed: int = 7, sink: Kept | None = None, version: int = 0
) -> tuple[Kept, ActorCounters]:
    """Act for this many rounds with a fresh sampler, and see that all that is pushed fits the schema."""
    sink, counters = sink or Kept(), ActorCounters()
    sampler = Sampler(parts, counters, seed)
    sampler.version = version
    for _ in range(rounds):
        sampler.sample_and_push(parts.agent, sink)
    sampler.flush(parts.agent, sink)
    for items in sink.pushed:
        parts.schema.count(items)
    return sink, counters


def counting(n: int) -> list[Env]:
    return [CountingEnv() for _ in range(n)]


def limited() -> list[Env]:
    """Environments whose episodes end in different rounds."""
    return [TimeLimit(CountingEnv(), limit) for limit in (3, 5, 100)]


def assert_same(found: Items, expected: Items) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name, strict=True)
