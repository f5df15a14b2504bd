from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.data import Array
from common.parts import build_parts
from learner.ingest.cordons import Selection
from learner.ingest.ingest_metrics import (
    FIRST_RATE_SECONDS,
    GROWING,
    MAX_RELEASES,
    QUANTILES,
    RATE_SECONDS,
    FleetRates,
    IngestCollector,
)
from learner.shared.actor_table import ActorState
from tests.conftest import counting_config
from tests.learner.ingest.cores import LoneCore

MANY = 1024


class Looks:
    """A clock, and the actors that are online."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rows = rows({})

    def clock(self) -> float:
        return self.now

    def online(self) -> Array:
        return self.rows


def rows(env_steps: dict[int, int]) -> Array:
    """A row for each incarnation, with its steps."""
    made = np.zeros(len(env_steps), [("incarnation", "<u8"), *((name, "<f8") for _, name in GROWING.values())])
    made["incarnation"], made["env_steps"] = [*env_steps], [*env_steps.values()]
    return made


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_rates_are_of_the_last_interval_and_of_actors_that_were_online_at_both_its_ends(looks: Looks) -> None:
    rates = FleetRates(looks.clock)
    looks.rows = rows({1: 10**6, 2: 500, 3: 7})
    rates.tick(looks.online)
    assert rates.rates == {}
    looks.now += FIRST_RATE_SECONDS - 0.1
    looks.rows = rows({2: 500, 1: 10**6})
    rates.tick(looks.online)
    assert rates.rates == {}, "not yet"
    looks.now += 0.1
    rates.tick(looks.online)
    assert rates.rates["env_steps"].tolist() == [0, 0]
    looks.now += RATE_SECONDS
    looks.rows = rows({2: 700, 1: 10**6 + 40, 4: 9})
    rates.tick(looks.online)
    assert sorted(rates.rates["env_steps"]) == pytest.approx([40 / RATE_SECONDS, 200 / RATE_SECONDS])
    assert rates.rates.keys() == {name for _, name in GROWING.values()}
    looks.now += 2 * RATE_SECONDS
    rates.tick(looks.online)
    assert rates.rates["env_steps"].tolist() == [0, 0, 0]


def test_figures_that_an_actor_takes_back_are_no_growth(looks: Looks) -> None:
    rates = FleetRates(looks.clock)
    looks.rows = rows({1: 50})
    rates.tick(looks.online)
    looks.now, looks.rows = looks.now + RATE_SECONDS, rows({1: 20})
    rates.tick(looks.online)
    assert rates.rates["env_steps"].tolist() == [0]


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneCore]:
    """A core with room for a large fleet; nobody has joined."""
    config = counting_config(tmp_path / "run", server={"max_actors": MANY}, replay={"capacity": 1000})
    parts = build_parts(config, seed=0, epsilon=0.0, n_envs=1)
    made = LoneCore(tmp_path / "shared", config, parts.schema)
    yield made
    made.close()
    parts.close()


def enter(lone: LoneCore, count: int) -> None:
    """Actors 0, 1, 2, …; actor i keeps i bytes in its spool."""
    registry = lone.core.registry
    for i in range(count):
        registry.join(i + 1, f"cpu-{i}", i + 1, version=f"0.{i % 12}")
        registry.set_state(i, ActorState.ONLINE)
    registry._table["spool_bytes"][:count] = range(count)
    registry._table["wait_seconds"][:count] = 0.5


def exposed(lone: LoneCore, collector: IngestCollector | None = None) -> str:
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector or IngestCollector(lone.core))
    return prometheus_client.generate_latest(registry).decode()


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric, by the values of its labels."""
    families = text_string_to_metric_families(text)
    return {tuple(s.labels.values()): s.value for f in families for s in f.samples if s.name == f"crossborder_{name}"}


def test_a_thousand_actors_have_as_many_series_as_none_but_quantiles_and_releases(lone: LoneCore) -> None:
    before = exposed(lone)
    enter(lone, MANY)
    text = exposed(lone)
    assert "crossborder_actor_" not in text
    assert len(text) < 20_000
    more = len(text.splitlines()) - len(before.splitlines())
    assert more == 2 * len(QUANTILES) + MAX_RELEASES + 1, "silence and spools; no actor has sent a batch"
    assert samples(text, "fleet_spool_bytes") == pytest.approx(
        {("0",): 0, ("0.01",): 10.23, ("0.5",): 511.5, ("0.99",): 1012.77, ("1",): 1023}
    )
    assert samples(text, "spool_bytes") == {(): MANY * (MANY - 1) / 2}
    assert samples(text, "wait_seconds_total") == {(): MANY / 2}


def test_releases_are_counted_the_most_frequent_ones_each_and_the_others_together(lone: LoneCore) -> None:
    enter(lone, 27)
    found = samples(exposed(lone), "actors_by_release")
    assert found.pop(("other",)) == 8
    assert len(found) == MAX_RELEASES
    assert [found[(f"0.{i}",)] for i in range(3)] == [3, 3, 3]


def test_sums_go_on_when_actors_have_gone_and_quantiles_are_of_those_that_are_there(lone: LoneCore) -> None:
    enter(lone, 3)
    lone.core.registry.set_state(2, ActorState.LEFT)
    text = exposed(lone)
    assert samples(text, "wait_seconds_total") == {(): 1.5}
    assert samples(text, "fleet_spool_bytes")[("1",)] == 1


def test_rates_are_shown_from_the_second_look_on(lone: LoneCore, looks: Looks) -> None:
    enter(lone, 2)
    collector = IngestCollector(lone.core)
    collector._rates = FleetRates(looks.clock)
    collector.tick()
    assert samples(exposed(lone, collector), "fleet_env_steps_per_second") == {}
    lone.core.registry._table["env_steps"][:2] = 30
    looks.now += FIRST_RATE_SECONDS
    collector.tick()
    assert samples(exposed(lone, collector), "fleet_env_steps_per_second")[("0.5",)] == 30


def test_cordons_are_counted(lone: LoneCore) -> None:
    lone.core.cordons.drain(Selection(frozenset({4, 5}), frozenset({"cpu-1"})))
    assert samples(exposed(lone), "cordons") == {(): 3}
