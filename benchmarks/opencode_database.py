"""What ultramon reads of a database of opencode of many gigabytes, and how long that takes.

Made from a recorded session, with results of tools as long as the size asks for: sessions of 100
messages each, spread over a year, the newest of them of this hour. A hook's part is measured in
this process, each command as a process, first with nothing of the database in memory. By hand:
``python benchmarks/opencode_database.py --gigabytes 13``.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.opencode_database import MESSAGES, Rows, make

from ultramon.hosts.opencode.transcripts import TRANSCRIPTS

CALLS = 50
OTHER_BYTES = 1_700
"""Of a message, beside the result of its tool."""
# Runs the command line, then says how many bytes it has read, from memory or disk.
RUN = """
import sys
from ultramon.cli import main
try:
    main(sys.argv[1:])
finally:
    sys.stderr.write("\\n" + open("/proc/self/io").read().split()[1])
"""


def forget(path: Path) -> None:
    """Have the system forget what it holds of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bytes() -> int:
    """How many bytes this process has read, from memory or disk."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure_calls(path: Path) -> Iterator[str]:
    """Yield a row for each of the things that a hook reads."""
    with closing(sqlite3.connect(path)) as database:
        (name,) = database.execute("SELECT id FROM session ORDER BY id LIMIT 1").fetchone()
    session = str(path / name)
    asked: dict[str, Callable[[], object]] = {
        "the last reading": lambda: TRANSCRIPTS.read_last_reading(session, is_subagent=False),
        "the last two replies": lambda: TRANSCRIPTS.read_last_replies(session, is_subagent=False),
        "how it ended": lambda: TRANSCRIPTS.read_session_end(session, {}),
        "what 20 requests cost": lambda: TRANSCRIPTS.new_requests(session, (), 20),
        "its subagents": lambda: list(TRANSCRIPTS.subagent_transcripts(session)),
    }
    for what, ask in asked.items():
        forget(path)
        times = []
        before = read_bytes()
        for call in range(CALLS):
            began = time.perf_counter()
            ask()
            times.append((time.perf_counter() - began) * 1000)
            if call == 0:
                own = read_bytes() - before
        yield (
            f"| {what} | {times[0]:.1f} | {statistics.median(times[1:]):.2f} | {own / 1000:,.0f} |"
        )


def measure_commands(home: Path, path: Path) -> Iterator[str]:
    """Yield a row for each command, run twice."""
    with closing(sqlite3.connect(path)) as database:
        (name,) = database.execute("SELECT id FROM session ORDER BY id LIMIT 1").fetchone()
    commands = (
        ("--version",),
        ("status", "--from-transcripts"),
        ("report", "--days", "1"),
        ("report", "--days", "7"),
        ("explain", name),
    )
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color"}
    for command in commands:
        found = []
        for is_first in (True, False):
            if is_first:
                forget(path)
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", RUN, *command],
                env=environ, capture_output=True, encoding="utf-8", check=False,
            )  # fmt: skip
            seconds = time.perf_counter() - began
            assert done.returncode == 0, done.stderr
            found.append(f"{seconds:.2f} | {int(done.stderr.split()[-1]) / 1e6:,.0f}")
        shown = " ".join("ID" if one == name else one for one in command)
        yield f"| `ultramon {shown}` | {' | '.join(found)} |"


def main(gigabytes: float, sessions: int, folder: str | None) -> None:
    """Make the database and print the tables."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        path = home / ".local" / "share" / "opencode" / "opencode.db"
        began = time.perf_counter()
        result_bytes = int(gigabytes * 1e9 / sessions / MESSAGES) - OTHER_BYTES
        size = make(path, Rows(result_bytes, sessions))
        sys.stderr.write(f"{size / 1e9:.1f} GB in {time.perf_counter() - began:.0f} s\n")
        print(
            f"A database of {size / 1e9:.1f} GB: {sessions:,} sessions with"
            f" {sessions * MESSAGES:,} messages.\n"
        )
        print("| a hook reads | first, ms | again, ms | read, kB |\n|---|---|---|---|")
        print("\n".join(measure_calls(path)))
        print("\n| command | first, s | read, MB | again, s | read, MB |\n|---|---|---|---|---|")
        for row in measure_commands(home, path):
            print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=3_000)
    parser.add_argument("--folder", help="where the database is made")
    given = parser.parse_args()
    main(given.gigabytes, given.sessions, given.folder)
