"""Numbers about agents for monitoring systems: Prometheus and OpenTelemetry.

Reads the store when a system collects; keeps no series of its own, and never shows text that an
agent wrote. Nothing here is loaded until its name is used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.metrics.opentelemetry import start_opentelemetry
    from ultramon.metrics.prometheus import render_prometheus
    from ultramon.metrics.source import MetricsSource

__all__ = ["MetricsSource", "render_prometheus", "start_opentelemetry"]

_HOMES = {
    "MetricsSource": "source",
    "render_prometheus": "prometheus",
    "start_opentelemetry": "opentelemetry",
}

# Under TYPE_CHECKING a __getattr__ would make every misspelt name valid.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'ultramon.metrics' has no attribute {name!r}")
        return getattr(importlib.import_module(f"ultramon.metrics.{_HOMES[name]}"), name)
