"""One relay at a time works on a run."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.errors import StateError
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.files import open_private, read_private_file, replace_file
from ultramon.system.locks import Lock, LockedError
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK = "relay.lock"
_HOLDER = "holder.json"


@contextmanager
def run_lock(folder: str) -> Iterator[None]:
    """Hold the run whose folder this is; the system lets go of it when the process ends.

    Raises:
        StateError: Another relay holds it, or the system refused.
    """
    holder = os.path.join(folder, _HOLDER)
    try:
        lock = Lock(os.path.join(folder, _LOCK), open_private, 0.0)
        lock.__enter__()
    except LockedError as error:
        name = os.path.basename(folder)
        raise StateError(
            f"run {name}", f"is in the hands of {_describe(holder)}", "one relay works on a run"
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
