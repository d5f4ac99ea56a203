"""What an alert costs the command that asks for it: whole processes, started in turn, medians."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROUNDS = 61
CALLS = 2_001
SESSION = "session-1"
PROGRAM = str(Path(sys.executable).parent / "ultramon")
BARE = "python -c pass"
CALL = "from ultramon import check_and_alert_context; check_and_alert_context()"

Command = tuple[list[str], dict[str, str], int]


def write_project(folder: Path, percentage: int) -> None:
    """Keep a reading as a project does, fresh for as long as the measurement takes."""
    states = folder / "context-states"
    states.mkdir(parents=True, exist_ok=True)
    (folder / ".current-session").write_text(SESSION)
    reading = {
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "staleAfterMs": timedelta(days=1).total_seconds() * 1000,
        "contextWindow": {
            "percentage": percentage,
            "currentTokens": percentage * 2_000,
            "maxTokens": 200_000,
        },
    }
    (states / f"context-state-{SESSION}.json").write_text(json.dumps(reading))


def write_agent(folder: Path) -> None:
    """Store an agent at 45 % that this process owns."""
    from ultramon.backends.local.state_files import StateDirectory
    from ultramon.testing.samples import make_record

    states = StateDirectory(str(folder))
    states.prepare()
    values = {"estimated_tokens": 90_000, "usage_ratio": 0.45, "heartbeat_interval_seconds": None}
    states.replace(make_record("scout", at=time.time(), **values), durable=True)


def commands(folder: Path) -> dict[str, Command]:
    states, quiet, loud = folder / "states", folder / "quiet", folder / "loud"
    write_agent(states)
    write_project(quiet, 45)
    write_project(loud, 87)
    plain = {**os.environ, "ULTRAMON_STATE_DIR": str(states)}
    agent = {**plain, "ULTRAMON_AGENT_ID": "scout"}
    project = {**plain, "ULTRAMON_ALERT_DIR": str(quiet)}
    python = [sys.executable, "-c"]
    return {
        BARE: ([*python, "pass"], plain, 0),
        "import click": ([*python, "import click"], plain, 0),
        "check, of an agent": ([PROGRAM, "check"], agent, 0),
        "check, of a project": ([PROGRAM, "check"], project, 0),
        "alert, nothing new, of an agent": ([PROGRAM, "alert"], agent, 0),
        "alert, nothing new, of a project": ([PROGRAM, "alert"], project, 0),
        "alert, no session": ([PROGRAM, "alert"], plain, 0),
        "the call in a Python tool, nothing new": ([*python, CALL], agent, 0),
        "alert, two lines written and stored": (
            [PROGRAM, "alert", "--force"],
            {**plain, "ULTRAMON_ALERT_DIR": str(loud)},
            1,
        ),
    }


def run(command: Command) -> float:
    words, environment, code = command
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(words[0], words, environment, file_actions=nowhere)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - began) * 1000
    assert os.waitstatus_to_exitcode(status) == code, words
    return took


def call_time(folder: Path) -> float:
    """Return the microseconds of a call in a process that has made one before."""
    from ultramon import AlertConfig, check_and_alert_context

    config = AlertConfig()
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        outcome = check_and_alert_context(
            session="scout", state_dir=str(folder / "states"), config=config
        )
        took.append((time.perf_counter() - began) * 1e6)
        assert outcome.status == "ok"
    return statistics.median(took)


def main() -> str:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        contest = commands(folder)
        os.chdir(folder)
        times: dict[str, list[float]] = {name: [] for name in contest}
        for _ in range(ROUNDS):
            for name, command in contest.items():
                times[name].append(run(command))
        bare = statistics.median(times[BARE])
        lines = ["| whole process | median ms | p90 ms | over bare ms |", "|---|---|---|---|"]
        for name, values in times.items():
            median, p90 = statistics.median(values), statistics.quantiles(values, n=10)[-1]
            lines.append(f"| {name} | {median:.1f} | {p90:.1f} | {median - bare:+.1f} |")
        lines += [
            "",
            f"A further call in the same process, nothing new: {call_time(folder):.0f} µs.",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(main())
