from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from learner.fleet import ActorLook, Fleet, FleetLook


def actor(actor_id: int, **changes: Any) -> ActorLook:
    return dataclasses.replace(ActorLook(actor_id, "cpu-1", 7, "online", 100, 120, 50, 0.5, -3.0, 0), **changes)


def look(at: float, *actors: ActorLook, **changes: Any) -> FleetLook:
    return dataclasses.replace(FleetLook(at, "abcd", "run", 10, 100, 300, 90, 200, None, 4.0, actors), **changes)


def test_rates_are_what_came_between_two_looks() -> None:
    now = look(12.0, actor(0, items=150), actor(1, items=100), inserted=150, opt_steps=20)
    fleet = Fleet(look(10.0, actor(0), actor(1)), now)
    found = fleet.to_json()
    assert (found["opt_steps_per_second"], found["items_per_second"]) == (5.0, 25.0)
    assert [found["items_per_second"] for found in found["actors"]] == [25.0, 0.0]


def test_an_actor_that_was_not_there_before_has_no_rate_yet() -> None:
    fleet = Fleet(look(10.0, actor(0, pid=6)), look(11.0, actor(0, pid=7)))
    assert fleet.items_per_second() == {}
    assert fleet.to_json()["actors"][0]["items_per_second"] is None


def test_another_run_at_the_same_address_begins_at_zero() -> None:
    found = Fleet(look(10.0), look(11.0, inserted=1000, run_id="another")).to_json()
    assert (found["opt_steps_per_second"], found["items_per_second"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("actors", "expected"),
    [
        ((), "no actors"),
        ((actor(0),), "0   cpu-1:7  online   50     10.0    100  0.5 s    -3.0           0"),
        ((actor(0, lag_opt_steps=None, last_return=None, state="away"),), "0   cpu-1:7  away     -     10.0"),
    ],
)
def test_the_table_has_a_line_for_each_actor(actors: tuple[ActorLook, ...], expected: str) -> None:
    out = io.StringIO()
    before = tuple(dataclasses.replace(actor, items=90) for actor in actors)
    Console(file=out, width=120).print(Fleet(look(0.0, *before), look(1.0, *actors)).table())
    assert expected in out.getvalue()
    assert "replay 90 of 200, ratio 3.0 of 4" in out.getvalue()


def test_whatever_an_actor_calls_its_host_is_shown_as_it_is() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(Fleet(look(0.0), look(1.0, actor(0, host="[/][red]x"))).table())
    assert "[/][red]x:7" in out.getvalue()
