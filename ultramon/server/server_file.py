"""A server of a state directory: `<name>.lock` while it runs, `<name>.json` says where.

Standard library only, so that readers need no extra. The process id in the file is for people: the
lock alone decides whether the server runs.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ultramon.errors import StateCorruptError, StateError
from ultramon.system import compact_json
from ultramon.system.files import delete_quietly, open_private, read_private_file, replace_file
from ultramon.system.locks import Lock, LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = "server"
"""The name of the server of the HTTP API."""
# Long enough for another process to finish probing the same lock.
_PROBE_SECONDS = 0.05
_START_SECONDS = 0.5
_PROBE_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def read_server_file(state_directory: str, name: str = SERVER) -> dict[str, Any] | None:
    """Return the contents of a server's file while it runs for a state directory.

    Args:
        state_directory: Its absolute path; need not exist.
        name: Of the server.

    Returns:
        ``url``, ``host``, ``port``, ``pid``, ``startedAt`` and ``version``. None when no server
        runs, whatever an earlier one left behind, and until it listens.

    Raises:
        StateCorruptError: No server wrote the file.
        StateError: The lock cannot be probed.
    """
    is_running = _is_held(os.path.join(state_directory, f"{name}.lock"))
    return _read(state_directory, name) if is_running else None


def _is_held(path: str) -> bool:
    try:
        with Lock(path, lambda name: os.open(name, _PROBE_FLAGS), _PROBE_SECONDS):
            return False
    except LockedError:
        return True
    except StateError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def _read(state_directory: str, name: str) -> dict[str, Any] | None:
    path = os.path.join(state_directory, f"{name}.json")
    try:
        found = compact_json.loads(read_private_file(path)[0])
    except FileNotFoundError:
        return None
    except StateError:
        raise
    except ValueError as error:
        raise StateCorruptError(path, "is no JSON", "start the server again") from error
    except OSError as error:
        raise StateError(path, f"cannot be read: {error.strerror}") from error
    if not isinstance(found, dict) or not isinstance(found.get("url"), str):
        raise StateCorruptError(path, "is not what a server wrote", "start the server again")
    return found


@contextmanager
def only_server(state_directory: str, name: str = SERVER) -> Iterator[None]:
    """Be the one server of that name of a state directory within the ``with`` block.

    Args:
        state_directory: Its absolute path; must exist.
        name: Of the server.

    Raises:
        StateError: Another server runs for it.
    """
    path = os.path.join(state_directory, f"{name}.lock")
    # A reader that probes the lock holds it for a moment.
    lock = Lock(path, open_private, _START_SECONDS)
    with ExitStack() as held:
        try:
            held.enter_context(lock)
        except LockedError as error:
            running = _read(state_directory, name)
            where = f" at {running['url']}" if running else ""
            reason = f"another {name} runs for this directory{where}"
            raise StateError(path, reason, "stop it, or name another one") from error
        yield


def write_server_file(state_directory: str, facts: dict[str, Any], name: str = SERVER) -> None:
    """Write a server's file, with mode 0600.

    Raises:
        StateWriteError: The file system refused.
    """
    import json

    data = json.dumps(facts, indent=2).encode("ascii") + b"\n"
    replace_file(os.path.join(state_directory, f"{name}.json"), data)


def remove_server_file(state_directory: str, name: str = SERVER) -> None:
    """Delete a server's file."""
    delete_quietly(os.path.join(state_directory, f"{name}.json"))
