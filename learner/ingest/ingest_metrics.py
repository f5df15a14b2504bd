"""The metrics of the ingest process, read from counters at each scrape; docs/metrics.md says what each means."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.data import Array
from learner.ingest.core import IngestCore
from learner.ingest.refusals import BucketCounts
from learner.records.families import counter, counters, gauge, gauges
from learner.shared.actor_table import ActorState, plain_values

_STATES = tuple(state for state in ActorState if state is not ActorState.UNUSED)
_ACTOR_COUNTERS = {
    "env_steps": "Environment steps.",
    "items": "Steps stored.",
    "env_seconds": "Spent in environments.",
    "inference_seconds": "Spent on choosing actions.",
    "wait_seconds": "Held back with a finished batch.",
    "reconnects": "Connections that broke and were made again.",
    "dropped_items": "Rows dropped instead of sent.",
    "env_rebuilds": "Environments that raised and were built anew.",
}
"""Columns of the actor table, each a counter by actor."""
_FLEET_COUNTERS = {
    "dropped_items": "Rows that actors dropped instead of sending.",
    "env_rebuilds": "Environments of actors that raised and were built anew.",
    "env_hangs": "Environments of actors that did not return.",
}
"""Columns whose sum over all actor processes, present and gone, is a counter."""


_NAMES = {"items": "stored_steps", "dropped_items": "dropped_rows"}
"""Metrics of columns that have another name in the table, which resumed runs have on disk."""


class IngestCollector(Collector):
    """The metrics of an ``IngestCore``: rows in, models out, actors.

    A scrape reads on a thread of its own while the event loop writes. Each value is read whole, and ``present_rows`` is
    a copy; two values of one scrape may be a moment apart.
    """

    def __init__(self, core: IngestCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        yield from self._items()
        yield from self._trainer()
        yield from self._models()
        yield from self._fleet()
        yield from _by_actor(self._core.registry.present_rows(), self._core.models.newest().opt_steps)

    def _items(self) -> Iterable[Metric]:
        control, counts = self._core.control, self._core.counts
        yield counter("crossborder_stored_steps_total", "Steps stored in the replay.", self._core.memory.steps)
        yield counter("crossborder_batches_total", "Batches stored in the replay.", control.batches)
        yield counter("crossborder_payload_bytes_total", "Bytes of rows stored.", control.payload_bytes)
        yield counter("crossborder_duplicate_batches_total", "Batches sent again and not stored.", control.duplicates)
        text = "Episodes without a final row."
        yield counter("crossborder_unfinished_episodes_total", text, counts.unfinished_episodes)
        yield counters("crossborder_refused_batches_total", "Batches refused.", "reason", counts.batches_refused)
        values = self._core.values
        yield counters("crossborder_nonfinite_values_total", "NaN or infinite.", "column", values.nonfinite_found)
        yield counters("crossborder_out_of_bounds_values_total", "Outside.", "column", values.outside_found)
        yield counter(
            "crossborder_ack_hold_seconds_total", "Held back to keep the replay ratio.", control.actor_hold_seconds
        )
        held = counts.quota_hold_seconds
        yield counters("crossborder_quota_hold_seconds_total", "Answers held back by a quota.", "answer", held)
        yield _histogram("crossborder_ack_seconds", "From arrival to acknowledgement.", counts.ack_seconds)

    def _trainer(self) -> Iterable[Metric]:
        seconds = self._core.trainer_watch.silent_seconds
        yield gauge("crossborder_trainer_silent_seconds", "Since the training loop's last sign of life.", seconds)

    def _models(self) -> Iterable[Metric]:
        control, counts = self._core.control, self._core.counts
        yield counter("crossborder_model_fetches_total", "Models sent to actors.", control.fetches)
        yield counter("crossborder_model_not_modified_total", "Model requests with nothing new.", control.not_modified)
        yield counter("crossborder_model_bytes_sent_total", "Bytes of models sent.", control.model_bytes_sent)
        yield gauge("crossborder_policy_lag_opt_steps", "Newest model minus the one that acted.", control.policy_lag)
        yield _histogram("crossborder_policy_lag_steps", "The same, by batch.", counts.lag_steps)
        yield _histogram("crossborder_policy_lag_seconds", "Age of the model that acted.", counts.lag_seconds)

    def _fleet(self) -> Iterable[Metric]:
        control, counts, registry = self._core.control, self._core.counts, self._core.registry
        yield counter("crossborder_joins_total", "Joins accepted.", control.joins)
        yield counter("crossborder_unauthenticated_calls_total", "Without a valid token.", counts.unauthenticated)
        yield counters("crossborder_joins_refused_total", "Joins refused.", "reason", counts.joins_refused)
        yield counters("crossborder_over_limit_total", "Calls refused by a limit.", "limit", counts.over_limit)
        yield gauge("crossborder_open_calls", "Calls that are open.", counts.open_calls.total())
        states = {state.label: registry.count(state) for state in _STATES}
        yield gauges("crossborder_actors", "Actors by state.", "state", states)
        yield counter("crossborder_env_steps_total", "Environment steps reported by actors.", control.env_steps)
        yield counter("crossborder_episodes_total", "Episodes reported by actors.", control.episodes)
        for column, text in _FLEET_COUNTERS.items():
            yield counter(f"crossborder_{_NAMES.get(column, column)}_total", text, registry.total(column))
        yield gauge("crossborder_episode_return_mean", "Mean return of 100 episodes.", control.return_mean)
        yield gauge("crossborder_episode_length_mean", "Mean length of 100 episodes.", control.length_mean)


def _by_actor(rows: Array, newest_opt_steps: int) -> Iterable[Metric]:
    """One series of each metric for each actor that holds an id, so never more than ``server.max_actors``."""
    labels = ("host", "name", "pid", "version")  # To find the process whose series these are.
    info = GaugeMetricFamily(
        "crossborder_actor_info", "Always 1; the labels say which process it is.", labels=["actor", *labels]
    )
    for values in map(plain_values, rows):
        info.add_metric([str(values["actor_id"]), *(str(values[label]) for label in labels)], 1)
    yield info
    for column, text in _ACTOR_COUNTERS.items():
        name = f"crossborder_actor_{_NAMES.get(column, column)}_total"
        yield _fill(CounterMetricFamily(name, text, labels=["actor"]), rows, rows[column])
    sent, finished = rows[rows["items"] > 0], rows[rows["episodes"] > 0]
    lags = newest_opt_steps - sent["behaviour_opt_steps"]
    for name, text, known, column_values in (
        ("last_seen_seconds", "Since it was last heard.", rows, time.monotonic() - rows["last_seen"]),
        ("spool_bytes", "Waiting for an acknowledgement.", rows, rows["spool_bytes"]),
        ("policy_lag_opt_steps", "Newest model minus the one of its last batch.", sent, lags.clip(0)),
        ("episode_return", "Return of its last episode.", finished, finished["last_return"]),
    ):
        yield _fill(GaugeMetricFamily(f"crossborder_actor_{name}", text, labels=["actor"]), known, column_values)


def _fill(family: CounterMetricFamily | GaugeMetricFamily, rows: Array, values: Array) -> Metric:
    for actor_id, value in zip(rows["actor_id"].tolist(), values.tolist(), strict=True):
        family.add_metric([str(actor_id)], value)
    return family


def _histogram(name: str, text: str, histogram: BucketCounts) -> Metric:
    buckets = [("+Inf" if bound == math.inf else str(bound), count) for bound, count in histogram.buckets()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
