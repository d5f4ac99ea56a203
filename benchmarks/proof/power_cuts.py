"""Cuts the power of a disk while an agent writes to it: what was acknowledged must still be there.

The disk is an ext4 file system of its own in a file. A cut is its shutdown without a flush of its
journal: from that moment on nothing reaches the disk, and what no fsync has written is lost. Then
the writer is killed, and the disk mounted again. What was acknowledged is known from lines that the
writer printed, each with the time at which a call had returned. Each cut first writes something
without an fsync: where that survives, it was no cut. Linux and root only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import select
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.proof.found import Found, Operations
from ultramon import ContextConfig, create_context_monitor, on
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateError
from ultramon.notices.message import Draft

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers import ROOT, requirements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHUTDOWN = 0x8004587D
"""`EXT4_IOC_SHUTDOWN`."""
_NO_LOG_FLUSH = 2
_DISK_BYTES = 64 * 1024 * 1024
_LIFE_SECONDS = (0.0, 0.8)
"""From the first acknowledged write of a writer to the cut."""
_START_SECONDS = 120.0
RECIPIENT = "power-cut-inbox"
LIMIT_TOKENS = 10_000


class Disk:
    """A file system that loses what was not synced.

    Args:
        directory: For its file and its mount point.
    """

    def __init__(self, directory: Path) -> None:
        requirements.require_root()
        self._image = directory / "image-0"
        self._cuts = 0
        self.path = directory / "disk"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        make = [requirements.require_tool("mkfs.ext4"), "-q", str(self._image)]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        self.mount()

    def mount(self) -> None:
        """Mount it; what its journal holds is replayed.

        After a cut it is a copy: where another process holds the old mount, in a namespace of its
        own say, the same file would be mounted as the system that was shut down.
        """
        if self._cuts:
            old, self._image = self._image, self._image.with_name(f"image-{self._cuts}")
            copy = ["cp", "--sparse=always", str(old), str(self._image)]
            subprocess.run(copy, check=True, stdin=subprocess.DEVNULL)
            old.unlink()
        requirements.require_mount("-o", "loop", str(self._image), str(self.path))

    def cut(self) -> None:
        """Write something without an fsync, and cut the power."""
        self._cuts += 1
        (self.path / "not-synced").write_text("lost")
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        except OSError as error:
            requirements.missing(f"this ext4 cannot be shut down: {error}")
        finally:
            os.close(descriptor)

    def is_probe_lost(self) -> bool:
        """Return whether what the last cut had written without an fsync is gone."""
        probe = self.path / "not-synced"
        is_lost = not probe.exists() or not probe.read_bytes().strip(b"\0")
        probe.unlink(missing_ok=True)
        return is_lost

    def unmount(self) -> None:
        """Unmount it."""
        requirements.unmount(self.path)


def write(directory: str, life: str) -> None:
    """Work as agents do, one after the other, and say what was acknowledged. Never returns."""
    backend = LocalBackend(directory)

    @on("threshold")
    def crossed(event: Any) -> None:
        say("crossed", event.agent_id, is_stored=event.stored)

    for message in backend.queue.claim(RECIPIENT, now=time.time(), limit=500, lease_seconds=600.0):
        say("acknowledging", message.text)
        backend.queue.acknowledge(message.id, message.claim_token)
        say("acknowledged", message.text)
    for number in count():
        name = f"cut-{life}-{number}"
        config = ContextConfig(context_limit_tokens=LIMIT_TOKENS)
        monitor = create_context_monitor(name, config, backend=backend).start()
        say("started", name, is_stored=monitor.is_stored)
        for tokens in (1_000, 3_000, 5_000, 9_000):
            monitor.report_usage(input_tokens=tokens)
            is_stored = monitor.update_heartbeat(patiently=True)
            say("counted", name, tokens=tokens, is_stored=is_stored)
            key = f"{name}-{tokens}"
            if backend.queue.queue_message(Draft(RECIPIENT, key), now=time.time()):
                say("sent", key)
        say("handed over", name, is_stored=monitor.hand_off(notes=f"of {name}").stored)
        say("ended", name, is_stored=monitor.stop("returned"))


def say(fact: str, about: str, *, is_stored: bool = True, **details: object) -> None:
    """Print a line. Its time is behind the call that it speaks of."""
    line = {"at": time.monotonic(), "fact": fact, "about": about, "stored": is_stored, **details}
    os.write(1, f"{json.dumps(line)}\n".encode())


class Judge:
    """Compares what was acknowledged before a cut with what is there after it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self._waiting: set[str] = set()
        self._leaving: set[str] = set()

    def look(self, directory: Path, facts: Sequence[dict[str, Any]], cut_at: float) -> None:
        """Look at a disk that was cut and mounted again."""
        gone: set[str] = set()
        backend = LocalBackend(str(directory))
        with closing(backend):
            announced = {
                event["agentId"]
                for event in _events(backend)
                if event["type"] == "context_threshold_reached"
            }
            for fact in facts:
                about = fact["about"]
                if fact["fact"] == "acknowledging":
                    self._leaving.add(about)
                    continue
                self.counts["tried"] += 1
                if fact["fact"] == "sent":
                    self._waiting.add(about)
                if fact["at"] >= cut_at:
                    # Whether it came in time is unknown, also to its writer.
                    self._leaving.add(about)
                elif not fact["stored"]:
                    self.counts["refused"] += 1
                elif fact["fact"] == "acknowledged":
                    gone.add(about)
                elif fact["fact"] == "sent" or self._is_there(backend, fact, announced):
                    self.counts["found"] += 1
                else:
                    self.broken.append(f"lost: {fact}")
            self._compare_messages(backend, gone)
        with closing(sqlite3.connect(directory / "journal.sqlite3")) as journal:
            (state,) = journal.execute("PRAGMA integrity_check").fetchone()
        if state != "ok":
            self.broken.append(f"the journal is damaged: {state}")
        self.broken += [f"set aside: {path.name}" for path in directory.rglob("*corrupt*")]

    def _is_there(self, backend: LocalBackend, fact: dict[str, Any], announced: set[str]) -> bool:
        try:
            record = backend.load(fact["about"]).record
        except StateError as error:
            self.broken.append(f"{fact['about']}: {error}")
            return False
        return {
            "started": True,
            "counted": record.estimated_tokens >= fact.get("tokens", 0),
            "crossed": fact["about"] in announced,
            "handed over": (record.handoff or {}).get("notes") == f"of {fact['about']}",
            "ended": not record.active,
        }[fact["fact"]]

    def _compare_messages(self, backend: LocalBackend, gone: set[str]) -> None:
        queue, found, after = backend.queue, set[str](), 0
        while page := queue.peek(RECIPIENT, now=time.time(), after=after, limit=500):
            found.update(message.text for message in page)
            after = page[-1].id
        lost = self._waiting - self._leaving - found - gone
        again = gone & found
        self.broken += [f"message lost: {key}" for key in sorted(lost)]
        self.broken += [f"message back: {key}" for key in sorted(again)]
        self.counts["found"] += len(gone - again)
        self._waiting, self._leaving = found, set()


