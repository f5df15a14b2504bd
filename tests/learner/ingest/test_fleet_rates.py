from __future__ import annotations

import numpy as np
import pytest

from common.data import Array
from learner.ingest.fleet_rates import FIRST_RATE_SECONDS, GROWING, RATE_SECONDS, FleetRates


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
