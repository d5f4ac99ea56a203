"""A host's database, read without writing to it or keeping it from being written.

Loaded late: SQLite would cost a hook 5 ms.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY_SECONDS = 0.2


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a database for reading; a link is what it leads to, as it is to the client.

    Raises:
        OSError: It is not there, not readable, or another program has locked it.
        ValueError: It is no regular file, no database, or one whose tables are not known.
    """
    check_regular(path)
    try:
        import sqlite3
    except ImportError as error:
        raise OSError(errno.ENOSYS, "this Python has no SQLite", path) from error
    # Without a log of writes no client has it open; SQLite would make an empty one, and leave it.
    real = os.path.realpath(path)  # a link has no log beside it
    how = "mode=ro" if os.path.exists(f"{real}-wal") else "mode=ro&immutable=1"
    try:
        uri = f"file:{quote(real)}?{how}"
        connection = sqlite3.connect(uri, timeout=_BUSY_SECONDS, isolation_level=None, uri=True)
        with closing(connection):
            connection.text_factory = bytes  # what is no UTF-8 must not hide the rest
            yield connection
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such"):
            raise ValueError(
                f"{path}: of a version that ultramon does not know: {error}"
            ) from error
        raise OSError(errno.EIO, str(error), path) from error
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path}: {error}") from error


def check_regular(path: str) -> None:
    """Refuse what would block: a pipe waits for a writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a regular file")
