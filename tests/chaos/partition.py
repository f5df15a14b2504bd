"""A network that is slow, loses packets, is cut, or gives the learner another address; all data arrives once."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from learner.shared.actor_table import ActorState, map_actor_table
from tests.chaos.fleet import BACK_SECONDS, Fleet
from tests.chaos.report import scratch, tell
from tests.chaos.wire import LEARNER, MOVED, NAME, Wire
from tests.conftest import wait_for

N_ACTORS: Final = 2
LOST: Final = "connection to the learner lost"
AGAIN: Final = "again as actor"


def _states(fleet: Fleet) -> list[int]:
    table = map_actor_table(fleet.run_dir / "shared", create=False)
    return [int(state) for state in table["state"][table["pid"] > 0]]


def _losses(fleet: Fleet) -> int:
    """How many connections the actors have given up."""
    return sum(actor.output().count(LOST) for actor in fleet.actors)


def _are_connected(fleet: Fleet) -> bool:
    """Whether every actor that has given up a connection has another one."""
    outputs = [actor.output() for actor in fleet.actors]
    return all(output.count(LOST) == output.count(AGAIN) for output in outputs)


def cut_off(seconds: float, delay_ms: int, loss_percent: float, seed: int, *, moves: bool = False) -> dict[str, Any]:
    """Cut the wire between two actors and their learner for so long, with latency and loss before and after.

    With ``moves``, the learner then moves to another address; see ``move_away``.

    Raises:
        AssertionError: an item is lost, doubled, disordered or torn.
    """
    delay, loss = delay_ms / 1000, loss_percent / 100
    with (
        scratch() as directory,
        Wire(delay, loss, seed) as wire,
        Fleet(directory, N_ACTORS, wire=wire, server={"insecure": True, "lost_seconds": 10.0}) as fleet,
    ):
        fleet.ready()
        fleet.take(500)
        made, lost_before = fleet.made(), wire.lost
        wire.cut = True
        tell(f"cut for {seconds:g} s")
        time.sleep(seconds)  # A partition has no condition to wait for: it lasts.
        noticed = {"actors_gave_up": _losses(fleet), "learner_gave_up": _states(fleet).count(ActorState.ONLINE) == 0}
        made = fleet.made() - made
        since, began = fleet.standing(), time.monotonic()
        wire.cut = False
        fleet.goes_on(since)
        recovered = time.monotonic() - began
        tell(f"all go on after {recovered:.1f} s")
        moved = _move(fleet, wire) if moves else {}
        found = fleet.end()
    assert found.is_clean, found
    return {
        "cut_seconds": seconds,
        "delay_ms": delay_ms,
        "loss_percent": loss_percent,
        "seed": seed,
        **noticed,
        "items_made_while_cut": made,
        "packets_lost": wire.lost - lost_before,
        "recovery_seconds": recovered,
        **moved,
        **asdict(found),
    }


def move_away(seed: int) -> dict[str, Any]:
    """Give the learner another address, found under its old name; the old one falls silent and refuses nothing.

    Raises:
        AssertionError: an item is lost, doubled, disordered or torn.
    """
    with (
        scratch() as directory,
        Wire(seed=seed) as wire,
        Fleet(directory, N_ACTORS, wire=wire, server={"insecure": True}) as fleet,
    ):
        fleet.ready()
        moved = _move(fleet, wire)
        found = fleet.end()
    assert found.is_clean, found
    return {**moved, **asdict(found)}


def _move(fleet: Fleet, wire: Wire) -> dict[str, float]:
    """Give the learner its other address, and wait until all go on."""
    # An actor that gives up now, because of the cut before, would join at the other address at once, and lose nothing.
    wait_for(lambda: _are_connected(fleet), "all are connected", BACK_SECONDS)
    began, losses = time.monotonic(), _losses(fleet)
    wire.learner.move(LEARNER, MOVED)
    wire.resolve_to(MOVED)
    tell(f"{NAME} has moved from {LEARNER} to {MOVED}")
    wait_for(lambda: _losses(fleet) >= losses + N_ACTORS, "the silence is noticed", BACK_SECONDS)
    noticed = time.monotonic() - began
    fleet.goes_on(fleet.standing())
    recovered = time.monotonic() - began
    tell(f"noticed after {noticed:.1f} s, all go on after {recovered:.1f} s")
    return {"noticed_seconds": noticed, "recovery_seconds": recovered}
