"""What the commands at events did, for whoever asks: counts, and how each ended last.

One small file in the state directory for each file of settings with commands, written by the
process that runs them. Beside it a mark says when a process looked last.
"""

from __future__ import annotations

import hashlib
import os

from ultramon.errors import StateCorruptError, StateError
from ultramon.state.watched_levels import mark_watched, watched_at
from ultramon.system import compact_json
from ultramon.system.files import make_private_directory, read_private_file, replace_file
from ultramon.system.timestamps import format_time, parse_time
from ultramon.system.wording import moment, plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
_FOLDER = "commands"
_KEY_CHARS = 16
_MAX_FILE_BYTES = 65_536


class CommandRuns:
    """What the commands of one event did.

    Attributes:
        ran: How often its command was run.
        failed: How often it could not be started, failed, or took too long.
        skipped: Events for which nothing was run, as there were too many.
        late: Events for which nothing was run, as no process was there at the time.
        last_at: When its command ended last, epoch seconds; None = never.
        last_problem: What went wrong then; empty = nothing.
    """

    __slots__ = ("failed", "last_at", "last_problem", "late", "ran", "skipped")

    def __init__(
        self,
        *,
        ran: int = 0,
        failed: int = 0,
        skipped: int = 0,
        late: int = 0,
        last_at: float | None = None,
        last_problem: str = "",
    ) -> None:
        self.ran = ran
        self.failed = failed
        self.skipped = skipped
        self.late = late
        self.last_at = last_at
        self.last_problem = last_problem

    def words(self) -> str:
        """Return what they did in a few words: ``ran 3 times, last 2026-11-26 19:20:11Z``."""
        parts = [f"ran {plural(self.ran, 'time')}" if self.ran else "has not run yet"]
        if self.last_at is not None:
            parts.append(f"last {moment(self.last_at)}")
        if self.last_problem:
            parts.append(f"failed: {self.last_problem}")
        elif self.failed:
            parts.append(f"failed {plural(self.failed, 'time')} before")
        if self.skipped:
            parts.append(f"{plural(self.skipped, 'event')} skipped as too many")
        if self.late:
            parts.append(f"{plural(self.late, 'event')} seen too late")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the values as the file and ``on list --json`` hold them."""
        return {
            "ran": self.ran,
            "failed": self.failed,
            "skipped": self.skipped,
            "late": self.late,
            "lastAt": None if self.last_at is None else format_time(self.last_at),
            "lastProblem": self.last_problem,
        }


def commands_key(path: str) -> str:
    """Return the key of a file of settings on this machine, under which its commands are run."""
    machine = os.uname().nodename if hasattr(os, "uname") else ""
    whole = f"{machine}\0{os.path.realpath(path)}"
    return hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_CHARS]


class StoredRuns:
    """The runs of the commands of one file of settings, in a state directory.

    Args:
        directory: The state directory.
        key: As `commands_key` returned it.
    """

    __slots__ = ("_folder", "_mark", "path")

    def __init__(self, directory: str, key: str) -> None:
        self._folder = os.path.join(os.path.abspath(directory), _FOLDER)
        self._mark = f"{key}.watched"
        self.path = os.path.join(self._folder, f"{key}.json")

    def read(self) -> dict[str, CommandRuns]:
        """Return the runs by event; none of a missing or damaged file, which the next replaces."""
        try:
            return _read(self.path)
        except (StateError, OSError):
            return {}

    def write(self, runs: dict[str, CommandRuns]) -> None:
        """Store runs instead of all before.

        Raises:
            StateError: The directory is not safe to use, or the file system refused.
        """
        value = {"schema": SCHEMA, "runs": {name: one.to_json() for name, one in runs.items()}}
        make_private_directory(self._folder)
        replace_file(self.path, compact_json.dumps(value).encode("ascii") + b"\n")

    def add(
        self,
        name: str,
        *,
        skipped: int = 0,
        late: int = 0,
        ended_at: float | None = None,
        problem: str = "",
    ) -> None:
        """Add to the runs of one event. Of two processes that do so at once one may be lost.

        Args:
            name: The event.
            skipped: As of `CommandRuns`.
            late: As of `CommandRuns`.
            ended_at: When its command ended, epoch seconds; None = none was run.
            problem: What went wrong with that; empty = nothing.

        Raises:
            StateError: As for `write`.
        """
        runs = self.read()
        one = runs.setdefault(name, CommandRuns())
        one.skipped += skipped
        one.late += late
        if ended_at is not None:
            one.ran += 1
            one.failed += problem != ""
            one.last_at, one.last_problem = ended_at, problem
        self.write(runs)

    def mark_watched(self, now: float) -> None:
        """Note that a process runs the commands, for `watched_at`.

        Raises:
            StateError: The directory is not safe to use.
        """
        mark_watched(self._folder, now, self._mark)

    def watched_at(self) -> float | None:
        """Return when a process looked last, epoch seconds; None = never."""
        return watched_at(self._folder, self._mark)


def _read(path: str) -> dict[str, CommandRuns]:
    data, _ = read_private_file(path, _MAX_FILE_BYTES)
    try:
        return {str(name): _runs(one) for name, one in compact_json.loads(data)["runs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateCorruptError(path, f"no runs of commands: {error}") from error


def _runs(value: dict[str, Any]) -> CommandRuns:
    counts = {name: int(value[name]) for name in ("ran", "failed", "skipped", "late")}
    last_at = parse_time(value["lastAt"])
    return CommandRuns(**counts, last_at=last_at, last_problem=str(value["lastProblem"]))
