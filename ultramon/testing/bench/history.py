"""What really happened in a run: facts that agents append to one file, one a line.

Each is one write at the end of the file, so nothing of it is lost with an agent that is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Fact = dict[str, Any]

CONTEXT, BEGAN, DID, SAID, REQUEST, SPOILT = (
    "context", "began", "did", "said", "request", "spoilt",
)  # fmt: skip
"""A context starts · an item is begun · its work is on the disk · it is said to be done · tokens
are read · the work of other items is overwritten. Faults are noted by their names."""


class History:
    """The history of a run, for one agent.

    Args:
        path: The file; made where it is not there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.context: int = 0

    def start(self, items: list[str]) -> int:
        """Note the start of a context; return its number, from 1.

        Args:
            items: What it is to do.
        """
        with self._locked():
            before = [one for one in read_history(self._path) if one["fact"] == CONTEXT]
            self.context = 1 + len(before)
            self.note(CONTEXT, items=items, pid=os.getpid())
        return self.context

    def begin(self, item: str) -> int:
        """Note an attempt at an item; return its number, from 1."""
        with self._locked():
            begun = [one["item"] for one in read_history(self._path) if one["fact"] == BEGAN]
            number = 1 + begun.count(item)
            self.note(BEGAN, item=item, attempt=number)
        return number

    def note(self, fact: str, **more: Any) -> None:
        """Note a fact."""
        line = {"fact": fact, "context": self.context, "at": time.time(), **more}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Contexts may run side by side; a lock of the system ends with the process that has it.
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)


def read_history(path: str) -> list[Fact]:
    """Return the facts of a history, in their order; none where there is no file.

    A last line that a kill has cut off is left out.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1]]
