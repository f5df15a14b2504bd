"""The metrics of the ingest process, read from counters at each scrape; docs/metrics.md explains each of them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.data import Array
from learner.ingest.core import IngestCore
from learner.ingest.fleet_metrics import COUNTED, NAMES, FleetRates, figures_of, fleet_metrics
from learner.records.exposition import certificate_expiry, counter, counters, gauge, gauges, rank_info
from learner.shared.actor_table import ActorState, plain_values

_STATES = tuple(state for state in ActorState if state is not ActorState.UNUSED)


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
        yield from self._trainer()
        yield from self._models()
        yield from self._fleet()
        yield self._certificates()
        rows = self._core.registry.present_rows()
        yield from fleet_metrics(self._core, rows, self._rates.rates)
        if self._core.config.shows_each_actor:
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

    def _trainer(self) -> Iterable[Metric]:
        seconds = self._core.trainer_watch.silent_seconds
        yield gauge(
            "crossborder_trainer_silent_seconds", "Seconds since the training loop's last sign of life.", seconds
        )

    def _certificates(self) -> Metric:
        config = self._core.config
        return certificate_expiry({"grpc": config.server.tls, "metrics": config.metrics_tls})

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
    for name, (text, known, figures) in figures_of(core, rows).items():
        yield _fill(GaugeMetricFamily(f"crossborder_actor_{name}", text, labels=["actor"]), known, figures)


def _fill(family: CounterMetricFamily | GaugeMetricFamily, rows: Array, values: Array) -> Metric:
    for actor_id, value in zip(rows["actor_id"].tolist(), values.tolist(), strict=True):
        family.add_metric([str(actor_id)], value)
    return family
