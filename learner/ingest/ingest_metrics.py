"""The metrics of the ingest process, read from counters at each scrape; docs/metrics.md explains each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.data import Array
from learner.ingest.core import IngestCore
from learner.records.exposition import certificate_expiry, counter, counters, gauge, gauges, rank_info
from learner.shared.actor_table import ActorState, plain_values

_STATES = tuple(state for state in ActorState if state is not ActorState.UNUSED)
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


class IngestCollector(Collector):
    """The metrics of an ``IngestCore``: rows in, models out, actors.

    A separate thread reads the values for a scrape while the event loop writes them. Each value is read whole, and
    ``present_rows`` is a copy; two values of one scrape may be a moment apart.
    """

    def __init__(self, core: IngestCore) -> None:
        self._core, self._rates = core, FleetRates()

    def tick(self) -> None:
        """Look how fast the figures of actors grow; called a few times a second."""
        self._rates.tick(self._core.registry.online_rows)

    def collect(self) -> Iterable[Metric]:
        yield from self._items()
        yield from self._models()
        yield from self._fleet()
        silent = self._core.trainer_watch.silent_seconds
        text = "Seconds since the training loop's last sign of life."
        yield gauge("crossborder_trainer_silent_seconds", text, silent)
        config = self._core.config
        yield certificate_expiry({"grpc": config.server.tls, "metrics": config.metrics_tls})
        rows = self._core.registry.present_rows()
        yield from _together(self._core, rows, self._rates.rates)
        if config.shows_each_actor:
            yield from _by_actor(self._core, rows)

    def _items(self) -> Iterable[Metric]:
        control, counts = self._core.control, self._core.counts
        yield counter("crossborder_stored_steps_total", "Steps stored in the replay.", self._core.memory.steps)
        yield counter("crossborder_batches_total", "Batches stored in the replay.", control.batches)
        yield counter("crossborder_payload_bytes_total", "Bytes of stored batches on the wire.", control.payload_bytes)
        yield counter("crossborder_duplicate_batches_total", "Batches sent again and not stored.", control.duplicates)
        text = "Episodes that no final row ended."
        yield counter("crossborder_unfinished_episodes_total", text, counts.unfinished_episodes)
        yield counters("crossborder_refused_batches_total", "Batches refused.", "reason", counts.batches_refused)
        values = self._core.values
        yield counters(
            "crossborder_nonfinite_values_total", "Values that were NaN or infinite.", "column", values.nonfinite_found
        )
        text = "Values outside the bounds of their space."
        yield counters("crossborder_out_of_bounds_values_total", text, "column", values.outside_found)
        yield counter(
            "crossborder_ack_hold_seconds_total",
            "Seconds that acknowledgements were held back to keep the replay ratio.",
            control.actor_hold_seconds,
        )
        held = counts.quota_hold_seconds
        yield counters(
            "crossborder_quota_hold_seconds_total", "Seconds that answers were held back by a quota.", "answer", held
        )
        text = "Seconds from the arrival of a batch to its acknowledgement."
        yield HistogramMetricFamily("crossborder_ack_seconds", text, *counts.ack_seconds.exposed())

    def _models(self) -> Iterable[Metric]:
        control, counts = self._core.control, self._core.counts
        yield counter(
            "crossborder_model_fetches_total", "Requests for a model that were answered with a model.", control.fetches
        )
        yield counter(
            "crossborder_model_not_modified_total",
            "Requests for a model from actors that had the newest one.",
            control.not_modified,
        )
        yield counter("crossborder_model_bytes_sent_total", "Bytes of models sent.", control.model_bytes_sent)
        yield gauge(
            "crossborder_policy_lag_opt_steps",
            "Mean opt steps between the newest model and the model that acted.",
            control.policy_lag,
        )
        text = "Opt steps between the newest model and the model that acted, by batch."
        yield HistogramMetricFamily("crossborder_policy_lag_steps", text, *counts.lag_steps.exposed())
        text = "Age of the model that acted in a batch, in seconds."
        yield HistogramMetricFamily("crossborder_policy_lag_seconds", text, *counts.lag_seconds.exposed())

    def _fleet(self) -> Iterable[Metric]:
        control, counts, registry = self._core.control, self._core.counts, self._core.registry
        yield counter("crossborder_joins_total", "Joins accepted.", control.joins)
        leading = self._core.leading
        yield rank_info(self._core.run_id, leading.rank, leading.n_ranks)
        yield counter("crossborder_joins_led_total", "New actors led to other ranks.", leading.led)
        yield counter(
            "crossborder_unauthenticated_calls_total",
            "Calls refused because they had no valid token.",
            counts.unauthenticated,
        )
        yield counters("crossborder_joins_refused_total", "Joins refused.", "reason", counts.joins_refused)
        yield counters("crossborder_over_limit_total", "Calls refused or ended by a limit.", "limit", counts.over_limit)
        yield gauge("crossborder_open_calls", "Calls that are open.", counts.open_calls.total())
        states = {state.label: registry.count(state) for state in _STATES}
        yield gauges("crossborder_actors", "Actors by state.", "state", states)
        yield counter("crossborder_env_steps_total", "Environment steps reported by actors.", control.env_steps)
        yield counter("crossborder_episodes_total", "Episodes reported by actors.", control.episodes)
        yield gauge("crossborder_episode_return_mean", "Mean return of the last 100 episodes.", control.return_mean)
        yield gauge(
            "crossborder_episode_length_mean",
            "Mean length of the last 100 episodes, in environment steps.",
            control.length_mean,
        )


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


def _together(core: IngestCore, rows: Array, rates: Mapping[str, Array]) -> Iterable[Metric]:
    """Metrics of all actors together: the number of series does not grow with the number of actors."""
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
    for name, (text, _, values) in _figures_of(core, rows).items():
        yield _quantiles(f"crossborder_fleet_{name}", text, values)
    for name, (text, column) in GROWING.items():
        yield _quantiles(f"crossborder_fleet_{name}", text, rates.get(column))


def _figures_of(core: IngestCore, rows: Array) -> Mapping[str, tuple[str, Array, Array]]:
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


def _by_actor(core: IngestCore, rows: Array) -> Iterable[Metric]:
    """One series of each metric for each actor that holds an id, so never more than ``server.max_actors``."""
    labels = ("host", "name", "pid", "version")  # To find the process whose series these are.
    info = GaugeMetricFamily(
        "crossborder_actor_info", "Always 1; the labels say which process it is.", labels=["actor", *labels]
    )
    for values in map(plain_values, rows):
        info.add_metric([str(values["actor_id"]), *(str(values[label]) for label in labels)], 1)
    yield info
    for column, text in COUNTED.items():
        name = f"crossborder_actor_{NAMES.get(column, column)}_total"
        if column != "env_hangs":  # It ends its actor.
            yield _fill(CounterMetricFamily(name, text, labels=["actor"]), rows, rows[column])
    for name, (text, known, figures) in _figures_of(core, rows).items():
        yield _fill(GaugeMetricFamily(f"crossborder_actor_{name}", text, labels=["actor"]), known, figures)


def _fill(family: CounterMetricFamily | GaugeMetricFamily, rows: Array, values: Array) -> Metric:
    for actor_id, value in zip(rows["actor_id"].tolist(), values.tolist(), strict=True):
        family.add_metric([str(actor_id)], value)
    return family
