"""Epoch seconds to RFC 3339 UTC and back, without importing `datetime`."""

from __future__ import annotations

from time import gmtime

_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
_DAYS_BEFORE_1970 = 719_162
_FIRST_SECOND = -62_135_596_800  # 0001-01-01T00:00:00Z
_LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z
_KEPT_MINUTES = 4096
_RECENT_SECONDS = 120.0

_minutes: dict[str, float] = {}


def format_time(epoch_seconds: float) -> str:
    """Return ``2026-11-21T20:28:51.642Z`` for seconds since 1970, rounded to milliseconds.

    Raises:
        ValueError: Not in the years 1 to 9999, or not finite.
    """
    if not _FIRST_SECOND <= epoch_seconds <= _LAST_SECOND:
        raise ValueError(f"{epoch_seconds} seconds since 1970 is not in the years 1 to 9999")
    milliseconds = round(epoch_seconds * 1000)
    seconds, milliseconds = divmod(milliseconds, 1000)
    t = gmtime(seconds)
    return (
        f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}"
        f"T{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}.{milliseconds:03d}Z"
    )


def clock_time(at: float, now: float) -> str:
    """Return a time for people: ``14:02Z``, with its date when it is more than two minutes old.

    Args:
        at: Epoch seconds.
        now: Epoch seconds.

    Raises:
        ValueError: As for `format_time`.
    """
    date, _, time = format_time(at).partition("T")
    return f"{time[:5]}Z" if now - at <= _RECENT_SECONDS else f"{date} {time[:5]}Z"


def parse_time(value: object) -> float | None:
    """Return the epoch seconds of an RFC 3339 time, None for any other value.

    Fractions may have any number of digits; a leap second counts as the second after it.
    """
    if not isinstance(value, str) or len(value) < 20 or not value.isascii():
        return None
    # The states of a fleet hold thousands of times of few minutes, as `format_time` writes them.
    if len(value) == 24 and value[19] == "." and value[23] == "Z" and value[17] < "6":
        minute_at = _minutes.get(value[:17]) or parse_minute(value[:17])
        if minute_at is not None and (value[17:19] + value[20:23]).isdigit():
            return minute_at + int(value[17:19]) + float(value[19:23])
    return _parse_any(value)


def parse_minute(minute: str) -> float | None:
    """Return the epoch seconds of a beginning like ``2026-11-21T20:28:``, None for any other."""
    at = _minutes.get(minute)
    if at is None:
        at = _parse_any(minute + "00Z")
        if at is not None:
            if len(_minutes) >= _KEPT_MINUTES:
                _minutes.clear()
            _minutes[minute] = at
    return at


def _parse_any(value: str) -> float | None:
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
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        return None
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
