"""kill -9 of the trainer and of ingest in a run that has settled: how long until training and all actors go on."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any, Final

from tests.chaos.fleet import Fleet, Victim
from tests.chaos.report import scratch, tell

N_ACTORS: Final = 3
VICTIMS: Final[tuple[Victim, ...]] = ("trainer", "ingest")
PAUSE_SECONDS: Final = 6.0, 8.0
"""A run is left alone for a time between these: a keeper starts its learner again five times a minute at most."""


def recover(kills: int, seed: int) -> dict[str, Any]:
    """Kill each victim this many times in a run as it is, and in a run with ``--standby``; the seconds by victim.

    Raises:
        AssertionError: an item is lost, doubled, disordered or torn.
    """
    rng = random.Random(seed)
    return {"seed": seed} | {
        name: _kill_in_turns(name, kills, rng, standby=name == "standby") for name in ("alone", "standby")
    }


def _kill_in_turns(name: str, kills: int, rng: random.Random, *, standby: bool) -> dict[str, Any]:
    seconds = defaultdict[Victim, list[float]](list)
    with scratch() as directory, Fleet(directory, N_ACTORS, standby=standby, forks=False) as fleet:
        fleet.ready()
        for victim in VICTIMS * kills:
            time.sleep(rng.uniform(*PAUSE_SECONDS))
            since, began = fleet.standing(), time.monotonic()
            fleet.kill(victim)
            fleet.goes_on(since)
            seconds[victim].append(time.monotonic() - began)
            tell(f"{name}: {victim}, all go on after {seconds[victim][-1]:.2f} s")
        found = fleet.end()
    assert found.is_clean, found
    return asdict(found) | {
        victim: {"kills": len(took), "median": statistics.median(took), "worst": max(took)}
        for victim, took in seconds.items()
    }
