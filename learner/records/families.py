"""Prometheus metrics with their values at the moment of a scrape.

The processes count in shared memory and plain attributes. A collector builds these families from the counts when it is
scraped, so the hot paths pay nothing for metrics. docs/metrics.md says what each metric means.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def counter(name: str, text: str, value: float | None) -> Metric:
    """A counter; its name ends in ``_total``. For None it is exposed without a sample."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A gauge; for None it is exposed without a sample."""
    return GaugeMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A counter with a sample for each value of one label."""
    return _labelled(CounterMetricFamily(name, text, labels=[label]), values)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge with a sample for each value of one label."""
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), values)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A gauge that is always 1 and has its information in its labels."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def rank_info(run_id: str, rank: int, n_ranks: int) -> Metric:
    """The rank of this process in its run, to be joined to its other metrics by ``instance`` and ``job``."""
    labels = {"run_id": run_id, "rank": str(rank), "ranks": str(n_ranks)}
    return info("crossborder_rank_info", "The rank of this process.", labels)
