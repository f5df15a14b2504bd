from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from actor.proxy import ReplayBufferProxy
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.config.actor_config import PushConfig
from common.data import NO_MODEL, Array, BufferedItems, Column, Items, ModelVersion, Schema
from common.errors import SchemaMismatchError
from common.lanes.building import Env
from tests.actor.acting import counting, make_parts
from tests.clocks import Clock
from tests.parts import CountingEnv, counting_schema, expected_rows

SCHEMA = Schema((Column("n", "<i8"), Column("pair", "<f4", (2,))))


def rows(*numbers: int) -> Items:
    n = np.array(numbers, np.int64)
    return {"n": n, "pair": np.stack([n, -n], axis=1).astype(np.float32)}


def items_of(batch: BufferedItems, schema: Schema) -> Items:
    return {c.name: np.frombuffer(batch.columns[c.name], c.dtype).reshape(-1, *c.shape) for c in schema.columns}


class Batches:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.batches: list[BufferedItems] = []
        self.behaviours: list[ModelVersion] = []

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        self.batches.append(batch)
        self.behaviours.append(behaviour)

    def numbers(self) -> list[list[int]]:
        return [items_of(batch, SCHEMA)["n"].tolist() for batch in self.batches]


def make(n_buffer: int, flush_seconds: float | None = 60.0) -> tuple[ReplayBufferProxy, Batches, Clock]:
    sink, clock = Batches(), Clock(0.0)
    config = PushConfig(n_buffer=n_buffer, flush_seconds=flush_seconds)
    return ReplayBufferProxy(SCHEMA, config, sink.send, clock), sink, clock


def test_rows_are_taken_when_there_are_n_buffer_of_them() -> None:
    proxy, _, _ = make(3)
    assert [proxy.takes(count) for count in (0, 1, 2, 3, 8)] == [False, False, False, True, True]


def test_rows_that_are_pushed_together_are_one_batch() -> None:
    proxy, sink, _ = make(3)
    proxy.push(rows(0, 1, 2, 3))
    proxy.push(rows(4))
    assert sink.numbers() == [[0, 1, 2, 3], [4]]
    assert [batch.rows for batch in sink.batches] == [4, 1]
    pairs = items_of(sink.batches[0], SCHEMA)["pair"]
    np.testing.assert_array_equal(pairs, rows(0, 1, 2, 3)["pair"])


def test_pushing_nothing_sends_nothing() -> None:
    proxy, sink, _ = make(2)
    proxy.push(SCHEMA.empty(0))
    assert sink.batches == []


def test_a_batch_carries_the_version_of_the_model_that_chose_its_first_action() -> None:
    proxy, sink, _ = make(3)
    older, newer, newest = ModelVersion(1, 5), ModelVersion(1, 9), ModelVersion(2, 0)
    assert not proxy.takes(1)
    proxy.version = older
    assert proxy.takes(3)
    proxy.push(rows(0, 1, 2))
    assert not proxy.takes(2)
    proxy.version = newer
    assert proxy.takes(4)
    proxy.push(rows(3, 4, 5, 6))
    proxy.version = newest
    proxy.push(rows(7))
    assert sink.behaviours == [NO_MODEL, older, newest]


def test_a_batch_older_than_flush_seconds_goes_with_the_next_round() -> None:
    proxy, _, clock = make(100, flush_seconds=0.5)
    assert not proxy.takes(1)
    clock.now = 0.4
    assert not proxy.takes(2)
    clock.now = 0.5
    assert proxy.takes(3)


def test_without_flush_seconds_only_full_batches_go() -> None:
    proxy, _, clock = make(100, flush_seconds=None)
    assert not proxy.takes(1)
    clock.now = 1e9
    assert not proxy.takes(99)


def test_the_age_of_a_batch_counts_from_its_first_round() -> None:
    proxy, _, clock = make(100, flush_seconds=0.5)
    taken = []
    for now, count in ((10.0, 1), (10.6, 2), (20.0, 1), (20.4, 2), (20.6, 3)):
        clock.now = now
        taken.append(proxy.takes(count))
        if taken[-1]:
            proxy.push(rows(*range(count)))
    assert taken == [False, True, False, False, True]


