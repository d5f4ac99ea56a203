"""The folder of a run: its place, its JSON files, and the lock of the relay that works on it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.errors import StateCorruptError, StateError
from ultramon.hosts.calls.switches import RELAY_FOLDER
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.files import open_private, read_private_file, replace_file
from ultramon.system.locks import Lock, LockedError
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Decoded = TypeVar("Decoded")

SCHEMA = 1
MAX_FILE_BYTES = 1 << 26
WORKERS = "workers"
_LOCK = "relay.lock"
_HOLDER = "holder.json"
LOCK_FILES = (_HOLDER, _LOCK)


def run_directory(state_directory: str, run: str) -> str:
    """Return the folder of a relay: its choices, its worktree, the output of its contexts."""
    return os.path.join(os.path.abspath(state_directory), RELAY_FOLDER, run)


def worker_directory(state_directory: str, run: str, worker: int) -> str:
    """Return the folder of a worker of a relay; that of the first is the run's own."""
    folder = run_directory(state_directory, run)
    return folder if worker == 1 else os.path.join(folder, WORKERS, str(worker))


def worker_numbers(folder: str) -> list[str]:
    """Return the numbers of the workers beside the first that have a folder in that of a run."""
    try:
        return sorted(os.listdir(os.path.join(folder, WORKERS)))
    except FileNotFoundError:
        return []


def read_run_file(path: str, decode: Callable[[dict[str, Any]], Decoded]) -> Decoded:
    """Return what a relay wrote.

    Args:
        path: The file.
        decode: Called with its members; a ValueError, KeyError, TypeError or AttributeError means
            that they are damaged.

    Raises:
        FileNotFoundError: There is none.
        StateCorruptError: No relay of this version wrote it.
    """
    data, _ = read_private_file(path, MAX_FILE_BYTES)
    try:
        value = json.loads(data)
        if value.pop("schema") != SCHEMA:
            raise ValueError("another ultramon wrote it")
        return decode(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorruptError(path, str(error), "start another run") from error


def write_run_file(path: str, members: dict[str, Any]) -> None:
    """Write a file, readable by this user alone.

    Raises:
        StateError: The system refused.
    """
    replace_file(path, json.dumps({"schema": SCHEMA, **members}, indent=1).encode() + b"\n")


@contextmanager
def run_lock(folder: str) -> Iterator[None]:
    """Hold the run whose folder this is; the system releases it when the process ends.

    Raises:
        StateError: Another relay holds it, or the system refused.
    """
    holder = os.path.join(folder, _HOLDER)
    try:
        # The relay that holds it may work for hours, so nothing is waited for.
        lock = Lock(os.path.join(folder, _LOCK), open_private, 0.0)
        lock.__enter__()
    except LockedError as error:
        name = os.path.basename(folder)
        raise StateError(
            f"run {name}", f"is held by {_describe(holder)}", "one relay works on a run"
        ) from error
    try:
        me = {"pid": os.getpid(), "since": format_time(SYSTEM_CLOCK.now())}
        replace_file(holder, json.dumps(me).encode())
        yield
    finally:
        lock.__exit__(None, None, None)


def _describe(path: str) -> str:
    try:
        known = json.loads(read_private_file(path)[0])
        return f"process {known['pid']:d}, since {known['since']}"
    except (OSError, ValueError, KeyError, TypeError, StateError):
        return "another process"
