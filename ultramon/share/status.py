"""What the sharing process says about itself, in a file, for `ultramon share` and the doctor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ultramon.errors import StateError
from ultramon.system import compact_json
from ultramon.system.files import delete_quietly, read_private_file, replace_file
from ultramon.system.processes import process_started_at
from ultramon.system.timestamps import format_time
from ultramon.version import __version__

if TYPE_CHECKING:
    from ultramon.share.kept import Waiting

STATUS_FILE = "share-status.json"
WRITE_SECONDS = 5.0


class Status:
    """The facts of one sharing process, and their file.

    Args:
        directory: The state directory.
        machine_id: Of this machine.
        now: Epoch seconds.
    """

    def __init__(self, directory: str, machine_id: str, now: float) -> None:
        self._path = os.path.join(directory, STATUS_FILE)
        self._written_at = float("-inf")
        self.machine_id = machine_id
        self._since = now
        self.database = ""
        self.sent_at: float | None = None
        self.away_since: float | None = None
        self.problem = ""
        self.agents = self.alive = 0
        self.sent = {"states": 0, "events": 0, "readings": 0, "notices": 0}
        self.waiting: Waiting | None = None

    def came(self, now: float) -> None:
        """Note that the database has taken something."""
        was_away = self.away_since is not None
        self.sent_at, self.away_since, self.problem = now, None, ""
        self.write(now, at_once=was_away)

    def went(self, problem: str, now: float) -> None:
        """Note that it takes nothing, and why."""
        is_new = self.away_since is None or problem != self.problem
        self.away_since = self.away_since or now
        self.problem = problem
        self.write(now, at_once=is_new)

    def write(self, now: float, *, at_once: bool = False) -> None:
        """Write the file, every few seconds at most."""
        if not at_once and 0 <= now - self._written_at < WRITE_SECONDS:
            return
        self._written_at = now
        try:
            replace_file(self._path, compact_json.dumps(self.to_json(now)).encode("ascii") + b"\n")
        except StateError:
            return  # a disk that is full must not end what needs none

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the facts as the file has them."""
        waiting = self.waiting
        return {
            "pid": os.getpid(),
            "startedAt": process_started_at(os.getpid()),
            "version": __version__,
            "since": format_time(self._since),
            "at": format_time(now),
            "machineId": self.machine_id,
            "database": self.database,
            "sentAt": None if self.sent_at is None else format_time(self.sent_at),
            "awaySince": None if self.away_since is None else format_time(self.away_since),
            "problem": self.problem or None,
            "agents": self.agents,
            "alive": self.alive,
            "sent": self.sent,
            "waitingReadings": 0 if waiting is None else waiting.readings,
            "droppedReadings": 0 if waiting is None else waiting.dropped,
        }


def read_status(directory: str) -> dict[str, Any] | None:
    """Return what a process has written about itself; None when none has, or it is damaged.

    ``isRunning`` besides the members of the file: whether that process still runs.
    """
    try:
        data, _ = read_private_file(os.path.join(directory, STATUS_FILE))
        facts = compact_json.loads(data)
        is_running = process_started_at(facts["pid"]) == facts["startedAt"]
    except (OSError, StateError, ValueError, KeyError, TypeError):
        return None
    return {**facts, "isRunning": is_running and facts["startedAt"] is not None}


def delete_status(directory: str) -> None:
    """Delete the file."""
    delete_quietly(os.path.join(directory, STATUS_FILE))