def test_limits_are_the_rows_and_the_time_at_which_a_batch_is_taken() -> None:
    proxy, _, clock = make(100, flush_seconds=0.5)
    assert proxy.limits() == (100, math.inf)
    clock.now = 10.0
    assert not proxy.takes(1)
    assert proxy.limits() == (100, 10.5)
    proxy.push(rows(1))
    assert proxy.limits() == (100, math.inf)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_sampler_that_acts_for_a_time_hands_over_batches_of_n_buffer_rows(n_envs: int) -> None:
    parts, counters, sink = make_parts(counting(n_envs)), ActorCounters(), Batches()
    proxy = ReplayBufferProxy(parts.schema, PushConfig(n_buffer=40, flush_seconds=None), sink.send)
    sampler = Sampler(parts, counters, seed=7)
    while len(sink.batches) < 5:
        sampler.act_for(0.002, parts.agent, proxy, proxy.limits)
    assert all(40 <= batch.rows < 40 + 2 * n_envs for batch in sink.batches), "a round may end episodes"


def test_a_step_that_outlasts_flush_seconds_goes_with_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)

    class Late(CountingEnv):
        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            clock.now += 20.0 if self._step == 4 else 0.0
            return super().step(action)

    for module in ("actor.sampling.sampler", "common.lanes.plain_lanes"):
        monkeypatch.setattr(f"{module}.monotonic", clock)
    parts, sink = make_parts([Late()]), Batches()
    proxy = ReplayBufferProxy(parts.schema, PushConfig(n_buffer=1000, flush_seconds=0.5), sink.send, clock)
    Sampler(parts, ActorCounters(), seed=7).act_for(10.0, parts.agent, proxy, proxy.limits)
    assert [batch.rows for batch in sink.batches] == [4]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (rows(1) | {"n": np.zeros(1, np.int32)}, r"column 'n': expected <i8 \[1\], found <i4 \[1\]"),
        (rows(1) | {"pair": np.zeros((1, 3), np.float32)}, r"column 'pair': expected <f4 \[1, 2\], found <f4 \[1, 3\]"),
        ({"n": np.zeros(1, np.int64)}, r"expected columns \['n', 'pair'\], found \['n'\]"),
    ],
)
def test_rows_of_another_schema_are_refused_by_column_and_not_sent(items: Items, message: str) -> None:
    proxy, sink, _ = make(2)
    with pytest.raises(SchemaMismatchError, match=message):
        proxy.push(items)
    assert sink.batches == []


def test_pushed_arrays_may_be_used_again_at_once() -> None:
    proxy, sink, _ = make(2)
    items = rows(7)
    proxy.push(items)
    items["n"][:], items["pair"][:] = 99, 99
    assert sink.numbers() == [[7]]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("n_buffer", [1, 4, 100, 1000])
def test_a_sampler_hands_over_all_rows_in_batches_that_divide_no_round(n: int, n_buffer: int) -> None:
    sink, schema = Batches(), counting_schema()
    proxy = ReplayBufferProxy(schema, PushConfig(n_buffer=n_buffer, flush_seconds=None), sink.send)
    envs: list[Env] = [CountingEnv() for _ in range(n)]
    parts = make_parts(envs)
    sampler = Sampler(parts, ActorCounters(), seed=7)
    for _ in range(300):
        sampler.sample_and_push(parts.agent, proxy)
    sampler.flush(parts.agent, proxy)
    assert all(n_buffer <= batch.rows < n_buffer + 2 * n for batch in sink.batches[:-1])
    batches = [items_of(batch, schema) for batch in sink.batches]
    for j in range(n):
        for name, column in expected_rows(7 + j, 300, lane=j).items():
            found = np.concatenate([batch[name][batch["lane"] == j] for batch in batches])
            np.testing.assert_array_equal(found, column)
