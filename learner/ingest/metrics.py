"""The metrics of the ingest process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from learner.actor_table import ActorState
from learner.ingest.core import IngestCore
from learner.metrics import counter, gauge


class IngestCollector(Collector):
    """What ingest knows: items in, models out, actors."""

    def __init__(self, core: IngestCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        control, memory, registry = self._core.control, self._core.memory, self._core.registry
        yield counter("crossborder_items_total", "Items stored in the replay.", memory.committed)
        yield counter("crossborder_batches_total", "Batches stored in the replay.", control.batches)
        yield counter("crossborder_payload_bytes_total", "Bytes of items stored.", control.payload_bytes)
        yield counter("crossborder_duplicate_batches_total", "Batches sent again and not stored.", control.duplicates)
        yield counter("crossborder_refused_batches_total", "Batches refused.", control.refusals)
        yield counter(
            "crossborder_ack_hold_seconds_total", "Held back to keep the replay ratio.", control.actor_hold_seconds
        )
        yield counter("crossborder_model_fetches_total", "Models sent to actors.", control.fetches)
        yield counter("crossborder_model_not_modified_total", "Model requests with nothing new.", control.not_modified)
        yield counter("crossborder_joins_total", "Joins accepted.", control.joins)
        yield counter("crossborder_unauthenticated_calls_total", "Without a valid token.", control.unauthenticated)
        yield counter("crossborder_env_steps_total", "Environment steps reported by actors.", control.env_steps)
        yield counter("crossborder_episodes_total", "Episodes reported by actors.", control.episodes)
        yield gauge("crossborder_episode_return_mean", "Mean return of 100 episodes.", control.return_mean)
        yield gauge("crossborder_policy_lag_opt_steps", "Newest model minus the one that acted.", control.policy_lag)
        actors = GaugeMetricFamily("crossborder_actors", "Actors by state.", labels=["state"])
        for state in (ActorState.ONLINE, ActorState.AWAY, ActorState.LEFT, ActorState.LOST):
            actors.add_metric([state.name.lower()], registry.count(state))
        yield actors