def _events(backend: LocalBackend) -> Iterator[dict[str, Any]]:
    after = None
    while (page := backend.events(after)).events:
        yield from page.events
        after = page.cursor


class Writer:
    """A process that runs `write`.

    Args:
        directory: The state directory.
        life: Its number.
    """

    def __init__(self, directory: Path, life: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.proof.power_cuts", "--write", directory, str(life)],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def is_at_work(self) -> bool:
        """Wait for its first line; False where there is none."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], _START_SECONDS)[0])

    def end(self) -> list[dict[str, Any]]:
        """Kill it, and return what it has said."""
        self._process.kill()
        out, _ = self._process.communicate()
        whole = out.decode().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]


def cut_again_and_again(directory: Path, seconds: float, seed: int) -> Found:
    """Cut the power of a disk until a time is over; the last cut is judged too."""
    chance, judge, faults = random.Random(seed), Judge(), Counter[str]()
    disk = Disk(directory)
    state = disk.path / "state"
    try:
        until = time.monotonic() + seconds
        for life in count():
            writer = Writer(state, life)
            if writer.is_at_work():
                time.sleep(chance.uniform(*_LIFE_SECONDS))
            # What returned before this moment was acknowledged while there was power.
            cut_at = time.monotonic()
            disk.cut()
            facts = writer.end()
            disk.unmount()
            disk.mount()
            faults["power cuts"] += 1
            if disk.is_probe_lost():
                faults["writes lost that no fsync had written"] += 1
            if facts:
                judge.look(state, facts, cut_at)
            if time.monotonic() > until or judge.broken:
                break
    finally:
        disk.unmount()
    counts = judge.counts
    return Found(
        operations={
            "acknowledged writes": Operations(counts["tried"], counts["found"], counts["refused"])
        },
        faults=dict(faults),
        broken=judge.broken,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=Path, help="where to write what was found")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", nargs=2, metavar=("DIRECTORY", "LIFE"), help="be the writer")
    given = parser.parse_args(arguments)
    if given.write:
        write(*given.write)
    try:
        with tempfile.TemporaryDirectory(prefix="ultramon-power-") as directory:
            found = cut_again_and_again(Path(directory), given.seconds, given.seed)
    except pytest.skip.Exception as missing:
        found = Found(cannot_run=str(missing))
    print(found)
    if given.counts:
        found.write(given.counts)
    return int(bool(found.broken))


if __name__ == "__main__":
    sys.exit(main())
