"""The log of failed hook calls: a host must not see a failure, so it becomes a line here.

Standard library only. `ultramon doctor` shows the file.
"""

from __future__ import annotations

import os

from ultramon.errors import StateError
from ultramon.system import compact_json
from ultramon.system.files import (
    check_private,
    close_quietly,
    open_private,
    read_private_file,
    replace_file,
)
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVENTS_WAIT = "events wait in the state file: "
NOTICES_WAIT = "notices wait: "
"""What a failure begins with by which nothing is lost: the next call stores or claims it."""
FAILURES_SUFFIX = ".failures.jsonl"
"""Of the file, after the host's name."""
MAX_BYTES = 64 * 1024
_MAX_PROBLEM_CHARS = 500


def log_path(directory: str, host: str) -> str:
    """Return the path of a host's failure log."""
    return os.path.join(directory, host + FAILURES_SUFFIX)


def record(
    directory: str, host: str, event: str, agent_id: str, problem: str, *, now: float
) -> None:
    """Add a line; nothing happens where even that is refused.

    Args:
        directory: The state directory; nothing is written where it does not exist.
        host: Name of the host.
        event: The hook event, empty when it is not known.
        agent_id: The agent, empty when it is not known.
        problem: What went wrong, for people.
        now: Epoch seconds.
    """
    path = log_path(directory, host)
    failure = {
        "at": format_time(now),
        "event": event[:64],
        "agentId": agent_id[:128],
        "problem": problem[:_MAX_PROBLEM_CHARS],
    }
    line = compact_json.dumps(failure)
    try:
        fd = open_private(path, os.O_RDWR | os.O_APPEND)
        try:
            found = os.fstat(fd)
            check_private(found, path)
            if found.st_nlink > 1:  # the other name, as in a backup, keeps what it has
                replace_file(path, os.pread(fd, MAX_BYTES, 0) + line.encode("ascii") + b"\n")
                return
            # One write at the end of the file: parallel hooks cannot mix their lines.
            os.write(fd, line.encode("ascii") + b"\n")
            size = os.fstat(fd).st_size
            if size > MAX_BYTES:
                newer = os.pread(fd, MAX_BYTES // 2, size - MAX_BYTES // 2)
                replace_file(path, newer.partition(b"\n")[2])
        finally:
            close_quietly(fd)
    except (OSError, StateError):
        return


def is_delay(problem: object) -> bool:
    """Return whether a failure only says that another writer was faster: nothing was lost."""
    return (
        isinstance(problem, str)
        and problem.startswith((EVENTS_WAIT, NOTICES_WAIT))
        and "locked" in problem
    )


def read(path: str) -> list[dict[str, Any]]:
    """Return the failures, oldest first, each with ``at``, ``event``, ``agentId``, ``problem``.

    Raises:
        StateCorruptError: The file is not this user's own regular file.
        OSError: The system refused.
    """
    try:
        data, _ = read_private_file(path)
    except FileNotFoundError:
        return []
    failures = []
    for line in data.splitlines():
        try:
            failure = compact_json.loads(line)
        except ValueError:
            continue
        if isinstance(failure, dict):
            failures.append(failure)
    return failures
