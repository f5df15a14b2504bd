"""kill -9 of whoever, whenever; nothing acknowledged may be lost, doubled or torn, and training goes on each time."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any, get_args

from tests.chaos.fleet import Fleet, Victim
from tests.chaos.report import scratch, tell

N_ACTORS = 3
MAX_INGEST_DEATHS = 5
"""In a minute; the next would end the run, as it should."""
HASTE = 0.2
"""Share of the kills of a trainer after which it is killed again while it comes up."""


def kill_at_random(kills: int, seed: int) -> dict[str, Any]:
    """So many kills of one run; its figures.

    Raises:
        AssertionError: an item is lost, doubled, disordered or torn.
    """
    rng, seconds = random.Random(seed), defaultdict[Victim, list[float]](list)
    with scratch() as directory, Fleet(directory, N_ACTORS) as fleet:
        fleet.ready()
        done = 0
        while done < kills:
            fleet.take(rng.randrange(500))
            victim, since, began = _choose(rng, fleet), fleet.standing(), time.monotonic()
            fleet.kill(victim, rng.randrange(N_ACTORS))
            done += 1
            if done < kills and victim in ("trainer", "host") and rng.random() < HASTE:
                time.sleep(rng.uniform(0, 4))  # The moment is what is random here.
                fleet.kill(victim)
                done += 1
            fleet.goes_on(since)
            seconds[victim].append(time.monotonic() - began)
            tell(f"kill {done} of {kills}, seed {seed}: {victim}, all go on after {seconds[victim][-1]:.1f} s")
        standing, found = fleet.standing(), fleet.end()
    assert found.is_clean, found
    recovery = {who: {"median": statistics.median(took), "worst": max(took)} for who, took in sorted(seconds.items())}
    return {
        "kills": kills,
        "seed": seed,
        **asdict(found),
        "learner_starts": fleet.starts,
        "actors": len(fleet.pids),
        "opt_steps": standing.kept,
        "recovery_seconds": recovery,
    }


def _choose(rng: random.Random, fleet: Fleet) -> Victim:
    victims = [who for who in get_args(Victim) if who != "ingest" or fleet.ingest_deaths < MAX_INGEST_DEATHS]
    return rng.choice(victims)
