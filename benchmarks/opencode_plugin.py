"""How long opencode waits for ultramon's plugin, with and without a resident.

Calls follow each other after 20 ms, less than the client and a model ever take; and at once, which
the storing of each call bounds. Node stands for the client, and a real resident answers. By hand:
``python benchmarks/opencode_plugin.py``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.opencode_plugin import SESSION, Plugin, prompt, reply

CALLS = 200
PAUSE_SECONDS = 0.02


def measure(
    *, resident: bool, pause_seconds: float = PAUSE_SECONDS
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of calls before a request, and of calls that are not awaited."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # processes may still write
    with folder as name, pytest.MonkeyPatch.context() as patch:
        plugin = Plugin(Path(name), patch, resident=resident)
        try:
            plugin.start()
            if resident:
                plugin.begin()
            plugin.limits()
            tool = {"tool": "bash", "sessionID": SESSION, "callID": "call_1"}
            asked, noted = [], []
            for number in range(CALLS if resident else 20):
                infos = prompt("msg_1"), reply(f"msg_2{number:03}", 10_000 + number)
                time.sleep(pause_seconds)
                asked.append(plugin.request(*infos)[1])
                time.sleep(pause_seconds)
                noted.append(plugin.call("tool.execute.before", tool)["ms"])
        finally:
            plugin.end()
    return asked, noted


def row(name: str, times: list[float]) -> str:
    """Return a row of the table."""
    p90 = sorted(times)[len(times) * 9 // 10]
    return f"| {name} | {min(times):.2f} | {statistics.median(times):.2f} | {p90:.2f} |"


def main() -> None:
    """Print the table."""
    print("Milliseconds that the client waits for one call of the plugin.\n")
    print("| call | least | median | p90 |\n|---|---|---|---|")
    for resident in (True, False):
        asked, noted = measure(resident=resident)
        how = "with a resident" if resident else "without one"
        print(row(f"before a request, {how}", asked))
        print(row(f"before a tool, {how}", noted))
    asked, noted = measure(resident=True, pause_seconds=0.0)
    print(row("before a request, with a resident, at once", asked))


if __name__ == "__main__":
    main()
