"""Epoch seconds to RFC 3339 UTC and back, without importing `datetime`."""

from __future__ import annotations

from time import gmtime

_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH_DAYS = 719_162  # days from 0001-01-01 to 1970-01-01
_FIRST_SECOND = -62_135_596_800  # 0001-01-01T00:00:00Z
_LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z


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


def parse_time(text: object) -> float | None:
    """Return seconds since 1970 for an RFC 3339 time, None for anything else.

    Args:
        text: ``YYYY-MM-DDTHH:MM:SS``, an optional fraction, then ``Z`` or ``±HH:MM``.
    """
    if not isinstance(text, str) or len(text) < 20 or text[10] not in "Tt ":
        return None
    if text[4] != "-" or text[7] != "-" or text[13] != ":" or text[16] != ":":
        return None
    clock = text[19:]
    offset_seconds = 0
    if clock[-1] in "Zz":
        fraction = clock[:-1]
    elif len(clock) >= 6 and clock[-6] in "+-" and clock[-3] == ":":
        fraction, zone = clock[:-6], clock[-6:]
        if not (zone[1:3].isdecimal() and zone[4:6].isdecimal() and zone.isascii()):
            return None
        if zone[1:3] > "23" or zone[4:6] > "59":
            return None
        offset_seconds = (int(zone[1:3]) * 3600 + int(zone[4:6]) * 60) * (-1, 1)[zone[0] == "+"]
    else:
        return None
    parts = (text[:4], text[5:7], text[8:10], text[11:13], text[14:16], text[17:19])
    if not all(part.isdecimal() and part.isascii() for part in parts):
        return None
    if fraction and not (fraction[0] == "." and fraction[1:].isdecimal() and fraction.isascii()):
        return None
    year, month, day, hour, minute, second = map(int, parts)
    if not (year >= 1 and 1 <= month <= 12):
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _DAYS_IN_MONTH[month - 1] + (is_leap and month == 2):
        return None
    if hour > 23 or minute > 59 or second > 60:
        return None
    leap_days = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    days = (year - 1) * 365 + leap_days + _DAYS_BEFORE_MONTH[month - 1] + day - 1 - _EPOCH_DAYS
    if is_leap and month > 2:
        days += 1
    whole = days * 86_400 + hour * 3600 + minute * 60 + second - offset_seconds
    seconds = whole + (float(fraction) if fraction else 0.0)
    return seconds if _FIRST_SECOND <= seconds <= _LAST_SECOND else None
