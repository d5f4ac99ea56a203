"""The tokens that one transcript cost, summed so that prices can be applied later."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from ultramon.context.token_usage import TokenUsage, size_class
from ultramon.hosts.transcripts.records import Billed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.hosts.transcripts.records import Report

SPENT = ""
"""What requests cost. The other kinds are parts of it, or events, as `RESTART` and
`ultramon.recordings.reply_keys.COMPACTION`."""
READ_AGAIN = "again"
"""Part of `SPENT`: behind a compaction or restart, input that no cache held, and the request that
wrote the summary where it is recorded."""
MAYBE_READ_AGAIN = "maybe"
"""Cached input of those requests; and of summaries whose request is not recorded, that request as
it would have been from a cache, which is no part of `SPENT`."""
RESTART = "restart"
"""An event: how often a conversation began with the work of an earlier one."""
PLAN_HIT = "plan_hit"
"""An event: how often a request was refused because a usage limit was reached."""
MAX_PARTS = 500
"""Of one transcript; what comes later counts as of an unknown model."""
# 9999-12-31 in UTC: every time zone is then in a day that `date` knows.
_LAST_TIME = 253_402_214_400.0
_NOON_SECONDS = 43_200
_MAX_MODEL_CHARS = 120
_KEY_FIELDS = 6
_COUNT_FIELDS = len(TokenUsage._fields)


class UsagePart(NamedTuple):
    """What one transcript cost on one day, with one model, in requests of one size.

    Attributes:
        kind: `SPENT` or one of the other kinds.
        day: ``2026-11-20`` in the time zone of the machine, empty where no line has a time.
        model: The model that answered, None = unknown.
        size_class: See `ultramon.context.token_usage.size_class`.
        speed: As in `Report`.
        is_stated: Whether the host itself says what these requests cost.
        usage: The tokens.
        requests: How many requests, or events.
        cost_usd: As the host says; 0.0 where it does not.
    """

    kind: str
    day: str
    model: str | None
    size_class: int
    speed: str | None
    is_stated: bool
    usage: TokenUsage
    requests: int
    cost_usd: float

    @property
    def request_tokens(self) -> int:
        """The input side of one of these requests, as far as tiers of prices need it."""
        # A tier of prices begins above its bound, so one token more is in it.
        return self.size_class + 1 if self.size_class else 0

    @property
    def host_usd(self) -> float | None:
        """What the host says that they cost, None where it does not."""
        return self.cost_usd if self.is_stated else None


class UsageSums:
    """Sums of one transcript.

    Args:
        rows: Of a sum so far, which is continued in place: JSON of `UsagePart`.
    """

    MOST = MAX_PARTS

    def __init__(self, rows: list[list[Any]]) -> None:
        self._rows = rows
        self._by_key = {tuple(row[:_KEY_FIELDS]): row for row in rows}

    def add(
        self,
        kind: str,
        day: str,
        model: str | None,
        usage: TokenUsage,
        *,
        request_tokens: int = 0,
        speed: str | None = None,
        cost_usd: float | None = None,
        count: int = 1,
    ) -> None:
        """Add requests, or events; a negative count takes them back."""
        name = None if model is None else model[:_MAX_MODEL_CHARS]
        # What the host has priced itself is not mixed with what needs a price.
        key = (kind, day, name, size_class(request_tokens), speed, cost_usd is not None)
        row = self._by_key.get(key)
        if row is None:
            if len(self._rows) >= self.MOST:
                self._make_room()
            if len(self._rows) >= self.MOST:
                # What does not fit any more keeps its tokens, without a model and so without a
                # price.
                key = (kind, "", None, 0, None, False)
                row = self._by_key.get(key)
            if row is None:
                row = [*key, *[0] * _COUNT_FIELDS, 0, 0.0]
                self._by_key[key] = row
                self._rows.append(row)
        for at, tokens in enumerate(usage, _KEY_FIELDS):
            row[at] += count * tokens
        row[-2] += count
        row[-1] += count * (cost_usd or 0.0)

    def _make_room(self) -> None:
        """Merge rows, in sums that may lose detail."""

    def _merge(self, rows: Iterable[list[Any]]) -> None:
        """Begin anew with rows, of which several may have one key."""
        merged: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            known = merged.setdefault(tuple(row[:_KEY_FIELDS]), row)
            if known is not row:
                for at in range(_KEY_FIELDS, len(row)):
                    known[at] += row[at]
        self._rows[:] = merged.values()
        self._by_key = merged


def parts_of(rows: Iterable[list[Any]]) -> list[UsagePart]:
    """Return the parts of a transcript's sums."""
    end = _KEY_FIELDS + _COUNT_FIELDS
    return [
        UsagePart._make((*row[:_KEY_FIELDS], TokenUsage._make(row[_KEY_FIELDS:end]), *row[end:]))
        for row in rows
    ]


def usage_of(record: Report | Billed) -> TokenUsage:
    """Return what one response cost in tokens."""
    return TokenUsage._make(record.billed_tokens)


def is_possible(at: float | None) -> TypeGuard[float]:
    """Return whether a record can be of a time: from 1970 on, and of a day that `date` knows."""
    return at is not None and 0 <= at < _LAST_TIME


def day_of(at: float | None) -> str:
    """Return the day of a time on this machine, empty for None and a time that cannot be."""
    if not is_possible(at):
        return ""
    now = time.localtime(at)
    return f"{now.tm_year:04d}-{now.tm_mon:02d}-{now.tm_mday:02d}"


def date_of(day: str) -> date | None:
    """Return the date of a day, None for an unknown one."""
    with suppress(ValueError):
        return date.fromisoformat(day)
    return None


def noon_of(day: str) -> float | None:
    """Return the noon of a day on this machine, epoch seconds; None for an unknown day."""
    try:
        return time.mktime(time.strptime(day, "%Y-%m-%d")) + _NOON_SECONDS
    except (ValueError, OverflowError):
        return None
