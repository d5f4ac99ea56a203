"""How much of each budget is spent, as the last look found it: what every face shows.

One small file in the state directory, written by the process that looks. Reading it computes
nothing. Standard library only: status lines read it.
"""

from __future__ import annotations

import os

from ultramon.errors import StateCorruptError, StateError
from ultramon.state.plan_limits import clock_words, finite_number
from ultramon.state.usage_percent import whole_percent
from ultramon.system import compact_json
from ultramon.system.counts import short_tokens
from ultramon.system.files import make_private_directory, read_private_file, replace_file
from ultramon.system.git_worktrees import path_in_main_tree
from ultramon.system.timestamps import format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

SCHEMA = 1
FILE_NAME = "budgets.json"
"""Of the state directory."""
STALE_SECONDS = 300.0
"""Readings that no look has renewed for so long are not shown: something may have been spent."""
DAY, WEEK, MONTH, NO_PERIOD = "day", "week", "month", "none"
PERIODS = (DAY, WEEK, MONTH, NO_PERIOD)
_MAX_FILE_BYTES = 262_144
# Dollars or tokens: what is divided and rounded stays a number.
_MOST = 1e15
_PERIOD_WORDS = {DAY: "today", WEEK: "this week", MONTH: "this month", NO_PERIOD: ""}
_SMALLEST_SHOWN_USD = 0.01


class Scope:
    """Whose spending counts for a budget; what is None does not matter.

    Attributes:
        project: A directory, absolute: agents that began in it or below it, or at such a place of
            a git worktree of it.
        run: The name of a run.
        agent: A pattern, as of file names, of ids or labels; the subagents of an agent that matches
            count too.
    """

    __slots__ = ("agent", "project", "run")

    def __init__(
        self, project: str | None = None, run: str | None = None, agent: str | None = None
    ) -> None:
        self.project = project
        self.run = run
        self.agent = agent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.project, self.run, self.agent))

    @property
    def is_all(self) -> bool:
        """Whether everything counts."""
        return self.project is self.run is self.agent is None

    @property
    def needs_states(self) -> bool:
        """Whether it asks what only the state of an agent says."""
        return self.run is not None or self.agent is not None

    def includes(self, project: str | None, run: str | None, names: Iterable[str | None]) -> bool:
        """Return whether an agent counts.

        Args:
            project: Where it began; None = unknown.
            run: Its run; None = unknown.
            names: Its id and label, and those of its session.
        """
        if self.project is not None and not _is_of(project, self.project):
            return False
        if self.run is not None and run != self.run:
            return False
        if self.agent is None:
            return True
        from fnmatch import fnmatchcase

        return any(name is not None and fnmatchcase(name, self.agent) for name in names)

    def to_json(self) -> dict[str, str]:
        """Return what matters, by name."""
        found = {"project": self.project, "run": self.run, "agent": self.agent}
        return {name: value for name, value in found.items() if value is not None}


