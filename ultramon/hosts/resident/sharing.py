"""Starts the process that shares this machine's agents, where a person has configured that.

Standard library only, and without the room `share`: a resident starts it by the command in the
choices, as `ultramon share` does, and waits for nothing.
"""

from __future__ import annotations

import os

from ultramon.errors import StateError
from ultramon.system import compact_json
from ultramon.system.files import open_private, read_private_file
from ultramon.system.locks import Lock, LockedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CHOICES_FILE = "share.json"
LOCK_FILE = "share.lock"
"""Held by the process that shares from a state directory."""
_KEPT = ("HOME", "PATH", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "TMPDIR")


def read_choices(directory: str) -> dict[str, Any] | None:
    """Return what was chosen about sharing from a state directory; None = nothing.

    Raises:
        StateCorruptError: The file is not one of this user.
        OSError: The system refused to read it.
        ValueError: It is no JSON object.
    """
    try:
        data, _ = read_private_file(os.path.join(directory, CHOICES_FILE))
    except FileNotFoundError:
        return None
    value = compact_json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("it holds no choices")
    return value


def lock_of(directory: str) -> Lock:
    """Return a ``with`` block that the sharing process of a state directory is in.

    Raises:
        LockedError: One runs.
    """
    return Lock(os.path.join(directory, LOCK_FILE), open_private, 0.0)


def is_running(directory: str) -> bool:
    """Return whether a process shares from a state directory."""
    if not os.path.lexists(os.path.join(directory, LOCK_FILE)):
        return False
    try:
        with lock_of(directory):
            return False
    except LockedError:
        return True


class Starter:
    """Starts a sharing process in the place of one that is gone.

    Args:
        directory: The state directory.
        environ: The environment of the process, of which it gets what it needs.
    """

    def __init__(self, directory: str, environ: Mapping[str, str] = os.environ) -> None:
        self._directory = directory
        self._environ = environ
        self._pid: int | None = None

    def start(self) -> int | None:
        """Start one, unless one runs or none is wanted; return its pid.

        Raises:
            OSError: The system refused.
            StateError: A file in the state directory is not safe to use.
            ValueError: The choices cannot be read.
        """
        self._reap()
        if self._pid is not None:
            return None
        choices = read_choices(self._directory)
        if not choices or choices.get("isOn") is not True or is_running(self._directory):
            return None
        command, given = choices.get("command"), choices.get("environment")
        if not (isinstance(command, list) and command and all(map(_is_text, command))):
            raise ValueError(f"{CHOICES_FILE} names no program")
        kept = {name: self._environ[name] for name in _KEPT if name in self._environ}
        named = given if isinstance(given, dict) else {}
        null = (os.devnull, os.O_RDWR, 0)
        self._pid = os.posix_spawn(
            command[0],
            [*command, self._directory],
            kept | {name: one for name, one in named.items() if _is_text(one)},
            # It outlives who started it, and holds none of its pipes.
            file_actions=[(os.POSIX_SPAWN_OPEN, fd, *null) for fd in range(3)],
            setsid=True,
        )
        return self._pid

    def _reap(self) -> None:
        """Take note of the end of the one that was started."""
        if self._pid is None:
            return
        try:
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            pass
        self._pid = None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def try_start(starter: Starter) -> str:
    """Start a sharing process where one is wanted; return why that failed, empty if it did not."""
    try:
        starter.start()
    except (OSError, StateError, ValueError) as error:
        return f"agents are not shared: {error}"
    return ""
