"""The memory of earlier alerts: each comes once, whichever process checks.

Only the process of an agent writes its state. Alerts come from other processes, so they keep a file
of their own: beside the states for an agent, in the project directory for a project's session.
"""

from __future__ import annotations

import os

from ultramon.backends.local.state_files import ALERTS
from ultramon.errors import StateCorruptError
from ultramon.system import compact_json
from ultramon.system.files import (
    make_private_directory,
    open_private,
    open_shared,
    read_private_file,
    read_shared_file,
    refused,
    replace_file,
)
from ultramon.system.ids import check_agent_id
from ultramon.system.locks import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ultramon.alerts.readings import Reading

    Kind = TypeVar("Kind")

LAST_ALERT = ".context-last-alert-{}"
LOCK_SECONDS = 0.05
"""Longest time that a check waits for another one of the same session."""
# It holds one word, and the longest level has nine letters.
_MAX_LEVEL_BYTES = 64


class AlertMemory:
    """The memory of one session.

    Args:
        value: As `to_json` returned it; a member that is missing or of another kind counts as
            never set.

    Attributes:
        level: The highest level alerted that has not re-armed since; None = none.
        filling: Identifies the filling of the window that had it; None where the file cannot.
        stale_alerted_at: Time of the last alert about stale data, epoch seconds; None = none, or
            another is due.
        alerted_at: Time of the last alert, epoch seconds; None = never.
        alerted_level: The level of the last alert about a level.
        counts: Runs since the last check, by command, of commands checked at every so many.
    """

    __slots__ = (
        "alerted_at",
        "alerted_level",
        "counts",
        "filling",
        "level",
        "stale_alerted_at",
    )

    def __init__(self, value: object = None) -> None:
        given = value if isinstance(value, dict) else {}
        self.level = _only(str, given.get("level"))
        self.filling: list[Any] | None = _only(list, given.get("filling"))
        self.stale_alerted_at = _only(float, given.get("staleAlertedAt"))
        self.alerted_at = _only(float, given.get("alertedAt"))
        self.alerted_level = _only(str, given.get("alertedLevel"))
        counts = _only(dict, given.get("counts")) or {}
        self.counts: dict[str, int] = {
            name: count for name, count in counts.items() if type(count) is int and count > 0
        }

    def to_json(self) -> dict[str, Any]:
        """Return a copy in the form of the file."""
        return {
            "level": self.level,
            "filling": self.filling,
            "staleAlertedAt": self.stale_alerted_at,
            "alertedAt": self.alerted_at,
            "alertedLevel": self.alerted_level,
            "counts": dict(self.counts),
        }

    def enter(self, filling: list[Any] | None) -> None:
        """Forget the alerts of an earlier filling of the window."""
        if self.filling != filling:
            self.filling = filling
            self.level = None
            self.stale_alerted_at = None


def _only(kind: type[Kind], value: object) -> Kind | None:
    return value if isinstance(value, kind) else None


class AlertFile:
    """The memory of one agent's alerts: ``<state dir>/alerts/<agent id>.json``.

    Args:
        state_directory: The state directory.
        agent_id: The agent.

    Raises:
        InvalidAgentIdError: The id may not become a file name.
    """

    __slots__ = ("_folder", "_is_damaged", "_path", "_state_directory")

    _is_shared = False

    def __init__(self, state_directory: str, agent_id: str) -> None:
        self._state_directory = state_directory
        self._folder = os.path.join(state_directory, ALERTS)
        self._path = os.path.join(self._folder, check_agent_id(agent_id))
        self._is_damaged = False

    def locked(self) -> Lock:
        """Return a ``with`` block in which no other process alerts about this session.

        Raises:
            LockedError: Held by another process beyond 50 ms.
            StateWriteError: It cannot be locked at all.
        """
        return Lock(f"{self._path}.lock", self._open_lock, LOCK_SECONDS)

    def _open_lock(self, path: str) -> int:
        make_private_directory(self._state_directory)
        make_private_directory(self._folder)
        return open_private(path)

    def load(self) -> AlertMemory:
        """Return the memory; an empty one when nothing can be read."""
        self._is_damaged = False
        try:
            return AlertMemory(compact_json.loads(self._read(f"{self._path}.json")))
        except (FileNotFoundError, NotADirectoryError):
            return AlertMemory()
        except (OSError, ValueError):
            self._is_damaged = True
            return AlertMemory()

    def _read(self, path: str) -> bytes:
        return read_private_file(path)[0]

    def save(self, memory: AlertMemory) -> None:
        """Store a memory. Call inside the lock, after `load`.

        A file that cannot be read is set aside as ``.corrupt``.

        Raises:
            StateWriteError: The file system refused.
        """
        self._replace(memory.to_json())

    def _replace(self, value: dict[str, Any]) -> None:
        path = f"{self._path}.json"
        # What cannot be read is evidence of a fault, and kept.
        if self._is_damaged:
            try:
                os.replace(path, f"{path}.corrupt")
            except OSError as error:
                raise refused(path, "cannot be set aside", error) from error
        replace_file(path, compact_json.dumps(value).encode("ascii"), shared=self._is_shared)


class ProjectAlertFile(AlertFile):
    """The memory of a project's session, in the project directory.

    The level is plain text in ``.context-last-alert-<session>``, where other tools of the project
    look for it; the rest is in ``.context-alert-<session>.json`` beside it. The umask decides the
    modes: a project may have several users.

    Args:
        directory: The project directory.
        session: The id of the session.

    Raises:
        InvalidAgentIdError: The id may not become a file name.
    """

    __slots__ = ("_known_level", "_level_path")

    _is_shared = True

    def __init__(self, directory: str, session: str) -> None:
        super().__init__(directory, session)
        self._path = os.path.join(directory, f".context-alert-{session}")
        self._level_path = os.path.join(directory, LAST_ALERT.format(session))
        self._known_level: str | None = None

    def _open_lock(self, path: str) -> int:
        return open_shared(path)

    def _read(self, path: str) -> bytes:
        return read_shared_file(path)

    def load(self) -> AlertMemory:
        """Return the memory; an empty one when nothing can be read."""
        memory = super().load()
        try:
            level = read_shared_file(self._level_path, _MAX_LEVEL_BYTES)
            memory.level = level.decode("ascii", "replace").strip()
        except (OSError, StateCorruptError):
            memory.level = None
        self._known_level = memory.level
        return memory

    def save(self, memory: AlertMemory) -> None:
        """Store a memory. Call inside the lock, after `load`.

        Raises:
            StateWriteError: The file system refused.
        """
        value = memory.to_json()
        # Other tools read this word, so it has a file of its own.
        level = value.pop("level")
        if level != self._known_level:
            replace_file(self._level_path, f"{level or ''}\n".encode(), shared=True)
        self._replace(value)


def memory_file(reading: Reading, state_directory: str) -> AlertFile:
    """Return the memory of the session that a reading is about."""
    if reading.directory is None:
        return AlertFile(state_directory, reading.session)
    return ProjectAlertFile(reading.directory, reading.session)
