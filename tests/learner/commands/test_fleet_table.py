from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from learner.commands.fleet_table import ActorView, FleetTable, FleetView, ShownActors
from learner.ingest.cordons import Selection

EVERY = ShownActors()


def actor(actor_id: int, **changes: Any) -> ActorView:
    return dataclasses.replace(ActorView(actor_id, "cpu-1", 7, "online", 100, 120, 50, 0.5, -3.0, 0), **changes)


def look(at: float, *actors: ActorView, **changes: Any) -> FleetView:
    return dataclasses.replace(FleetView(at, "abcd", "run", 10, 100, 300, 90, 200, None, 4.0, actors), **changes)


def test_rates_are_measured_between_two_looks() -> None:
    now = look(12.0, actor(0, items=150), actor(1, items=100), inserted=150, opt_steps=20)
    fleet = FleetTable(look(10.0, actor(0), actor(1)), now)
    found = fleet.to_json(EVERY)
    assert (found["opt_steps_per_second"], found["items_per_second"]) == (5.0, 25.0)
    assert [found["items_per_second"] for found in found["actors"]] == [25.0, 0.0]


def test_an_actor_that_was_not_there_before_has_no_rate_yet() -> None:
    fleet = FleetTable(look(10.0, actor(0, pid=6)), look(11.0, actor(0, pid=7)))
    assert fleet.items_per_second() == {}
    assert fleet.to_json(EVERY)["actors"][0]["items_per_second"] is None


def test_another_run_at_the_same_address_begins_at_zero() -> None:
    found = FleetTable(look(10.0), look(11.0, inserted=1000, run_id="another")).to_json(EVERY)
    assert (found["opt_steps_per_second"], found["items_per_second"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("actors", "expected"),
    [
        ((), "no actors"),
        ((actor(0),), "0   -     cpu-1:7  online   50     10.0    100  0.5 s   -3.00           0"),
        ((actor(0, lag_opt_steps=None, last_return=None, state="away"),), "0   -     cpu-1:7  away     -     10.0"),
    ],
)
def test_the_table_has_a_line_for_each_actor(actors: tuple[ActorView, ...], expected: str) -> None:
    out = io.StringIO()
    before = tuple(dataclasses.replace(actor, items=90) for actor in actors)
    Console(file=out, width=160).print(FleetTable(look(0.0, *before), look(1.0, *actors)).table(EVERY))
    assert expected in out.getvalue()
    assert "replay 90 of 200, ratio since the start 3.0 (now set to 4)" in out.getvalue()


def test_the_name_that_an_actor_gives_its_host_is_shown_unchanged() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(FleetTable(look(0.0), look(1.0, actor(0, host="[/][red]x"))).table(EVERY))
    assert "[/][red]x:7" in out.getvalue()


def ids(fleet: FleetTable, shown: ShownActors) -> list[int]:
    return [actor.actor_id for actor in fleet.page(shown)]


def test_actors_that_went_are_shown_when_they_are_asked_for() -> None:
    fleet = FleetTable(
        look(0.0), look(1.0, actor(0), actor(1, state="lost"), actor(2, state="left"), actor(3, state="away"))
    )
    assert ids(fleet, EVERY) == [0, 3]
    assert ids(fleet, ShownActors(states=("lost", "left"))) == [1, 2]


def test_actors_of_some_hosts_are_found_by_a_part_of_the_name() -> None:
    fleet = FleetTable(look(0.0), look(1.0, actor(0), actor(1, host="rack7-cpu-2"), actor(2, host="rack7-cpu-3")))
    assert ids(fleet, ShownActors(host="rack7")) == [1, 2]


def test_the_actor_that_needs_attention_comes_first() -> None:
    actors = actor(0, lag_opt_steps=9, items=130), actor(1, lag_opt_steps=None, items=101), actor(2, last_return=None)
    fleet = FleetTable(look(0.0, actor(0), actor(1), actor(2)), look(1.0, *actors))
    assert ids(fleet, ShownActors(sort="lag")) == [2, 0, 1]
    assert ids(fleet, ShownActors(sort="rate")) == [2, 1, 0]
    assert ids(fleet, ShownActors(sort="return")) == [0, 1, 2]


def test_a_fleet_of_a_thousand_is_shown_in_pages() -> None:
    fleet = FleetTable(look(0.0), look(1.0, *(actor(i) for i in range(1000))))
    assert ids(fleet, ShownActors(rows=300, page=4)) == list(range(900, 1000))
    assert ids(fleet, ShownActors(rows=300, page=9)) == list(range(900, 1000)), "beyond the last page"
    out = io.StringIO()
    Console(file=out, width=160).print(fleet.table(ShownActors(rows=300, page=2)))
    assert "1000 online · page 2 of 4" in out.getvalue()
    assert len(fleet.to_json(ShownActors(rows=300))["actors"]) == 300


def test_cordons_are_in_the_headline_and_beside_their_actors() -> None:
    racks = Selection(hosts=frozenset({"cpu-2", "cpu-3"}))
    actors = (
        actor(0),
        actor(1, host="cpu-2", evaluates=True),
        actor(2, host="cpu-3"),
        actor(3, host="cpu-3", state="left"),
    )
    drained = Selection(hosts=frozenset({"cpu-3"}))
    fleet = FleetTable(look(0.0), look(1.0, *actors, cordoned=racks, drained=drained))
    out = io.StringIO()
    Console(file=out, width=250).print(fleet.table(ShownActors(states=("online", "left"))))
    assert "cordoned: hosts cpu-2, cpu-3, of which drained: hosts cpu-3" in out.getvalue()
    shown = [line.split("  ") for line in out.getvalue().splitlines()[-4:]]
    states = [next(cell.strip() for cell in line if "online" in cell or "left" in cell) for line in shown]
    assert states == ["online", "online, evaluating, cordoned", "online, draining", "left"]
    assert fleet.to_json(EVERY)["drained"] == {"actor_ids": [], "hosts": ["cpu-3"], "all": False}
