"""Careful reading of the JSON lines that hosts write: bounded memory, no exception on any bytes.

Standard library only, because hooks import it. Knows no host.
"""

from __future__ import annotations

from ultramon.core import codec
from ultramon.hosts.records import Broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, BinaryIO

    from ultramon.hosts.records import Record

MAX_LINE_BYTES = 64 * 1024 * 1024
_MAX_TOKENS = 1_000_000_000
_MAX_REMEMBERED = 4096
_MAX_ID_CHARS = 256
_MAX_HEAD_LINES = 400
_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
_DAYS_BEFORE_1970 = 719_162


class Recent:
    """A mapping from short ids that forgets its oldest entries, so that no file can fill memory."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

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
            rest = stream.readline(1024 * 1024)
            overlong = bool(rest) and not rest.endswith(b"\n")


def read_lines(
    lines: Iterable[bytes],
    read: Callable[[dict[str, Any]], Iterable[Record]],
    is_ignorable: Callable[[bytes], bool],
) -> Iterator[Record]:
    """Decode each line as a JSON object and yield what `read` makes of it, or a Broken.

    Args:
        lines: The lines with their line ends; only the last may lack it.
        read: Turns one object into records; raises ValueError when the object makes no sense.
        is_ignorable: Tells cheaply, and never wrongly, that a line holds nothing for `read`.
    """
    unfinished: Broken | None = None
    for number, line in enumerate(lines, 1):
        if unfinished is not None:
            yield unfinished
            unfinished = None
        size = len(line)
        if size > MAX_LINE_BYTES:
            yield Broken(number, f"longer than {MAX_LINE_BYTES} bytes", size)
            continue
        if not line or line.isspace() or is_ignorable(line):
            continue
        try:
            records = read(decode_object(line))
        except ValueError as error:
            broken = Broken(number, _reason(error), size)
            if line.endswith(b"\n"):
                yield broken
            else:
                # Only when no line follows is it known to be the last one.
                unfinished = broken
            continue
        yield from records
    if unfinished is not None:
        unfinished.truncated = True
        yield unfinished


def decode_object(line: bytes) -> dict[str, Any]:
    """Decode one line; raise ValueError unless it is exactly one JSON object."""
    value = codec.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def head_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects among the first 400 lines and pass over what cannot be decoded."""
    for _, line in zip(range(_MAX_HEAD_LINES), lines, strict=False):
        try:
            entry = decode_object(line)
        except ValueError:
            continue
        yield entry


def _reason(error: ValueError) -> str:
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def token_count(usage: dict[str, Any], name: str) -> int:
    """Return one number of a usage object; absent and null count as 0.

    Raises:
        ValueError: It is not a whole number from 0 to 1,000,000,000.
    """
    value = usage.get(name)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _MAX_TOKENS:
        shown = value if isinstance(value, float) or type(value) is bool else type(value).__name__
        raise ValueError(f"{name} ({shown}) is not a token count")
    return value


def optional_token_count(usage: dict[str, Any], name: str) -> int | None:
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


def parse_time(value: object) -> float | None:
    """Return the seconds since 1970 of an RFC 3339 time, or None when it is none.

    Fractions may have any number of digits; a leap second counts as the second after it.
    """
    if not isinstance(value, str) or len(value) < 20 or not value.isascii():
        return None
    separators = value[4] + value[7] + value[10] + value[13] + value[16]
    digits = value[:4] + value[5:7] + value[8:10] + value[11:13] + value[14:16] + value[17:19]
    if separators not in ("--T::", "--t::", "-- ::") or not digits.isdigit():
        return None
    fraction, zone = "", value[19:]
    if zone[0] == ".":
        zone = zone[1:].lstrip("0123456789")
        fraction = value[19 : len(value) - len(zone)]
    offset_seconds = _offset_seconds(zone)
    if offset_seconds is None or fraction == ".":
        return None
    year, month, day = int(digits[:4]), int(digits[4:6]), int(digits[6:8])
    hour, minute, second = int(digits[8:10]), int(digits[10:12]), int(digits[12:])
    if not (year and 1 <= month <= 12 and hour <= 23 and minute <= 59 and second <= 60):
        return None
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    before, after = _DAYS_BEFORE_MONTH[month - 1 : month + 1]
    if not 1 <= day <= after - before + (leap and month == 2):
        return None
    past = year - 1
    days = past * 365 + past // 4 - past // 100 + past // 400 - _DAYS_BEFORE_1970
    days += before + (leap and month > 2) + day - 1
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset_seconds
    return seconds + float(fraction or 0)


def _offset_seconds(zone: str) -> int | None:
    if zone in ("Z", "z"):
        return 0
    digits = zone[1:3] + zone[4:]
    if len(zone) != 6 or zone[0] not in "+-" or zone[3] != ":" or not digits.isdigit():
        return None
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        return None
    return (1 if zone[0] == "+" else -1) * (hours * 3600 + minutes * 60)
