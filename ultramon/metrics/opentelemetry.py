"""The same metrics as observable instruments of OpenTelemetry, by its API alone.

Without an SDK in the process nothing is collected. An instrument cannot be removed, so each is made
once per provider and shows every source that is exported at the moment.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ultramon.errors import MissingExtraError, StateError
from ultramon.metrics.definitions import ATTRIBUTES, COUNTER, METRICS
from ultramon.metrics.source import AGENT_LIMIT, MetricsSource
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from ultramon.backends.base import Backend
    from ultramon.metrics.definitions import Metric
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.metrics")
_lock = threading.Lock()
# Weak: an exporter here must not keep alive a provider that its program has dropped.
_exporters: WeakKeyDictionary[MeterProvider, _Exporter] = WeakKeyDictionary()
_global: list[_Exporter] = []


def start_opentelemetry(
    backend: Backend,
    run: str | None = None,
    *,
    agent_limit: int = AGENT_LIMIT,
    meter_provider: MeterProvider | None = None,
    state_directory: str | None = None,
    clock: Clock | None = None,
) -> Callable[[], None]:
    """Export the metrics of a store until the returned function is called.

    A run of a store is shown once, however often it is exported from this process.

    Args:
        backend: The store.
        run: Only this run; None = all runs.
        agent_limit: See `MetricsSource`.
        meter_provider: None = the global one, also one that is set later.
        state_directory: See `MetricsSource`.
        clock: For tests; None = the system's.

    Returns:
        Ends the export; further calls do nothing.

    Raises:
        MissingExtraError: `opentelemetry-api` is not installed.
        ConfigurationError: The limit is negative.
    """
    try:
        import opentelemetry.metrics  # noqa: F401
    except ModuleNotFoundError as error:
        feature = "the export to OpenTelemetry"
        raise MissingExtraError(feature, "opentelemetry-api", "otel") from error
    source = MetricsSource(
        backend, run, agent_limit=agent_limit, state_directory=state_directory, clock=clock
    )
    try:
        source.begin()
    # A store that does not answer now must not keep the program from starting.
    except StateError as error:
        _log.warning("events are counted from the first collection on: %s", error)
    return _exporter_of(meter_provider).add((backend.url, run), source)


def _exporter_of(provider: MeterProvider | None) -> _Exporter:
    with _lock:
        if provider is None:
            if not _global:
                _global.append(_Exporter(None))
            return _global[0]
        if provider not in _exporters:
            _exporters[provider] = _Exporter(provider)
        return _exporters[provider]


class _Exporter:
    """The instruments of one provider, and what they show."""

    def __init__(self, provider: MeterProvider | None) -> None:
        from opentelemetry.metrics import get_meter

        self._sources: dict[tuple[str, str | None], list[MetricsSource]] = {}
        self._last_problem = ""
        meter = get_meter("ultramon", __version__, meter_provider=provider)
        for metric in METRICS:
            make = (
                meter.create_observable_counter
                if metric.kind == COUNTER
                else meter.create_observable_gauge
            )
            make(metric.otel_name, [self._callback(metric)], metric.unit, metric.help)

    def add(self, key: tuple[str, str | None], source: MetricsSource) -> Callable[[], None]:
        with _lock:
            # Replaced, not changed in place: a collection may be reading the list.
            self._sources[key] = [*self._sources.get(key, ()), source]

        def remove() -> None:
            with _lock:
                left = [one for one in self._sources.get(key, ()) if one is not source]
                if left:
                    self._sources[key] = left
                else:
                    self._sources.pop(key, None)

        return remove

    def clear(self) -> None:
        self._sources = {}

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        names = [ATTRIBUTES[name] for name in metric.labels]

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            with _lock:
                # A run that is exported twice is shown once: its series would collide.
                shown = [sources[0] for sources in self._sources.values()]
            for source in shown:
                for labels, value in self._collect(source, metric).items():
                    yield Observation(value, dict(zip(names, labels, strict=True)))

        return observe

    def _collect(self, source: MetricsSource, metric: Metric) -> dict[tuple[str, ...], float]:
        try:
            found = source.collect()[metric]
        except StateError as error:
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                _log.warning("no metrics for now: %s", error)
            return {}
        self._last_problem = ""
        return found


def _after_fork() -> None:
    """Leave the export to the parent: a forked copy would export the same agents twice."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    for exporter in (*_global, *_exporters.values()):
        exporter.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
