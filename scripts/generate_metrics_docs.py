"""Write the table of docs/metrics.md, between the marks, from the definitions of the metrics.

Run it after a change of a metric: python scripts/generate_metrics_docs.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ultramon.metrics.definitions import METRICS

DOCS = Path(__file__).parent.parent / "docs" / "metrics.md"
_MARKED = re.compile(r"(<!-- metrics -->\n).*?(<!-- end -->)", re.DOTALL)


def _table() -> Iterator[str]:
    yield "| Prometheus | OpenTelemetry | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.shown_name}` | `{one.otel_name}` | `{one.unit}` | {labels} | {one.help} |"


def render(document: str) -> str:
    """Return the document with a fresh table."""
    table = "\n".join(_table())
    return _MARKED.sub(lambda match: f"{match[1]}{table}\n{match[2]}", document)


if __name__ == "__main__":
    DOCS.write_text(render(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
