"""`ultramon report` over 300 and 10,000 transcripts: the first run, later runs, a day's work later.

100 sessions and 200 subagents, about 200 MB as Claude Code writes them, with sources of Python's
standard library as the results of tools: most are short, one in twenty is longer than 8 kB. Then
2,500 sessions and 7,500 subagents, all short. Each run is a whole process; CPU seconds and wall
time.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(sys.executable).with_name("ultramon")
ROUNDS = 5


class Size(NamedTuple):
    """How much is planted."""

    sessions: int
    subagents: int
    session_bytes: int
    subagent_bytes: int


LONG = Size(100, 200, 1_500_000, 250_000)
MANY = Size(2_500, 7_500, 30_000, 20_000)
LIMIT = 167_000


class Writer:
    """Writes transcripts as the client does: a line per block, usage in each reply."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        root = Path(sysconfig.get_path("stdlib"))
        paths = sorted(root.glob("*.py"))[:120]
        self._sources = [
            (str(path), path.read_text(encoding="utf-8", errors="replace")) for path in paths
        ]

    def write(self, path: Path, size: int, session: str, agent: str | None = None) -> None:
        """Append so many bytes to a transcript."""
        path.parent.mkdir(parents=True, exist_ok=True)
        base = {
            "isSidechain": agent is not None,
            "sessionId": session,
            "cwd": f"/home/dev/project-{session[:1]}",
            "version": "2.1.330",
            "gitBranch": "main",
        } | ({"agentId": agent} if agent else {})
        tokens, written = 22_000, 0
        with path.open("a", encoding="utf-8") as file:

            def add(**entry: object) -> None:
                nonlocal written
                stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
                line = {"parentUuid": self._id(), **base, **entry, "timestamp": stamp}
                written += file.write(json.dumps(line) + "\n")

            add(type="user", message={"role": "user", "content": "Look into the tests, please."})
            while written < size:
                name, text = self._random.choice(self._sources)
                start = self._random.randrange(max(1, len(text) - 20_000))
                chars = min(20_000, int(300 * self._random.paretovariate(0.9)))
                result = text[start : start + chars]
                call, message = self._id(), self._id()
                usage = {
                    "input_tokens": 4,
                    "cache_read_input_tokens": tokens,
                    "cache_creation_input_tokens": 900,
                    "output_tokens": 120,
                }
                blocks = [
                    {"type": "text", "text": "I read on."},
                    {"type": "tool_use", "id": call, "name": "Read", "input": {"file_path": name}},
                ]
                for block in blocks:
                    reply = {"id": message, "role": "assistant", "model": "claude-sonnet-4-5"}
                    add(type="assistant", message={**reply, "content": [block], "usage": usage})
                content = [{"type": "tool_result", "tool_use_id": call, "content": result}]
                file_result = {"type": "text", "file": {"filePath": name, "content": result}}
                add(
                    type="user",
                    message={"role": "user", "content": content},
                    toolUseResult=file_result,
                )
                tokens += 1_100 + len(result) // 4
                if tokens > LIMIT:
                    metadata = {"trigger": "auto", "preTokens": tokens, "postTokens": 6_000}
                    add(type="system", subtype="compact_boundary", compactMetadata=metadata)
                    tokens = 28_000

    def _id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def plant(self, root: Path, planted: Size) -> list[Path]:
        """Write all transcripts; return those of the sessions."""
        paths = []
        for _ in range(planted.sessions):
            session = self._id()
            path = root / "projects" / f"-home-dev-{session[:1]}" / f"{session}.jsonl"
            self.write(path, planted.session_bytes, session)
            paths.append(path)
            for _child in range(planted.subagents // planted.sessions):
                agent = self._id()[:17]
                file = path.with_suffix("") / "subagents" / f"agent-{agent}.jsonl"
                self.write(file, planted.subagent_bytes, session, agent)
        return paths


def run(root: Path, *options: str) -> tuple[float, float]:
    """Return CPU seconds and wall seconds of one report."""
    environ = dict(
        os.environ,
        CLAUDE_CONFIG_DIR=str(root),
        CODEX_HOME=str(root / "none"),
        GEMINI_CLI_HOME=str(root / "none"),
        QWEN_HOME=str(root / "none"),
        XDG_CACHE_HOME=str(root / "cache"),
        ULTRAMON_STATE_DIR=str(root / "state"),
    )
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [PROGRAM, "report", *options], env=environ, stdout=subprocess.DEVNULL, check=True
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def main() -> str:
    return "\n\n".join(map(measure, (LONG, MANY)))


def measure(planted: Size) -> str:
    with tempfile.TemporaryDirectory(prefix="ultramon-report-") as folder:
        root, writer = Path(folder), Writer()
        sessions = writer.plant(root, planted)
        sizes = [path.stat().st_size for path in root.rglob("*.jsonl")]
        rows: dict[str, list[tuple[float, float]]] = {}
        rows["first run"] = [run(root)]
        index = next((root / "cache").rglob("*.sqlite3"))
        for number in range(ROUNDS):
            rows.setdefault("nothing new", []).append(run(root))
            rows.setdefault("nothing new, --by week", []).append(run(root, "--by", "week"))
            rows.setdefault("nothing new, --html", []).append(
                run(root, "--html", str(root / "report.html"))
            )
            for path in sessions[number * 5 : number * 5 + 5]:
                writer.write(path, 100_000, path.stem)
            rows.setdefault("5 sessions grew by 100 kB", []).append(run(root))
        lines = [
            f"{len(sizes)} transcripts, {sum(sizes) / 1e6:.0f} MB (largest "
            f"{max(sizes) / 1e6:.1f} MB); index {index.stat().st_size / 1e6:.1f} MB, daily sums "
            f"{(root / 'state' / 'daily_sums.sqlite3').stat().st_size / 1e6:.1f} MB.\n",
            "| `ultramon report` | CPU s | wall s |",
            "|---|---|---|",
        ]
        for name, times in rows.items():
            cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
            lines.append(f"| {name} | {cpu:.2f} | {wall:.2f} |")
        return "\n".join(lines)


if __name__ == "__main__":
    print(main())
