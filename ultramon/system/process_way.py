"""What a way to ask a system about its processes answers, where it has no ``/proc``."""

from __future__ import annotations

from typing import Protocol


class ProcessWay(Protocol):
    """A way to ask the system about processes, other than ``/proc``."""

    SHOWS_ENVIRONMENTS: bool

    def knows_this_process(self) -> bool:
        """Return whether the way works here, and says the truth about this process."""

    def boot_session(self) -> str:
        """Return what differs from boot to boot; empty where the system does not say."""

    def look_up(self, pid: int) -> tuple[int, str] | None:
        """Return parent and mark of a process; None for one that does not run, a zombie too.

        The mark is the second of its start, from 1970: of all ways the same.

        Raises:
            OSError: The system does not say.
        """

    def started_at(self, pid: int) -> float | None:
        """Return the epoch seconds of a start to the millisecond or better; None = unknown."""

    def pids(self) -> list[int]:
        """Return the processes of all users.

        Raises:
            OSError: The system does not say.
        """

    def command_words(self, pid: int) -> list[str]:
        """Return the words that a process was started with; empty where that is not shown."""

    def environment(self, pid: int) -> set[bytes]:
        """Return the variables that a process was started with, as ``NAME=value``.

        Raises:
            OSError: It has gone, is another user's, or the system does not say.
        """

    def place(self, pid: int) -> tuple[bytes, str] | None:
        """Return name and working directory of a process, None = unknown."""

    def resident_bytes(self, pid: int) -> int:
        """Return the memory that a process occupies, 0 = unknown."""
