"""Commands that look at 10,000 agents, against reading and parsing the same files."""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time

import processor_time
from fleet import Herd

AGENTS = 10_000
ROUNDS = 7

READ = """
import os
folder = {folder!r}
loads = {loads}
for entry in os.scandir(folder):
    if entry.name.endswith(".json"):
        with open(entry.path, "rb") as file:
            loads(file.read())
"""
LOOK = """
import os
folder = {folder!r}
for entry in os.scandir(folder):
    found = entry.stat(follow_symlinks=False)
    if entry.name.endswith(".json"):
        fd = os.open(entry.path, os.O_RDONLY)
        os.read(fd, os.fstat(fd).st_size + 1)
        os.close(fd)
"""
COMMAND = "from ultramon.cli import main; import sys; sys.argv[1:] = {words!r}; main()"
TMUX = ["watch", "--format", "tmux"]
PARSED = "reading all, parsing with orjson"


class UnlikeHerd(Herd):
    """A herd in which no two states have the same numbers."""

    def change(self, ids: list[str]) -> None:
        chance = random.Random(20261123)
        record = self.record
        for agent_id in ids:
            record.estimated_tokens = chance.randrange(140_000)
            record.usage_ratio = round(record.estimated_tokens / 200_000, 4)
            record.anchor = {**(record.anchor or {}), "tokens": record.estimated_tokens}
            record.by_source = {"tool:read": chance.randrange(90_000)}
            record.last_activity = time.time() - chance.random() * 10
            super().change([agent_id])


def main() -> str:
    with tempfile.TemporaryDirectory() as directory:
        herd = UnlikeHerd(directory, AGENTS)
        folder = str(herd.folder)
        codes = {
            "`ultramon --version`": COMMAND.format(words=["--version"]),
            "`ultramon status --json`": COMMAND.format(words=["status", "--json"]),
            "`ultramon status --json --limit 20`": COMMAND.format(
                words=["status", "--json", "--limit", "20"]
            ),
            "`ultramon watch --format tmux`": COMMAND.format(words=TMUX),
            "listing and reading all, nothing parsed": LOOK.format(folder=folder),
            PARSED: READ.format(folder=folder, loads="__import__('orjson').loads"),
            "reading all, parsing with json": READ.format(
                folder=folder, loads="__import__('json').loads"
            ),
        }
        environment = {**os.environ, "ULTRAMON_STATE_DIR": directory}
        try:
            import orjson  # noqa: F401
        except ImportError:
            sys.stderr.write("orjson is missing, and with it the row that others are compared to\n")
            del codes[PARSED]
        times: dict[str, list[float]] = {name: [] for name in codes}
        for _ in range(ROUNDS):
            for name, code in codes.items():
                times[name].append(processor_time.of_python(code, environment) / 1000)
        size = (herd.folder / f"{herd.ids[0]}.json").stat().st_size
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians.get(PARSED, float("nan"))
    return "\n".join(
        [
            f"| {AGENTS:,} agents, states of {size:,} B | processor s | × orjson |",
            "|---|---|---|",
            *(
                f"| {name} | {median:.2f} | {median / base:.1f} |"
                for name, median in medians.items()
            ),
        ]
    )


if __name__ == "__main__":
    print(main())