class BudgetReading:
    """One budget in its present period.

    Attributes:
        name: As the settings name it.
        scope: Whose spending counts.
        period: ``day``, ``week``, ``month`` or ``none``.
        period_key: Names the present one: ``2026-11-26``, ``2026-W48``, ``2026-11``, ``all``.
        starts_at: When it began, epoch seconds; 0.0 for ``none``.
        ends_at: When it ends, epoch seconds; None = never.
        unit: ``usd`` or ``tokens``.
        limit: In that unit, above 0.
        spent: In that unit, 0 or more; of dollars the priced part.
        is_whole: Whether that is all: False where something has no price or no time.
        levels: Where ``warning`` and ``critical`` begin, in whole percents.
        level: The level that is reached; None = none.
        empties_at: When it is used up at this pace, epoch seconds; None = unknown, or not in this
            period.
        is_enforced: Whether a relay starts no further context once it is used up.
        measured_at: Epoch seconds.
    """

    __slots__ = (
        "empties_at", "ends_at", "is_enforced", "is_whole", "level", "levels", "limit",
        "measured_at", "name", "period", "period_key", "scope", "spent", "starts_at", "unit",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        scope: Scope,
        *,
        period: str,
        period_key: str,
        starts_at: float,
        ends_at: float | None,
        unit: str,
        limit: float,
        spent: float,
        is_whole: bool,
        levels: Sequence[int],
        level: str | None,
        empties_at: float | None,
        is_enforced: bool,
        measured_at: float,
    ) -> None:
        self.name = name
        self.scope = scope
        self.period = period
        self.period_key = period_key
        self.starts_at = starts_at
        self.ends_at = ends_at
        self.unit = unit
        self.limit = limit
        self.spent = spent
        self.is_whole = is_whole
        self.levels = tuple(levels)
        self.level = level
        self.empties_at = empties_at
        self.is_enforced = is_enforced
        self.measured_at = measured_at

    @property
    def used_ratio(self) -> float:
        """The share that is spent, 0.0–1.0+; at least so much where something has no price."""
        return self.spent / self.limit

    @property
    def percent(self) -> int:
        """The same in whole percents, rounded down: 100 is reached, not near."""
        return whole_percent(self.used_ratio, rounds=False)

    @property
    def is_used_up(self) -> bool:
        """Whether the limit is reached."""
        return self.spent >= self.limit

    @property
    def amounts(self) -> str:
        """Return spent and limit for people: ``$11.40 of 20``, ``≥ 1.2M of 5.0M tokens``."""
        least = "" if self.is_whole else "≥ "
        if self.unit == "tokens":
            return (
                f"{least}{short_tokens(int(self.spent))} of {short_tokens(int(self.limit))} tokens"
            )
        spent = f"${self.spent:,.2f}" if self.spent >= _SMALLEST_SHOWN_USD else "$0"
        limit = f"{self.limit:,.2f}".removesuffix(".00")
        return f"{least}{spent} of {limit}"

    @property
    def spent_words(self) -> str:
        """The amounts with the period: ``today $11.40 of 20``."""
        return f"{_PERIOD_WORDS[self.period]} {self.amounts}".lstrip()

    def brief_words(self, *, is_named: bool) -> str:
        """Return it for a line with little room: ``today $11.40 of 20``.

        Args:
            is_named: Whether to begin with its name.
        """
        is_named |= self.period == NO_PERIOD
        return f"{self.name} {self.spent_words}" if is_named else self.spent_words

    def forecast_words(self, now: float, *, utc: bool = False) -> str:
        """Return when it is used up at this pace, ``at this pace empty at 16:40``; else empty.

        Args:
            now: Epoch seconds.
            utc: As for `clock_words`.
        """
        if self.empties_at is None or self.is_used_up:
            return ""
        at = clock_words(self.empties_at, now, "%a %d %b %H:%M", utc=utc)
        return f"at this pace empty {'at' if self.is_whole else 'by'} {at}"

    def words(self, now: float, *, utc: bool = False) -> str:
        """Return one line: ``team: today $11.40 of 20, 57 %, at this pace empty at 16:40``."""
        parts = [self.spent_words, f"{self.percent} %"]
        if self.is_used_up:
            parts.append("used up" + (": relay starts no further context" * self.is_enforced))
        parts.append(self.forecast_words(now, utc=utc))
        return f"{self.name}: {', '.join(filter(None, parts))}"

    def to_json(self) -> dict[str, Any]:
        """Return the values as the file and ``status --json`` hold them."""
        in_usd = self.unit == "usd"
        unit = "Usd" if in_usd else "Tokens"
        return {
            "name": self.name,
            "scope": self.scope.to_json(),
            "period": self.period,
            "periodKey": self.period_key,
            "startsAt": format_time(self.starts_at),
            "endsAt": None if self.ends_at is None else format_time(self.ends_at),
            f"limit{unit}": self.limit if in_usd else int(self.limit),
            f"spent{unit}": self.spent if in_usd else int(self.spent),
            "isWhole": self.is_whole,
            "usedRatio": round(self.used_ratio, 6),
            "levels": list(self.levels),
            "level": self.level,
            "emptiesAt": None if self.empties_at is None else format_time(self.empties_at),
            "isEnforced": self.is_enforced,
            "measuredAt": format_time(self.measured_at),
        }


