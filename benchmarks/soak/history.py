"""The history of a soak: an append-only file, one line per fact, each on the disk before it counts.

Imports nothing of ultramon. Every process of a soak writes to the same file; the order of the lines
is the order of the facts. Each line has ``fact`` (its kind), ``at`` (seconds of CLOCK_BOOTTIME,
which also passes while the machine sleeps) and ``pid``. The other keys, by kind:

| fact | written by | keys |
|---|---|---|
| ``given`` | the orchestrator, before it supervises | ``run``, ``items`` |
| ``started`` | a worker, once its agent has started | ``run``, ``agent`` |
| ``began`` | a worker, with the item's lock | ``item``, ``agent`` |
| ``two_holders`` | a worker that finds its item's lock held | ``item``, ``agent``, ``holder`` |
| ``did`` | a worker, once the effect is on the disk | ``item``, ``agent`` |
| ``lied`` | a worker that will claim the item without doing it | ``item``, ``agent`` |
| ``hung`` | a worker that will not go on, and should return | ``item``, ``agent`` |
| ``claimed`` | a worker whose loop asked for the next item | ``item``, ``agent`` |
| ``asked`` | `verify` | ``item``, ``answer``: ``yes``, ``no`` or ``raised`` |
| ``result`` | the orchestrator, when `supervise` returns | ``run``, ``result`` |
| ``sent`` | a sender, once the queue has accepted them | ``keys``, ``refused`` (how many not) |
| ``handled`` | a receiver, before it acknowledges them | ``keys`` |
| ``watches`` | a consumer of events, in the beginning | ``consumer`` |
| ``heard`` | a consumer that is notified of the start of an agent | ``consumer``, ``agent`` |
| ``killed``, ``suspended`` | the one who does it, just before | ``pids``, ``by`` |
| ``left_running`` | a worker, just before it forks what holds its item | ``item``, ``agent`` |
| ``store_failed`` | the one who causes it, just before | ``kind`` |
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Fact = dict[str, Any]


def now() -> float:
    """Return the time of facts, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def append(path: Path, line: str) -> None:
    """Add a line to a file; it is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # A kill in the middle of a write leaves a torn line; the next one begins after it.
        os.write(descriptor, f"\n{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(path: Path) -> Iterator[str]:
    """Yield the lines that `append` has written, and what is left of torn ones."""
    if path.exists():
        yield from filter(None, path.read_text(encoding="utf-8", errors="replace").splitlines())


class History:
    """Writes and reads the facts of one soak.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, fact: str, **details: object) -> None:
        """Store a fact."""
        entry = {"fact": fact, "at": round(now(), 6), "pid": os.getpid(), **details}
        append(self._path, json.dumps(entry))

    def __iter__(self) -> Iterator[Fact]:
        """Yield the facts in their order. A torn line is none: its writer was killed before it."""
        for line in lines(self._path):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry
