"""What a scrape costs with 1,000 and 10,000 agents, against reading and parsing the same files."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable

from lists import UnlikeHerd

from ultramon.backends.local.backend import LocalBackend
from ultramon.metrics import MetricsSource, render_prometheus

COUNTS = (1_000, 10_000)
ROUNDS = 5
PARSED = "reading all, parsing with json"


def milliseconds(call: Callable[[], object]) -> float:
    """Return processor time: on a shared machine it moves less than the time on a clock."""
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def scrapes(count: int) -> list[str]:
    """Measure scrapes of many agents, of which all, 1 % or none changed since the last one."""
    times: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}

    with tempfile.TemporaryDirectory() as directory:
        herd = UnlikeHerd(directory, count)
        backend = LocalBackend(directory)

        def measure(name: str, source: MetricsSource) -> None:
            took = milliseconds(lambda: sizes.update({name: len(render_prometheus(source)[0])}))
            times.setdefault(name, []).append(took)

        for _ in range(ROUNDS):
            source = MetricsSource(backend, cache_seconds=0)
            source.begin()
            measure("the first one", source)
            for share, changed in ((1.0, "all"), (0.01, "1 %"), (0.0, "none")):
                herd.change(herd.ids[: int(count * share)])
                measure(f"{changed} changed", source)
            cached = MetricsSource(backend, cache_seconds=3_600)
            render_prometheus(cached)
            measure("another one within a second", cached)
            whole = MetricsSource(backend, agent_limit=count, cache_seconds=0)
            whole.collect()
            measure("none changed, series for every agent", whole)
            times.setdefault(PARSED, []).append(milliseconds(lambda: herd.read_with(json.loads)))
        backend.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        f"| {count:,} | {name} | {median:.1f} | {median / medians[PARSED]:.2f} |"
        f" {sizes.get(name, 0) // 1000 or ''} |"
        for name, median in medians.items()
    ]


def main() -> str:
    return "\n".join(
        [
            "### A scrape of `GET /metrics`, rendered",
            "",
            "| agents | scrape | processor ms | × json | kB |",
            "|---|---|---|---|---|",
            *(row for count in COUNTS for row in scrapes(count)),
        ]
    )


if __name__ == "__main__":
    print(main())
