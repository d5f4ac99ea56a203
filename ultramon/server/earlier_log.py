"""Readings that a server of an earlier version answered and did not store: they are stored now.

Up to 0.1.0 such a server wrote readings into two files of a state directory first, and deleted the
files at an orderly end. What a killed one left there is brought into the states.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ultramon.system import compact_json
from ultramon.system.files import delete_file, open_private, read_private_file, refused
from ultramon.system.findings import WARNING, Finding
from ultramon.system.locks import Lock, LockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LOCK = "posts.lock"
FILES = ("posts-0.log", "posts-1.log")
_MAX_BYTES = 1 << 23
_CRC_CHARS = 8
_log = logging.getLogger("ultramon.server")


class Reading(NamedTuple):
    """One reading, as the state of its agent counts it."""

    agent_id: str
    started_at: float
    """Of the agent, and its generation: a later agent of the same id is another."""
    generation: int
    seq: int
    """Of the state with this reading; a state with this one or a higher one holds it."""
    at: float
    """When it arrived, epoch seconds."""
    used_percentage: float
    total_input_tokens: int | None
    emitted_at: float | None


def find_earlier_log(directory: str) -> Iterator[Finding]:
    """Yield a warning for each file of a log that no server has stored since."""
    for path in (os.path.join(directory, name) for name in FILES):
        if os.path.lexists(path):
            cure = "start `ultramon serve` once: it stores them and deletes the file"
            yield Finding("readings", WARNING, f"{path} holds readings of an earlier version", cure)


def store_earlier_log(directory: str, retake: Callable[[str, list[Reading]], int]) -> None:
    """Store the readings of a log and delete its files; nothing where there is none.

    A log that a server of an earlier version still writes is left to that server.

    Args:
        directory: The state directory.
        retake: Stores the readings of an agent that its state lacks; returns how many.

    Raises:
        StateError: A file cannot be read, or a state not be written; nothing is lost.
    """
    paths = [os.path.join(directory, name) for name in (*FILES, LOCK)]
    if not any(map(os.path.lexists, paths)):
        return
    try:
        # Under its own lock: a server of that version may still write the log.
        with Lock(paths[-1], open_private, 0.0):
            _store(_readings(paths[:-1]), retake)
            for path in paths:
                delete_file(path)
    except LockedError:
        _log.info("a server of an earlier version writes %s: its readings are left to it", LOCK)


def _store(readings: Iterable[Reading], retake: Callable[[str, list[Reading]], int]) -> None:
    by_agent: dict[str, list[Reading]] = {}
    for one in readings:
        by_agent.setdefault(one.agent_id, []).append(one)
    for agent_id, of_one in by_agent.items():
        if count := retake(agent_id, of_one):
            _log.info("agent %s: %d readings from the log", agent_id, count)


def _readings(paths: Iterable[str]) -> list[Reading]:
    """Return the readings of the files, which took turns, in their order."""
    turns: list[list[tuple[int, Reading]]] = []
    for path in paths:
        try:
            data, _ = read_private_file(path, _MAX_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise refused(path, "cannot be read", error) from error
        turns.append(list(_lines_of_one_turn(data)))
    turns.sort(key=lambda lines: lines[0][0] if lines else 0)
    return [reading for lines in turns for _, reading in lines]


def _lines_of_one_turn(data: bytes) -> Iterator[tuple[int, Reading]]:
    first = None
    for line in data.split(b"\n"):
        found = _decode(line)
        # Behind the last line lies what the file held in an earlier turn, or zeros.
        if found is None or (first is not None and found[0] != first):
            return
        first = found[0]
        yield found


def _decode(line: bytes) -> tuple[int, Reading] | None:
    text = line[_CRC_CHARS:]
    if line[:_CRC_CHARS] != b"%08x" % crc32(text):
        return None
    try:
        turn, *values = compact_json.loads(text)
        return turn, Reading(*values)
    except (ValueError, TypeError):
        return None
