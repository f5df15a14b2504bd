"""Metrics of all actors together: the number of series does not grow with the number of actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric

from common.data import Array
from learner.ingest.core import IngestCore
from learner.records.exposition import counter, gauge, gauges

RATE_SECONDS: Final = 10.0
"""The time between two looks at the actors. An actor reports at least once a second, so a rate is right to a tenth."""
FIRST_RATE_SECONDS: Final = 1.0
"""The time between the first two looks, so that a run has rates soon."""
GROWING: Final = {
    "env_steps_per_second": ("Environment steps of an actor per second.", "env_steps"),
    "env_share": ("Share of an actor's time in environments.", "env_seconds"),
    "inference_share": ("Share of an actor's time spent on choosing actions.", "inference_seconds"),
    "wait_share": ("Share of an actor's time for which it was held back.", "wait_seconds"),
}
"""By metric: what it is, and the column of the actor table whose growth it is."""
COUNTED: Final = {
    "env_steps": "Environment steps.",
    "items": "Steps stored.",
    "env_seconds": "Seconds spent in environments.",
    "inference_seconds": "Seconds spent on choosing actions.",
    "wait_seconds": "Seconds held back with a finished batch.",
    "intervened_steps": "Steps in which a person or a safety layer acted for the agent.",
    "reconnects": "Connections that broke and were made again.",
    "dropped_items": "Rows dropped instead of sent.",
    "env_rebuilds": "Environments that were built again after an exception.",
    "env_hangs": "Environments that did not return in time.",
    "ticks": "Steps that began at a tick of env.rate_hz.",
    "late_ticks": "Steps that began more than 2 ms after their tick.",
    "missed_ticks": "Ticks without a step.",
    "safe_stops": "Safe stops after which the actor waited for the learner.",
}
"""Columns of the actor table: each is a counter by actor, and its sum over all actors, present and gone, is another."""
QUANTILES: Final = (0.0, 0.01, 0.5, 0.99, 1.0)
"""The minimum, the first percentile, the median and so on of a figure over the actors that hold an id."""
MAX_RELEASES: Final = 8
"""The most releases that have their own series. Actors choose the text, so all other releases share one series."""
NAMES: Final = {"items": "stored_steps", "dropped_items": "dropped_rows"}
"""By column, a metric's name that differs from it. Columns keep their names, since resumed runs have them on disk."""


class FleetRates:
    """The growth of some columns of the actor table, for each actor that was online at the last two looks.

    A mean over an actor's life would hide that it has become slow.

    The event loop calls ``tick``, and the metrics' thread reads ``rates``. A look replaces ``rates`` as a whole, so the
    reader finds the rates of one look.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, clock()
        self._before: Array | None = None
        self.rates: Mapping[str, Array] = {}
        """By column: its growth per second, float64 [actors]; empty before the second look."""

    def tick(self, find_online_rows: Callable[[], Array]) -> None:
        """Look at the actors, if it is time."""
        now = self._clock()
        if self._before is None:
            self._at, self._before = now, find_online_rows()
        if now < self._at + (RATE_SECONDS if self.rates else FIRST_RATE_SECONDS):
            return
        rows, before, seconds = find_online_rows(), self._before, now - self._at
        _, here, there = np.intersect1d(rows["incarnation"], before["incarnation"], return_indices=True)
        grown = {name: rows[name][here] - before[name][there] for _, name in GROWING.values()}
        self.rates = {name: np.maximum(growth, 0) / seconds for name, growth in grown.items()}
        self._at, self._before = now, rows


def fleet_metrics(core: IngestCore, rows: Array, rates: Mapping[str, Array]) -> Iterable[Metric]:
    """The metrics of all actors together, with the ``rates`` of ``FleetRates``."""
    for column, text in COUNTED.items():
        if column not in ("env_steps", "items"):  # ``IngestCollector`` has their sums.
            name = f"crossborder_{NAMES.get(column, column)}_total"
            yield counter(name, text, core.registry.total(column))
    yield gauge(
        "crossborder_spool_bytes",
        "Bytes of rows of all actors that wait for an acknowledgement.",
        rows["spool_bytes"].sum(),
    )
    yield gauge("crossborder_cordons", "Ids and hosts that are cordoned.", len(core.cordons.cordoned))
    text = "Actors by the release that they run."
    yield gauges("crossborder_actors_by_release", text, "version", _count_releases(rows))
    for name, (text, _, values) in figures_of(core, rows).items():
        yield _quantiles(f"crossborder_fleet_{name}", text, values)
    for name, (text, column) in GROWING.items():
        yield _quantiles(f"crossborder_fleet_{name}", text, rates.get(column))


def figures_of(core: IngestCore, rows: Array) -> Mapping[str, tuple[str, Array, Array]]:
    """The present figures of single actors by name: what each is, the rows of the actors that have it, its values."""
    sent, finished, paced = (rows[rows[column] > 0] for column in ("items", "episodes", "ticks"))
    return {
        "last_seen_seconds": (
            "Seconds since ingest last heard of an actor.",
            rows,
            time.monotonic() - rows["last_seen"],
        ),
        "policy_lag_opt_steps": (
            "Opt steps between the newest model and the model of an actor's last batch.",
            sent,
            (core.models.newest().opt_steps - sent["behaviour_opt_steps"]).clip(0),
        ),
        "spool_bytes": (
            "Bytes of rows of an actor that wait for an acknowledgement.",
            rows,
            rows["spool_bytes"],
        ),
        "episode_return": ("Return of an actor's last episode.", finished, finished["last_return"]),
        "lateness_p99_seconds": (
            "Seconds of lateness that 99 of 100 steps of an actor did not exceed.",
            paced,
            paced["lateness_p99_seconds"],
        ),
    }


def _quantiles(name: str, text: str, values: Array | None) -> Metric:
    """A gauge with a sample for each of ``QUANTILES``; none if no actor has the figure."""
    family = GaugeMetricFamily(name, text, labels=["quantile"])
    if values is not None and len(values):
        for quantile, value in zip(QUANTILES, np.quantile(values, QUANTILES).tolist(), strict=True):
            family.add_metric([f"{quantile:g}"], value)
    return family


def _count_releases(rows: Array) -> Mapping[str, float]:
    """The number of actors of each of the most frequent releases; all other releases count as ``other``."""
    versions, counts = np.unique(rows["version"], return_counts=True)
    most = np.argsort(-counts, kind="stable")
    shown = {versions[i].decode(errors="replace"): int(counts[i]) for i in most[:MAX_RELEASES]}
    rest = int(counts[most[MAX_RELEASES:]].sum())
    return shown | ({"other": rest} if rest else {})
