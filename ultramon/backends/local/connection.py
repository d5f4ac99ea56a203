"""The SQLite connection of a journal. Imported only where a journal is opened."""

from __future__ import annotations

import sqlite3

from ultramon.system.boot_clock import read_boot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.system.boot_clock import BootReading


def text_or_bytes(data: bytes) -> str | bytes:
    """Return a stored text; bytes where it is no UTF-8.

    SQLite would refuse the whole query, and one damaged row the rows behind it.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class JournalConnection(sqlite3.Connection):
    """A connection that knows what its statements would otherwise have to ask SQLite for.

    Attributes:
        directory: The state directory, where the flags of recipients are; empty = no hook reads
            this journal, and no flag is needed.
        busy_milliseconds: What its ``busy_timeout`` was set to last; None = never.
        read_boot: Returns what the clocks of this machine show.
    """

    directory: str = ""
    busy_milliseconds: int | None = None
    read_boot: Callable[[], BootReading] = staticmethod(read_boot)
