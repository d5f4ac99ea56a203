"""The log of a server: one line per record, to stderr or to a file that can be rotated."""

from __future__ import annotations

import json
import logging
import os
import stat
from datetime import datetime
from logging.handlers import WatchedFileHandler
from typing import TYPE_CHECKING, Any

from ultramon.errors import StateDirectoryError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from io import TextIOWrapper

TEXT = "text"
JSON = "json"
FORMATS = (TEXT, JSON)
MAX_LINE_CHARS = 20_000
"""A traceback is one line of them."""


def _time_of(record: logging.LogRecord) -> str:
    """Return a record's local time with its offset from UTC."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


class LineFormatter(logging.Formatter):
    """Writes each record as one line without control characters, which requests can bring in."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time with its zone."""
        return _time_of(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return sanitize(super().format(record), max_chars=MAX_LINE_CHARS)


class JsonFormatter(logging.Formatter):
    """Writes each record as one JSON object in ASCII.

    ``time`` (ISO 8601 with the offset from UTC), ``level``, ``logger``, ``message``; of a request
    also ``request``: ``method``, ``path``, ``status`` (null: the client left), ``milliseconds``,
    ``caller`` (an agent id, ``admin``, ``hook``, ``metrics``, or null) and ``client`` (an address).
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": sanitize(record.getMessage(), max_chars=MAX_LINE_CHARS),
        }
        if (facts := getattr(record, "facts", None)) is not None:
            line["request"] = facts
        if record.exc_info:
            text = self.formatException(record.exc_info)
            line["traceback"] = sanitize(text, max_chars=MAX_LINE_CHARS)
        return json.dumps(line, separators=(",", ":"))


class LogFile(WatchedFileHandler):
    """Appends to a file that only this user can read; opens it again when it was moved away.

    Raises:
        StateDirectoryError: The path is a symlink, or no file.
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        super().__init__(os.path.abspath(path), encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        # No link is followed: another user could have planted it in a shared folder.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        found = os.open(self.baseFilename, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise StateDirectoryError(self.baseFilename, "is no file", "name another --log-file")
        return os.fdopen(found, "a", encoding="utf-8")

    def reopen(self) -> None:
        """Open the file again if it was moved away; the old one is closed."""
        self.acquire()
        try:
            self.reopenIfNeeded()
        finally:
            self.release()


def log_to(handler: logging.Handler, *, kind: str, log_requests: bool) -> None:
    """Have the loggers of this process write to a handler.

    Args:
        handler: A stream, or a `LogFile`.
        kind: One of `FORMATS`.
        log_requests: Also a line per request, and what else is logged at INFO by the server.
    """
    handler.setFormatter(JsonFormatter() if kind == JSON else LineFormatter())
    logging.getLogger().addHandler(handler)
    # It warns of every malformed request: a sender of many would fill a disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if log_requests:
        logging.getLogger("ultramon.server").setLevel(logging.INFO)