class BudgetReadings:
    """The readings of all budgets in a state directory.

    Args:
        directory: The state directory.
    """

    __slots__ = ("path",)

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(os.path.abspath(directory), FILE_NAME)

    def read(self, now: float) -> list[BudgetReading]:
        """Return the readings that hold now, in the order of the settings.

        None that is older than `STALE_SECONDS` or of a period that is over; none of a damaged file,
        which the next look replaces.

        Args:
            now: Epoch seconds.
        """
        try:
            found = _read(self.path)
        except (StateError, OSError):
            return []
        return [
            one
            for one in found
            if one.measured_at > now - STALE_SECONDS and (one.ends_at is None or now < one.ends_at)
        ]

    def write(self, readings: Iterable[BudgetReading]) -> None:
        """Store readings instead of all before.

        Raises:
            StateError: The directory is not safe to use, or the file system refused.
        """
        value = {"schema": SCHEMA, "budgets": [one.to_json() for one in readings]}
        make_private_directory(os.path.dirname(self.path))
        replace_file(self.path, compact_json.dumps(value).encode("ascii") + b"\n")


def shown_of(
    readings: Sequence[BudgetReading],
    project: str | None,
    run: str | None,
    names: Sequence[str | None],
) -> list[str]:
    """Return the budgets that an agent's spending counts for, each in few cells.

    Args:
        readings: Of all budgets.
        project: Where the agent began.
        run: Its run.
        names: Its id and label.
    """
    own = [one for one in readings if one.scope.includes(project, run, names)]
    plain = [one for one in own if one.scope.is_all]
    return [one.brief_words(is_named=len(plain) > 1 or one not in plain) for one in own]


def budgets_json(readings: Iterable[BudgetReading]) -> dict[str, Any]:
    """Return the budgets as a member of what commands show as JSON."""
    return {"budgets": [one.to_json() for one in readings]}


def _is_of(path: str | None, folder: str) -> bool:
    if path is None:
        return False
    if _is_inside(path, folder):
        return True
    elsewhere = path_in_main_tree(path)
    return elsewhere is not None and _is_inside(elsewhere, folder)


def _is_inside(path: str, folder: str) -> bool:
    # A path in a transcript may be of another system.
    folder = folder.rstrip("/\\")
    return path == folder or path.startswith((f"{folder}/", f"{folder}\\"))


def _read(path: str) -> list[BudgetReading]:
    data, _ = read_private_file(path, _MAX_FILE_BYTES)
    try:
        return [_reading(one) for one in compact_json.loads(data)["budgets"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateCorruptError(path, f"no readings of budgets: {error}") from error


def _reading(value: Mapping[str, Any]) -> BudgetReading:
    unit, suffix = ("usd", "Usd") if "limitUsd" in value else ("tokens", "Tokens")
    name, period, period_key = value["name"], value["period"], value["periodKey"]
    scope = [value["scope"].get(one) for one in ("project", "run", "agent")]
    limit = finite_number(value[f"limit{suffix}"])
    spent = finite_number(value[f"spent{suffix}"])
    starts_at, measured_at = parse_time(value["startsAt"]), parse_time(value["measuredAt"])
    levels, level = value["levels"], value["level"]
    if (
        not all(isinstance(one, str) for one in (name, period_key))
        or not all(one is None or isinstance(one, str) for one in (*scope, level))
        or period not in PERIODS
        or limit is None
        or spent is None
        or not 0 < limit <= _MOST
        or not 0 <= spent <= _MOST
        or starts_at is None
        or measured_at is None
        or [type(one) for one in levels] != [int, int]
    ):
        raise ValueError(f"budget {name!r} makes no sense")
    return BudgetReading(
        name,
        Scope(*scope),
        period=period,
        period_key=period_key,
        starts_at=starts_at,
        ends_at=parse_time(value["endsAt"]),
        unit=unit,
        limit=limit,
        spent=spent,
        is_whole=value["isWhole"] is True,
        levels=levels,
        level=level,
        empties_at=parse_time(value["emptiesAt"]),
        is_enforced=value["isEnforced"] is True,
        measured_at=measured_at,
    )
