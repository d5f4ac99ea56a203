"""Sessions that work while their resident is killed, stopped and let go on at random moments.

Every hook is the real process; of the client only its calls and transcripts are played, and a tool
does not wait for its PreToolUse. By hand: ``python benchmarks/resident_soak.py [--minutes 4]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.hooked_session import encoded, tokens_at
from helpers.resident_session import ResidentSession

from benchmarks.proof.found import Found, Operations
from ultramon.hosts.claude_code.install.commands import NOT_WAITED_FOR

REMAINING = (90, 88, 86, 34, 33, 24, 23, 22)
"""Percent that remain at the replies of a session: two of them cross a rung."""
CROSSINGS = (3, 5)
_PAUSES_SECONDS = (0.02, 0.8)


class Disturber(threading.Thread):
    """Does something to the resident, again and again.

    Args:
        session: Any session of it.
        seed: Of the random moments.
    """

    def __init__(self, session: ResidentSession, seed: int) -> None:
        super().__init__(daemon=True)
        self.done = Counter[str]()
        self.is_over = threading.Event()
        self._session = session
        self._random = random.Random(seed)

    def run(self) -> None:
        mark = self._session.state / "claude-code.resident-start"
        while not self.is_over.wait(self._random.uniform(*_PAUSES_SECONDS)):
            running = self._session.place.running()
            if running is None:
                # Another one need not be waited for, nor one that hung be left alone, for a minute.
                with suppress(FileNotFoundError):
                    os.utime(mark, (1, 1))
                continue
            what = self._random.choice(("SIGKILL", "SIGSTOP", "SIGCONT", "asked again"))
            if what == "asked again":
                self._session.place.end_pause()
            else:
                with suppress(ProcessLookupError):
                    os.kill(running["pid"], getattr(signal, what))
            self.done[what] += 1


class Worker(threading.Thread):
    """Plays sessions, one after the other, and compares what comes of each with what must."""

    def __init__(self, first: ResidentSession, number: int, until: float, seed: int) -> None:
        super().__init__()
        self.count = Counter[str]()
        self.problems: list[str] = []
        self._first = first
        self._number = number
        self._until = until
        self._random = random.Random(seed + number)

    def run(self) -> None:
        while time.monotonic() < self._until:
            self.count["sessions"] += 1
            session = self._first.beside(f"w{self._number}-{self.count['sessions']}")
            try:
                self._play(session)
            except Exception as error:  # noqa: BLE001 - a row of the table, not the end of the run
                self.problems.append(f"{session.session_id}: {error!r}")

    def _play(self, session: ResidentSession) -> None:
        starts: list[subprocess.Popen[bytes]] = []
        session.call("SessionStart", source="startup")
        session.call("UserPromptSubmit", prompt="work")
        before = self._stored(session)
        for number, remaining in enumerate(REMAINING):
            calls = [f"toolu_{number}_{one}" for one in range(self._random.randint(1, 2))]
            session.reply(tokens_at(remaining), *calls)
            for call in calls:
                payload = session.payload(NOT_WAITED_FOR, tool_name="Bash", tool_use_id=call)
                process = session.start()
                if self._random.random() < 0.1:
                    os.kill(process.pid, signal.SIGSTOP)  # late, maybe until the session is over
                process.stdin.write(encoded(payload))
                process.stdin.close()
                process.stdin = None
                starts.append(process)
            texts = [
                session.call("PostToolUse", tool_name="Bash", tool_use_id=call).text
                for call in calls
            ]
            self.count["calls"] += len(calls)
            told = sum("Context window:" in text for text in texts)
            self.count["told"] += min(told, number in CROSSINGS)
            self.count["told again"] += max(0, told - (number in CROSSINGS))
            if number in CROSSINGS:
                self.count["crossings"] += 1
                if not told:
                    self.problems.append(f"{session.session_id}: crossing {number} was not told")
            for process in starts[:: self._random.randint(1, 3)]:
                os.kill(process.pid, signal.SIGCONT)
            before = self._compare(session, before)
        session.call("Stop", last_assistant_message="Done.")
        session.call("SessionEnd", reason="other")
        for process in starts:
            os.kill(process.pid, signal.SIGCONT)
            process.communicate(timeout=120)
        active, phase, running, *_ = self._stored(session)
        if active or phase == "in_tool" or running:
            self.problems.append(f"{session.session_id}: {active} {phase} {running} at its end")

    def _stored(self, session: ResidentSession) -> tuple[object, ...]:
        # Never through the resident, which may be stopped.
        stored = json.loads(
            (session.state / "subagents" / f"{session.session_id}.json").read_bytes()
        )
        running = stored["claudeCode"].get("running", [])
        numbers = [stored[name] for name in ("generation", "epoch", "seq", "estimatedTokens")]
        return stored["active"], stored["phase"], running, *numbers

    def _compare(self, session: ResidentSession, before: tuple[object, ...]) -> tuple[object, ...]:
        after = self._stored(session)
        is_back = any(new < old for new, old in zip(after[3:], before[3:], strict=True))
        if is_back or not after[0]:
            self.problems.append(f"{session.session_id}: set back from {before} to {after}")
        return after


def main(minutes: float, workers: int, seed: int, counts: Path | None = None) -> str:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as path, closing(ResidentSession(Path(path))) as first:
        first.begin()
        disturber = Disturber(first, seed)
        disturber.start()
        until = began + 60 * minutes
        working = [Worker(first, number, until, seed) for number in range(workers)]
        for worker in working:
            worker.start()
        for worker in working:
            worker.join()
        disturber.is_over.set()
        disturber.join()
        if running := first.place.running():
            os.kill(running["pid"], signal.SIGCONT)
        crossed = Counter(event["agentId"] for event in first.events("context_threshold_reached"))
        failures = Counter(_kind(one) for one in first.failures())
    count = sum((worker.count for worker in working), Counter())
    problems = [one for worker in working for one in worker.problems]
    if counts is not None:
        Found(
            {
                "calls": Operations(count["calls"], count["calls"]),
                "crossings": Operations(count["crossings"], count["told"]),
            },
            faults={
                "resident killed": disturber.done["SIGKILL"],
                "resident suspended": disturber.done["SIGSTOP"],
            },
            broken=problems,
        ).write(counts)
    stored = sum(crossed.values())
    twice = sum(max(0, one - len(CROSSINGS)) for one in crossed.values())
    rows = [
        "### Sessions whose resident is killed, stopped and let go on at random",
        "",
        "| minutes | seed | sessions | calls | crossings | told at once | told again |"
        " stored | stored twice | killed | stopped | let go on | problems |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        f"| {(time.monotonic() - began) / 60:.1f} | {seed} | {count['sessions']:,} |"
        f" {count['calls']:,} | {count['crossings']:,} | {count['told']:,} |"
        f" {count['told again']:,} | {stored:,} | {twice} | {disturber.done['SIGKILL']} |"
        f" {disturber.done['SIGSTOP']} | {disturber.done['SIGCONT']} | {len(problems)} |",
        *(["", *problems[:20]] if problems else []),
        *(f"\n{number} × in the failure log: {kind}" for kind, number in failures.items()),
    ]
    return "\n".join(rows)


def _kind(problem: str) -> str:
    return "".join("N" if one.isdigit() else one for one in problem)[:120]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--counts", type=Path, help="write what `make proof` reads")
    given = parser.parse_args()
    print(main(given.minutes, given.workers, given.seed, given.counts))
