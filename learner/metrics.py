"""Prometheus metrics, read from counters when they are scraped: the hot paths do nothing for them.

Each process has its own registry and endpoint. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.errors import AddressError
from learner.actor_table import ActorState
from learner.status import Status

if TYPE_CHECKING:
    from learner.ingest.core import IngestCore


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class IngestCollector(Collector):
    """What ingest knows: items in, models out, actors."""

    def __init__(self, core: IngestCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        control, memory, registry = self._core.control, self._core.memory, self._core.registry
        yield _counter("crossborder_items_total", "Items stored in the replay.", memory.committed)
        yield _counter("crossborder_batches_total", "Batches stored in the replay.", control.batches)
        yield _counter("crossborder_payload_bytes_total", "Bytes of items stored.", control.payload_bytes)
        yield _counter("crossborder_duplicate_batches_total", "Batches sent again and not stored.", control.duplicates)
        yield _counter("crossborder_refused_batches_total", "Batches refused.", control.refusals)
        yield _counter(
            "crossborder_ack_hold_seconds_total", "Held back to keep the replay ratio.", control.actor_hold_seconds
        )
        yield _counter("crossborder_model_fetches_total", "Models sent to actors.", control.fetches)
        yield _counter("crossborder_model_not_modified_total", "Model requests with nothing new.", control.not_modified)
        yield _counter("crossborder_joins_total", "Joins accepted.", control.joins)
        yield _counter("crossborder_env_steps_total", "Environment steps reported by actors.", control.env_steps)
        yield _counter("crossborder_episodes_total", "Episodes reported by actors.", control.episodes)
        yield _gauge("crossborder_episode_return_mean", "Mean return of 100 episodes.", control.return_mean)
        yield _gauge("crossborder_policy_lag_opt_steps", "Newest model minus the one that acted.", control.policy_lag)
        actors = GaugeMetricFamily("crossborder_actors", "Actors by state.", labels=["state"])
        for state in (ActorState.ONLINE, ActorState.AWAY, ActorState.LEFT, ActorState.LOST):
            actors.add_metric([state.name.lower()], registry.count(state))
        yield actors


class TrainerCollector(Collector):
    """What the trainer knows: steps, replay, records (every recorded key as one labelled gauge)."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        yield _counter("crossborder_opt_steps_total", "Optimisation steps.", status.opt_steps)
        yield _counter("crossborder_samples_drawn_total", "Items drawn from the replay.", status.sampled)
        yield _gauge("crossborder_replay_size_items", "Items that can be drawn.", status.replay_size)
        yield _counter("crossborder_trainer_wait_seconds_total", "Waited for items.", status.trainer_wait_seconds)
        yield _gauge("crossborder_best_score", "Highest evaluation score.", status.best_score)
        record = GaugeMetricFamily("crossborder_record", "The newest value of each recorded key.", labels=["key"])
        for key, value in status.record.items():
            record.add_metric([key], value)
        yield record


class MetricsServer:
    """Serves /metrics in a thread of its own until ``close``.

    Args:
        collector: what is served, beside the process's own figures.
        host: address to listen on.
        port: 0 takes a free one, None serves nothing.

    Raises:
        AddressError: the port is taken.
    """

    def __init__(self, collector: Collector, host: str, port: int | None) -> None:
        self.port: int | None = None
        if port is None:
            return
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, host, registry)
        except OSError as error:
            raise AddressError(
                f"metrics: cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error
        self.port = int(self._server.server_port)

    def close(self) -> None:
        if self.port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5)
