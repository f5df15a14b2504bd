"""How many shards a rate of steps needs, predicted from measured costs, and checked at two points that run here.

The model (``Costs.predict``) has two measured costs: a message costs ingest a fixed processor time, and each row of it
a little more.

    rows of a message = the larger of push.n_buffer and the steps of an actor in 50 ms, in which its batches gather
    messages/s        = steps/s / rows of a message, but at least one heartbeat a second from each actor
    cores             = messages/s * seconds for a message + steps/s * seconds for a row
    shards            = the larger of cores / 0.7 and actors / 4,096, rounded up
    limit of a shard  = 0.7 * steps/s / cores

A shard's ingest process has one core, of which 0.7 are used: beyond that, acknowledgements wait for each other. 4,096
actors are the most that ``server.max_actors`` allows. The costs are measured with ``FIT``, messages of two sizes; the
checks are other sizes, rates and numbers of actors. Real actors may push observations of any size: the costs here are
those of CartPole's rows of 38 bytes, so measure with your own rows before you rent machines.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final

from benchmarks.light_fleet import Fleet, Shard, median_of, push_together
from benchmarks.report import RUNS, report
from benchmarks.scale import settings_for
from benchmarks.serving import serve_learner

LINGER_SECONDS: Final = 0.05
"""Batches of an actor that wait travel together; see ``actor.client.pusher``."""
HEARTBEATS: Final = 1.0
USABLE: Final = 0.7
"""The share of its core that an ingest process may use."""
MAX_ACTORS: Final = 4096
SECONDS: Final = 6.0


@dataclass(frozen=True)
class Load:
    """The load of a fleet on its learner.

    Args:
        steps: a second, of all actors together.
        actors: how many.
        batch: rows of a batch (``push.n_buffer``).
    """

    steps: float
    actors: int
    batch: int

    @property
    def rows(self) -> float:
        """The rows of a message: those of a batch, or of all batches that an actor fills in ``LINGER_SECONDS``."""
        return max(self.batch, self.steps / self.actors * LINGER_SECONDS)

    @property
    def messages(self) -> float:
        """A second."""
        return max(self.steps / self.rows, self.actors * HEARTBEATS)


FIT: Final = (Load(81_920, 128, 64), Load(327_680, 64, 1024))
CHECKS: Final = (Load(65_536, 256, 64), Load(204_800, 40, 512))
PREDICTED: Final = tuple(Load(1e6, actors, batch) for actors in (1_000, 10_000) for batch in (64, 256))


@dataclass(frozen=True)
class Prediction:
    """The needs of a load.

    Args:
        cores: of ingest processes, together.
        shards: ingest processes.
        limit: steps a second that one shard can take from its part of the actors.
    """

    cores: float
    shards: int
    limit: float


@dataclass(frozen=True)
class Costs:
    """Seconds of ingest's processor time for each message, and for each row of it."""

    message: float
    row: float

    def cores(self, load: Load) -> float:
        return load.messages * self.message + load.steps * self.row

    def predict(self, load: Load) -> Prediction:
        """Predict the needs of a load; the module's docstring has the formulas."""
        cores = self.cores(load)
        shards = max(math.ceil(cores / USABLE), math.ceil(load.actors / MAX_ACTORS))
        return Prediction(cores, shards, USABLE * load.steps / cores)


def fit(points: tuple[tuple[Load, float], tuple[Load, float]]) -> Costs:
    """The two costs that explain the cores of two loads."""
    (first, cores_1), (second, cores_2) = points
    determinant = first.messages * second.steps - second.messages * first.steps
    message = (cores_1 * second.steps - cores_2 * first.steps) / determinant
    return Costs(message, (cores_2 - message * second.messages) / second.steps)


def measure(load: Load) -> dict[str, float]:
    """Medians over several pushes, after one that does not count: the steps a second that came, and ingest's cores."""
    interval = load.actors * load.rows / load.steps
    with (
        serve_learner("cartpole", *settings_for(load.actors)) as server,
        Fleet(server.ingest.address, load.actors, rows=load.batch) as fleet,
    ):
        runs = []
        for _ in range(1 + RUNS):
            ((pushed, spent),) = push_together([Shard(fleet, server.ingest.pid)], interval, SECONDS)
            steps = load.batch * pushed.per_second
            runs.append({"steps/s": steps, "cores": spent / pushed.seconds, "load": os.getloadavg()[0]})
    return median_of(runs)


def as_came(load: Load, measured: dict[str, float]) -> Load:
    """The load with the rate that was measured."""
    return Load(measured["steps/s"], load.actors, load.batch)


def main() -> None:
    measured = {load: measure(load) for load in (*FIT, *CHECKS)}
    first, second = ((as_came(load, measured[load]), measured[load]["cores"]) for load in FIT)
    costs = fit((first, second))
    checks = []
    for load in CHECKS:
        found, predicted = measured[load], costs.cores(as_came(load, measured[load]))
        checks.append(
            {
                "actors": load.actors,
                "batch": load.batch,
                **found,
                "predicted cores": predicted,
                "predicted to measured": predicted / found["cores"],
            }
        )
    report("scale_prediction checks", f"{1e6 * costs.message:.0f} µs a message, {1e6 * costs.row:.2f} a row", checks)
    rows = []
    for load in PREDICTED:
        needs = costs.predict(load)
        rows.append(
            {
                "steps/s": load.steps,
                "actors": load.actors,
                "batch": load.batch,
                "cores": needs.cores,
                "shards": needs.shards,
                "limit of one shard, steps/s": needs.limit,
            }
        )
    report("scale_prediction", "predicted, not run", rows)


if __name__ == "__main__":
    main()
