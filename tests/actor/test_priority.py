from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from actor.priority import PrioritizedBatches, PrioritizedItems, add_priority
from actor.proxy import ReplayBufferProxy
from common.agents.dqn import DQN
from common.config.run_config import PushConfig
from common.data import PRIORITY, Array, Items, ModelVersion
from common.errors import PluginError
from common.interfaces import EnvSpec
from common.processors import OneStep
from common.testing import items_of, play
from common.wire.frames import BufferedItems
from examples.own_parts import Corridor, TabularQ

SPEC = EnvSpec(gymnasium.spaces.Box(0, 10, (1,), np.int64), gymnasium.spaces.Discrete(2))
SCHEMA = OneStep().schema(SPEC)


class Kept:
    """A sink that keeps what it is given, after seeing that it is what was agreed on."""

    def __init__(self) -> None:
        self.items: list[Items] = []

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        self.push(batch.items(SCHEMA.plus(PRIORITY)))

    def push(self, items: Items) -> None:
        SCHEMA.plus(PRIORITY).count(items)
        self.items.append({name: column.copy() for name, column in items.items()})

    def column(self, name: str) -> Array:
        return np.concatenate([items[name] for items in self.items])


def agent() -> DQN:
    return DQN(SPEC, seed=0, units=(8,))


def some_items(n: int) -> Items:
    return items_of(OneStep(), play(Corridor(), n))


def test_full_and_partial_batches_get_their_priorities_as_they_are_handed_over() -> None:
    sink, items = Kept(), some_items(25)
    batches = PrioritizedBatches(sink, agent(), SCHEMA)
    proxy = ReplayBufferProxy(SCHEMA, PushConfig(n_buffer=10, flush_seconds=None), batches)
    for i in range(25):
        proxy.push({name: column[i : i + 1] for name, column in items.items()})
    proxy.flush()
    assert [len(batch["reward"]) for batch in sink.items] == [10, 10, 5]
    np.testing.assert_allclose(sink.column("priority"), np.abs(agent().td_error(items)), rtol=1e-5)
    for name, column in items.items():
        np.testing.assert_array_equal(sink.column(name), column)


def test_without_batches_each_push_gets_its_own_priorities() -> None:
    sink, items = Kept(), some_items(3)
    priorities = PrioritizedItems(sink, agent())
    priorities.push(items)
    priorities.push(items)
    assert len(sink.items) == 2
    np.testing.assert_array_equal(sink.column("priority"), np.tile(np.abs(agent().td_error(items)), 2))


def test_an_agent_that_does_not_give_one_error_for_each_item_is_refused() -> None:
    class Summing(DQN):
        def td_error(self, items: Items) -> Array:
            total: Array = super().td_error(items).sum(keepdims=True)
            return total

    with pytest.raises(PluginError, match=r"Summing\.td_error: expected shape \[3\], found \[1\]"):
        add_priority(some_items(3), Summing(SPEC, seed=0))


def test_an_agent_without_td_errors_is_refused() -> None:
    with pytest.raises(PluginError, match=r"push\.initial_priorities: TabularQ has no td_error\(items\)"):
        add_priority(some_items(3), TabularQ(SPEC, seed=0, epsilon=0.0, device="cpu"))
