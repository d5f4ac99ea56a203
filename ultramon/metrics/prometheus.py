"""The text that Prometheus scrapes, rendered by `prometheus_client`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.errors import MissingExtraError
from ultramon.metrics.definitions import COUNTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric as Family

    from ultramon.metrics.definitions import Samples
    from ultramon.metrics.source import MetricsSource


def render_prometheus(source: MetricsSource, accept: str = "") -> tuple[bytes, str]:
    """Return the body and the content type of the answer to a scrape.

    Args:
        source: What is shown.
        accept: The header of that name; decides between Prometheus' text format and OpenMetrics.

    Raises:
        MissingExtraError: `prometheus_client` is not installed.
        StateError: The store refused.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as error:
        raise MissingExtraError("GET /metrics", "prometheus-client", "metrics") from error
    samples = source.collect()

    class Collected(Collector):
        def collect(self) -> Iterator[Family]:
            return families(samples)

        def describe(self) -> list[Family]:
            return []

    # One of its own: the default registry also shows this process.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(samples: Samples) -> Iterator[Family]:
    """Return the families of `prometheus_client`, for a registry of your own."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric, values in samples.items():
        kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        yield family
