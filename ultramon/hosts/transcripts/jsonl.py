"""Careful reading of the JSON lines that hosts write: bounded memory, no exception on any bytes.

Standard library only, because hooks import it. Knows no host.
"""

from __future__ import annotations

import os
import stat

from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    Boundary,
    Broken,
    LastReading,
    Overflow,
    Report,
    Window,
)
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, BinaryIO

    from ultramon.hosts.transcripts.records import Record

    JsonObject = Mapping[str, object]
    """One of a transcript or a payload: of what kind its members are is to be asked."""

# Where texts are in content blocks and attachments. Images lie under other keys, as base64 that
# would be taken for hundreds of thousands of tokens.
TEXT_KEYS = ("text", "content", "file", "prompt")
MAX_LINE_BYTES = 64 * 1024 * 1024
_MAX_TOKENS = 1_000_000_000
_MAX_REMEMBERED = 4096
_MAX_ID_CHARS = 256
_MAX_HEAD_LINES = 400


class Recent:
    """A mapping from short ids that forgets its oldest entries, so that no file can fill memory."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._values

    def add(self, key: object, value: str = "") -> None:
        """Remember the start of a value; a key that is no short text is no id and is left out."""
        if isinstance(key, str) and len(key) <= _MAX_ID_CHARS:
            self._values[key] = value[:_MAX_ID_CHARS]
            if len(self._values) > _MAX_REMEMBERED:
                del self._values[next(iter(self._values))]

    def get(self, key: object) -> str | None:
        """Return the value remembered for `key`, or None."""
        return self._values.get(key) if isinstance(key, str) else None

    def to_json(self) -> dict[str, str]:
        """Return what is remembered."""
        return self._values


class TranscriptReader:
    """Reads one transcript line by line, and can continue where another one stopped."""

    is_ignorable: Callable[[bytes], bool] = staticmethod(lambda line: False)
    """Tells cheaply, and never wrongly, that a line holds nothing for `read`."""
    is_beside_requests: Callable[[bytes], bool] = staticmethod(lambda line: False)
    """Tells the same of a line that says nothing of a `Report` or `Billed`, here or later: for who
    counts requests alone."""
    held: tuple[Record, ...] = ()
    """What the next line may still change: the last records where no line follows."""

    def read(self, entry: dict[str, Any]) -> Iterable[Record]:
        """Return the facts of one line; raise ValueError when it makes no sense."""
        raise NotImplementedError

    def memory(self) -> dict[str, Any]:
        """Return, as JSON, what a reader needs that continues behind the last line."""
        raise NotImplementedError


def bounded_lines(stream: BinaryIO, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file without ever holding more than `max_line_bytes` + 1 of one.

    Iterating over the file itself would load a line of any length. The rest of a longer line is
    read and dropped; what is yielded of it is too long for `read_lines`, which reports it.
    """
    while line := stream.readline(max_line_bytes + 1):
        yield line
        overlong = len(line) > max_line_bytes and not line.endswith(b"\n")
        del line
        while overlong:
            # Read past piece by piece, never held as a whole.
            rest = stream.readline(1024 * 1024)
            overlong = bool(rest) and not rest.endswith(b"\n")


def whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield lines, and leave a stream before a last line that is still being written."""
    for line in bounded_lines(stream):
        if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
            stream.seek(-len(line), os.SEEK_CUR)
            return
        yield line


def read_lines(
    lines: Iterable[bytes],
    read: Callable[[dict[str, Any]], Iterable[Record]],
    is_ignorable: Callable[[bytes], bool],
) -> Iterator[Record]:
    """Decode each line as a JSON object and yield what `read` makes of it, or a Broken.

    Args:
        lines: The lines, with or without their line ends.
        read: Turns one object into records; raises ValueError when the object makes no sense.
        is_ignorable: Tells cheaply, and never wrongly, that a line holds nothing for `read`.
    """
    for number, line in enumerate(lines, 1):
        size = len(line)
        if size > MAX_LINE_BYTES:
            yield Broken(number, f"longer than {MAX_LINE_BYTES} bytes", size)
            continue
        if not line or line.isspace() or is_ignorable(line):
            continue
        try:
            records = read(decode_object(line))
        except ValueError as error:
            reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            yield Broken(number, reason, size)
            continue
        yield from records


def decode_object(line: bytes) -> dict[str, Any]:
    """Decode one line; raise ValueError unless it is exactly one JSON object.

    A power cut leaves zero bytes where a file had grown, and the next line is written behind them.
    """
    try:
        value = compact_json.loads(line)
    except ValueError:
        padding, _, rest = line.rpartition(b"\0")
        if not padding and rest == line:
            raise
        value = compact_json.loads(rest)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def open_transcript(path: str) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size.

    Raises:
        OSError: It is not there, or not readable.
        ValueError: It is no regular file but, for example, a link.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):  # merely opening a device can do something
        raise ValueError(f"{path} is not a regular file")
    # Non-blocking: opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise ValueError(f"{path} is not a regular file")
    return fd, found.st_size


def last_reading_of(
    path: str, read_transcript: Callable[[Iterable[bytes]], Iterator[Record]]
) -> LastReading:
    """Return what the end of a transcript says, by reading all of it.

    Nothing newer counts as missing: a reader that knows no tool calls cannot wait for one.

    Raises:
        OSError: As `open_transcript`.
        ValueError: As `open_transcript`.
    """
    fd, _ = open_transcript(path)
    with open(fd, "rb") as stream:
        return last_reading_in(read_transcript(bounded_lines(stream)))


def last_reading_in(records: Iterable[Record]) -> LastReading:
    """Return what the last records of a transcript say."""
    reading = LastReading()
    reading.is_current = True
    for record in records:
        if isinstance(record, Report):
            reading.report, reading.error = record, None
        elif isinstance(record, Boundary):
            reading.report = reading.error = None
        elif isinstance(record, Overflow):
            reading.error, reading.stopped_at = OVERFLOW, record.at
        elif isinstance(record, Window):
            reading.window_tokens = record.tokens
    return reading


def has_line(head: bytes, matches: Callable[[dict[str, Any]], bool]) -> bool:
    """Return whether a whole line among the first bytes of a file is an object that matches."""
    for line in head.split(b"\n")[:-1]:
        try:
            if matches(decode_object(line)):
                return True
        except ValueError:
            continue
    return False


def head_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects among the first 400 lines and pass over what cannot be decoded."""
    for _, line in zip(range(_MAX_HEAD_LINES), lines, strict=False):
        try:
            entry = decode_object(line)
        except ValueError:
            continue
        yield entry


def object_in(source: JsonObject, name: str) -> JsonObject:
    """Return a member that is an object itself; an empty one where it is none."""
    found = source.get(name)
    return found if isinstance(found, dict) else {}


def token_count(usage: JsonObject, name: str) -> int:
    """Return one number of a usage object; absent and null count as 0.

    Raises:
        ValueError: It is not a whole number from 0 to 1,000,000,000.
    """
    value = usage.get(name)
    if value is None:
        return 0
    # By `type`, as a bool is an int too.
    if type(value) is not int or not 0 <= value <= _MAX_TOKENS:
        shown = value if isinstance(value, float) or type(value) is bool else type(value).__name__
        raise ValueError(f"{name} ({shown}) is not a token count")
    return value


def optional_token_count(usage: JsonObject, name: str) -> int | None:
    """Return one number of an object, or None when it is absent or no token count."""
    try:
        return token_count(usage, name) if usage.get(name) is not None else None
    except ValueError:
        return None


def text_or_none(value: object) -> str | None:
    """Return `value` if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def text_of(value: object, keys: tuple[str, ...] | None) -> str:
    """Join the texts inside lists and under `keys` (None: all) of objects, in order, by line ends.

    Not recursive: JSON may be nested as deep as the decoder allows, which is deeper than calls.
    """
    if isinstance(value, str):
        return value
    pieces: list[str] = []
    # JSON may nest deeper than Python recurses.
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(item[key] for key in reversed(keys or tuple(item)) if key in item)
    return "\n".join(pieces)
