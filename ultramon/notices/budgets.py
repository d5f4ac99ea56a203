"""Budgets of the user: their settings, their periods, and which of their levels are reached.

Pure rules. What was spent, `ultramon.recordings.budget_look` finds; a level is announced as one of
a plan is, by `ultramon.backends.level_watch`.
"""

from __future__ import annotations

import os
import re
from datetime import date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.errors import ConfigurationError
from ultramon.notices.crossings import LEVELS, RISING_PERCENTS, Crossing, level_reached
from ultramon.state.budget_readings import (
    DAY,
    MONTH,
    NO_PERIOD,
    PERIODS,
    WEEK,
    BudgetReading,
    Scope,
)
from ultramon.system.ids import is_agent_id
from ultramon.system.settings import (
    MOST_TOKENS,
    Kind,
    OrNone,
    Setting,
    choice,
    number,
    read_settings,
    read_table,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BUDGET = "budget"
MOST_BUDGETS = 50
MOST_USD = 1_000_000.0
LEAST_QUARTERS = 3
"""A forecast begins with spending in so many quarters of an hour: one burst is no pace."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_PATTERN_CHARS = 200
_USD_DIGITS = 6
# No message waits for longer.
_FAR_SECONDS = 366 * 86_400.0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _PATTERN_CHARS and value.isprintable()


def _is_directory(value: object) -> bool:
    return _is_text(value) and os.path.isabs(os.path.expanduser(str(value)))


def _is_zone(value: object) -> bool:
    return isinstance(value, str) and _zone(value) is not None


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # KeyError: there is no such zone
        return None


_BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
_DIRECTORY = Kind(
    "an absolute path, or one that begins with ~",
    _is_directory,
    keep=lambda value: os.path.normpath(os.path.expanduser(value)),
)
BUDGET_SETTINGS = {
    "limit_usd": Setting(
        OrNone(
            number(
                f"a number above 0, at most {MOST_USD:,.0f}",
                lambda value: 0 < value <= MOST_USD,
                "US dollars",
            )
        ),
        None,
        "What may be spent, at list price or at those of `prices`. Either this or `limit_tokens`.",
    ),
    "limit_tokens": Setting(
        OrNone(whole_number(1, 1000 * MOST_TOKENS, "tokens")),
        None,
        "How many tokens may be spent: all that the provider counts, cached ones too.",
    ),
    "period": Setting(
        choice(*PERIODS), DAY, "When spending is counted anew. A week begins on Monday."
    ),
    "time_zone": Setting(
        OrNone(Kind("the name of a time zone, such as Europe/Berlin", _is_zone)),
        None,
        "Whose midnight begins a period; none = that of the machine.",
    ),
    "project": Setting(
        OrNone(_DIRECTORY),
        None,
        "Only agents that began in this directory or below it count, or in a git worktree of it.",
    ),
    "run": Setting(OrNone(Kind("the name of a run", is_agent_id)), None, "Only this run counts."),
    "agent": Setting(
        OrNone(Kind("a pattern, such as scout-*", _is_text)),
        None,
        "Only agents whose id or label matches count, with their subagents.",
    ),
    "levels": Setting(
        RISING_PERCENTS, (80, 100), "Where `warning` and `critical` of the budget begin."
    ),
    "notify": Setting(
        OrNone(Kind("an agent id", is_agent_id)),
        None,
        "Who is sent a message at a level, such as the `recipient` of a"
        " [webhook](server.md#webhooks).",
    ),
    "notify_agents": Setting(
        _BOOLEAN,
        False,
        "Whether the sessions at work that count for the budget are sent the message too. No"
        " agent is notified of money otherwise.",
    ),
    "enforce": Setting(
        _BOOLEAN,
        False,
        "Whether `ultramon relay` starts no further context while the budget is used up.",
    ),
    "prices": Setting(
        OrNone(_DIRECTORY), None, "A file of your own prices, as `report --prices` takes it."
    ),
}


class Budget(NamedTuple):
    """One budget of the settings; see `BUDGET_SETTINGS`."""

    name: str
    limit_usd: float | None
    limit_tokens: int | None
    period: str
    time_zone: str | None
    project: str | None
    run: str | None
    agent: str | None
    levels: tuple[int, int]
    notify: str | None
    notify_agents: bool
    enforce: bool
    prices: str | None

    @property
    def scope(self) -> Scope:
        """Whose spending counts."""
        return Scope(self.project, self.run, self.agent)

    @property
    def limit(self) -> float:
        """The limit in its own unit."""
        limit = self.limit_usd if self.limit_tokens is None else self.limit_tokens
        assert limit is not None
        return limit


class Period(NamedTuple):
    """When spending counts."""

    key: str
    """``2026-11-26``, ``2026-W48``, ``2026-11`` or ``all``."""
    starts_at: float
    """Epoch seconds; 0.0 = always."""
    ends_at: float | None
    """Epoch seconds; None = never."""


class Spent(NamedTuple):
    """What was spent in a period so far."""

    usd: float
    """The priced part."""
    tokens: int
    is_priced: bool
    """Whether all of it has a price."""
    is_dated: bool
    """Whether the time of all requests is known."""
    first_at: float | None
    """The quarter of an hour of the first request, epoch seconds; None = nothing was spent."""
    quarters: int
    """In how many quarters of an hour something was spent."""


def read_budgets() -> list[Budget]:
    """Return the budgets of ``[budgets]``, in their order.

    None of a project that is not trusted: a budget is the user's own.

    Raises:
        ConfigurationError: A setting is wrong; names it, the file and what is allowed.
    """
    table, path = read_table("budgets")
    if len(table) > MOST_BUDGETS:
        raise ConfigurationError(
            "budgets", f"{len(table)} budgets", f"at most {MOST_BUDGETS}", path
        )
    return [_budget(name, value, path) for name, value in table.items()]


def _budget(name: str, value: Any, path: str) -> Budget:
    title = f"budgets.{name}"
    if _NAME.fullmatch(name) is None:
        allowed = "a name of 1 to 40 of A-Z a-z 0-9 . _ -, the first a letter or digit"
        raise ConfigurationError("budgets", name, allowed, path)
    if not isinstance(value, dict):
        allowed = f"a table: [{title}], with limit_usd or limit_tokens"
        raise ConfigurationError(title, value, allowed, path)
    found = read_settings(value, BUDGET_SETTINGS, path, title)
    if (found["limit_usd"] is None) == (found["limit_tokens"] is None):
        allowed = "one of limit_usd and limit_tokens"
        raise ConfigurationError(title, value, allowed, path)
    return Budget(name, **found)


def period_of(budget: Budget, now: float) -> Period:
    """Return the period of a budget that a time lies in.

    Args:
        budget: The budget.
        now: Epoch seconds.
    """
    if budget.period == NO_PERIOD:
        return Period("all", 0.0, None)
    zone = None if budget.time_zone is None else _zone(budget.time_zone)
    today = datetime.fromtimestamp(now, zone).date()
    if budget.period == WEEK:
        first = today - timedelta(days=today.weekday())
        year, week, _ = today.isocalendar()
        key, after = f"{year}-W{week:02d}", first + timedelta(days=7)
    elif budget.period == MONTH:
        first = today.replace(day=1)
        # 31 days later is in the next month, however long this one is.
        key, after = f"{today:%Y-%m}", (first + timedelta(days=31)).replace(day=1)
    else:
        first, key, after = today, today.isoformat(), today + timedelta(days=1)
    return Period(key, _midnight(first, zone), _midnight(after, zone))


def reading_of(budget: Budget, period: Period, spent: Spent, now: float) -> BudgetReading:
    """Return what a budget's present period amounts to.

    Args:
        budget: The budget.
        period: Its present one.
        spent: What was spent in it so far.
        now: Epoch seconds.
    """
    in_usd = budget.limit_usd is not None
    # Without the dust of many additions: what is shown as the limit is the limit.
    amount = round(spent.usd, _USD_DIGITS) if in_usd else float(spent.tokens)
    reading = BudgetReading(
        budget.name,
        budget.scope,
        period=budget.period,
        period_key=period.key,
        starts_at=period.starts_at,
        ends_at=period.ends_at,
        unit="usd" if in_usd else "tokens",
        limit=float(budget.limit),
        spent=amount,
        is_whole=spent.is_dated and (spent.is_priced or not in_usd),
        levels=budget.levels,
        level=None,
        empties_at=_empties_at(budget.limit, amount, spent, period, now),
        is_enforced=budget.enforce,
        measured_at=now,
    )
    reading.level = level_reached(reading.percent, budget.levels)
    return reading


def budget_crossings(
    readings: Iterable[BudgetReading],
    now: float,
    recipients: Mapping[str, tuple[str, ...]],
) -> Iterator[Crossing]:
    """Yield the highest level that each budget has reached.

    Args:
        readings: What the budgets amount to.
        now: Epoch seconds.
        recipients: Who is sent a message, by the budget's name.
    """
    for one in readings:
        level = level_reached(one.percent, one.levels)
        if level is None:
            continue
        begins_at = one.levels[LEVELS.index(level)]
        yield Crossing(
            BUDGET,
            one.name,
            one.name,
            one.period_key,
            level,
            f"Budget {one.words(now, utc=True)} ({level}, from {begins_at} %).",
            {"budget": one.name, "levelFrom": begins_at / 100, **_facts(one)},
            now + _FAR_SECONDS if one.ends_at is None else one.ends_at,
            recipients.get(one.name, ()),
        )


def _facts(one: BudgetReading) -> dict[str, Any]:
    left_out = ("name", "level", "levels")
    return {name: value for name, value in one.to_json().items() if name not in left_out}


def _midnight(day: date, zone: tzinfo | None) -> float:
    """Return when a day begins; where clocks skip its midnight, when they do."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _empties_at(
    limit: float, amount: float, spent: Spent, period: Period, now: float
) -> float | None:
    """Return when a budget is used up, if the rest of it is spent as the part so far was.

    The pace is what was spent by the time since the first request of the period, pauses included.
    """
    if spent.first_at is None or spent.quarters < LEAST_QUARTERS or not 0 < amount < limit:
        return None
    # At least a second: the first request may be of now.
    at = now + (limit - amount) * max(now - spent.first_at, 1.0) / amount
    if at > now + _FAR_SECONDS or (period.ends_at is not None and at >= period.ends_at):
        return None
    return float(int(at))
