"""Runs one soak: ``python -m benchmarks.soak --minutes 30 --seed 7 --on postgres``.

Exits 1 when its history breaks a promise; the history is kept then. Linux only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import results
from benchmarks.proof.found import Found, Operations
from benchmarks.soak.checker import Verdict, judge
from benchmarks.soak.faults import Faults
from benchmarks.soak.stores import KINDS
from benchmarks.soak.world import ROOT, World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.soak.stores import Files, Postgres

SECTION = "Soak"
INTRODUCTION = """\
Written by `make soak ARGS="--write-results"`: a long job and messages, while processes are killed
and suspended at random and the store fails, judged by a history that is not ultramon's own.
[README.md](README.md) says how to read it."""
PROGRAMS = {
    "orchestrator": ["benchmarks.soak.orchestrator"],
    "sender": ["benchmarks.soak.messengers", "sender"],
    "first receiver": ["benchmarks.soak.messengers", "receiver"],
    "second receiver": ["benchmarks.soak.messengers", "receiver"],
    "consumer": ["benchmarks.soak.messengers", "consumer"],
    "server": ["ultramon", "serve", "--port", "0"],
}
LOOK_SECONDS = 0.2
DRAIN_LOOK_SECONDS = 2.0
RESTART_SECONDS = 1.0
"""At least, between two starts of one program: it may end at once while its store is away."""


class Soak:
    """The programs of a soak: started, and started again when they have ended.

    Args:
        world: Of the soak.
        store: What they store in.
    """

    def __init__(self, world: World, store: Files | Postgres) -> None:
        self._world = world
        self._store = store
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started_at: dict[str, float] = {}
        self._errors = world.errors.open("ab")

    def run(self, seconds: float, drain_seconds: float, every_seconds: float) -> Verdict:
        """Let everything befall them for a time, then wait until all is settled.

        Args:
            seconds: How long everything befalls them.
            drain_seconds: After so long without anything settled nothing more is waited for.
            every_seconds: The mean time between two kills or suspensions.
        """
        faults = Faults(self._world, self._store, every_seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._keep_running()
            faults.step()
            time.sleep(LOOK_SECONDS)
        self._world.is_first("closing")
        faults.close()
        settled, until = 0, time.monotonic() + drain_seconds
        while self._is_unsettled(verdict := self._judge()):
            if verdict.counts["settled"] > settled:
                settled, until = verdict.counts["settled"], time.monotonic() + drain_seconds
            if time.monotonic() > until:
                break
            self._keep_running()
            faults.continue_suspended()
            self._deliver()
            time.sleep(DRAIN_LOOK_SECONDS)
        return verdict

    def _is_unsettled(self, verdict: Verdict) -> bool:
        return bool(verdict.unfinished or verdict.messages_lost or verdict.missed)

    def _judge(self) -> Verdict:
        return judge(self._world.history, self._world.effects())

    def _keep_running(self) -> None:
        for name, command in PROGRAMS.items():
            process = self._running.get(name)
            if process is not None and (code := process.poll()) is None:
                continue
            if process is not None and not code and self._world.is_marked("closing"):
                continue
            if time.monotonic() - self._started_at.get(name, 0.0) >= RESTART_SECONDS:
                self._started_at[name] = time.monotonic()
                role = name.rpartition(" ")[2]
                self._running[name] = self._start("-m", *command, role=role)

    def _deliver(self) -> None:
        """Do as a person who looks after an outage: what waits on this machine is delivered."""
        self._start("-m", "ultramon", "backend", "check", role="person").wait()

    def _start(self, *arguments: str, role: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self._world.environment(role, self._store.url),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )

    def close(self) -> None:
        """End every process of the soak."""
        quiet_at = time.monotonic() + 1.0
        while time.monotonic() < quiet_at:
            for process in self._world.processes():
                process.send(signal.SIGKILL)
                quiet_at = time.monotonic() + 1.0
            time.sleep(LOOK_SECONDS)
        for process in self._running.values():
            process.wait()
        self._errors.close()


def table(on: str, minutes: float, seed: int, verdict: Verdict) -> list[str]:
    """Return the result of a soak as a table of one row, its lines."""
    counts = verdict.counts
    columns = {
        "on": on,
        "minutes": f"{minutes:g}",
        "seed": seed,
        "items": f"{counts['items']:,}",
        "contexts": f"{counts['contexts']:,}",
        "kills": f"{counts['killed']:,}",
        "suspensions": counts["suspended"],
        "orphans": counts["left_running"],
        "lies": counts["lied"],
        "checks that raised": counts["raised"],
        "faults of the store": counts["store_failed"],
        "lost": len(verdict.lost),
        "false": len(verdict.false),
        "unverified": len(verdict.unverified),
        "two holders": len(verdict.two_holders),
        "set aside": len(verdict.set_aside),
        "begun again": counts["begun again"],
        "done again": counts["done again"],
        "of these claimed before": counts["claimed and begun again"],
        "messages": f"{counts['messages']:,}",
        "messages lost": len(verdict.messages_lost),
        "handled again": counts["handled again"],
        "starts missed": len(verdict.missed),
    }
    rows = (columns.keys(), ["---"] * len(columns), map(str, columns.values()))
    return [f"| {' | '.join(row)} |" for row in rows]


def write_results(lines: list[str], path: Path = results.PATH) -> None:
    """Write a row into RESULTS.md, in the place of the row for the same kind of store."""
    head, rule, row = lines
    text = path.read_text(encoding="utf-8")
    section = re.search(rf"^## {SECTION}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = section[0].splitlines() if section else []
    old = found[found.index(rule) + 1 :] if head in found else []
    rows = {line.split()[1]: line for line in old if line}
    rows[row.split()[1]] = row
    ordered = [rows[kind] for kind in KINDS if kind in rows]
    results.replace_section(SECTION, "\n".join([INTRODUCTION, "", head, rule, *ordered]), path)


def found(verdict: Verdict) -> Found:
    """Return what a soak did and met, as a row of `make proof`."""
    counts = verdict.counts
    return Found(
        operations={
            "items": Operations(counts["begun"], counts["verified"], counts["not verified"]),
            "messages": Operations(
                counts["offered"] + counts["not sent"], counts["handled"], counts["not sent"]
            ),
        },
        faults=dict(verdict.faults),
        broken=[f"{kind}: {one}" for kind, all_ in verdict.violations.items() for one in all_],
    )


def report(verdict: Verdict, world: World) -> None:
    """Say what is broken, and where to look."""
    for kind, found in verdict.violations.items():
        print(f"{kind.replace('_', ' ')}: {len(found)}", *found[:20], sep="\n  ", file=sys.stderr)
    if verdict.violations:
        place = f"history and errors are in {world.path}"
        print(f"broken with --seed {world.seed}: {place}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=20261125)
    parser.add_argument("--on", choices=KINDS, default="files")
    parser.add_argument("--items", type=int, default=60, help="of each run")
    parser.add_argument("--every-seconds", type=float, default=1.0, help="mean time between kills")
    parser.add_argument(
        "--drain-seconds", type=float, default=120.0, help="at the end, without any progress"
    )
    parser.add_argument(
        "--without", nargs="*", default=(), metavar="NAME", help="leave out tricks and faults"
    )
    parser.add_argument("--keep", metavar="DIRECTORY", help="an empty one, for all files")
    parser.add_argument("--counts", type=Path, metavar="FILE", help="write what `make proof` reads")
    parser.add_argument("--write-results", action="store_true", help="write the row to RESULTS.md")
    given = parser.parse_args(arguments)
    directory = given.keep or tempfile.mkdtemp(prefix=f"ultramon-soak-{given.on}-")
    Path(directory).mkdir(parents=True, exist_ok=True)
    world = World(directory, given.seed, items=given.items, without=given.without)
    world.make()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends all others
    try:
        if sys.platform != "linux":
            pytest.skip("a soak finds its processes in /proc, which only Linux has")
        store = KINDS[given.on](world)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        shutil.rmtree(directory)
        if given.counts and isinstance(missing, pytest.skip.Exception):
            Found(cannot_run=str(missing)).write(given.counts)
        print(f"no soak on {given.on}: {missing}", file=sys.stderr)
        return int(isinstance(missing, pytest.fail.Exception))
    soak = Soak(world, store)
    try:
        verdict = soak.run(60 * given.minutes, given.drain_seconds, given.every_seconds)
    finally:
        soak.close()
        store.close()
    lines = table(given.on, given.minutes, given.seed, verdict)
    print(*lines, sep="\n")
    report(verdict, world)
    if given.counts:
        found(verdict).write(given.counts)
    if given.write_results:
        write_results(lines)
    if not verdict.violations and not given.keep:
        shutil.rmtree(directory)
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
