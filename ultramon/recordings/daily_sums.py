"""What each day cost in tokens, kept when the transcripts are gone.

One SQLite file in the state directory. A transcript is known by its agent, so that reading it again
replaces its part; the part of one that is gone stays. Tokens are kept and not amounts: prices are
corrected later, and a person's own may come later still.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.errors import StateError
from ultramon.recordings.bills import Bill, Biller, CostFacts, PriceData, price_data_of
from ultramon.recordings.database import open_database
from ultramon.recordings.index import Summarized
from ultramon.recordings.spending import quarter_of
from ultramon.recordings.transcript_summary import TranscriptSummary
from ultramon.recordings.usage import SPENT, date_of, noon_of, parts_of
from ultramon.state.budget_readings import DAY, MONTH, WEEK
from ultramon.state.models import utc
from ultramon.system import foreign_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ultramon.prices.price_list import PriceList

FILE_NAME = "daily_sums.sqlite3"
_VERSION = 1
_SCHEMA = """
    CREATE TABLE agents (
        id INTEGER PRIMARY KEY, host TEXT, session_id TEXT, agent_id TEXT, project TEXT,
        model TEXT, copied INTEGER, ended_at REAL, path BLOB, mark TEXT,
        UNIQUE (host, session_id, agent_id)
    );
    CREATE TABLE parts (
        agent INTEGER, kind TEXT, day TEXT, model TEXT, size_class INTEGER, speed TEXT,
        is_stated INTEGER, input_tokens INTEGER, cache_read_tokens INTEGER,
        cache_write_tokens INTEGER, cache_write_1h_tokens INTEGER, output_tokens INTEGER,
        requests INTEGER, cost_usd REAL
    );
    CREATE INDEX parts_of_agent ON parts (agent);
"""
_PART_FIELDS = 13


class DailyUse(CostFacts):
    """What a part of a period cost."""

    name: str | None
    """The project's path, the host or the model; None = unknown."""
    sessions: int


class Period(CostFacts):
    """What a day, a week or a month cost."""

    start: date
    """Its first day, in the time zone of the machine; a week begins on Monday."""
    end: date
    """Its last day."""
    sessions: int
    """Sessions with a request in it; one that lasts longer is in several periods."""
    subagents: int
    compactions: int
    by_project: tuple[DailyUse, ...]
    by_host: tuple[DailyUse, ...]
    by_model: tuple[DailyUse, ...]


class PeriodReport(CostFacts):
    """What days, weeks or months cost, with their sum."""

    generated_at: datetime
    by: str
    """``day``, ``week`` or ``month``."""
    days: int | None
    """Only the last so many days; None = all."""
    time_zone: str
    """Of the machine, in which a day begins and ends."""
    sessions: int
    compactions: int
    periods: tuple[Period, ...]
    """The latest first; those without a request are left out."""
    price_data: PriceData | None


class AgentKey(NamedTuple):
    """Whose transcript it is."""

    host: str
    session_id: str
    agent_id: str
    """Empty for a session itself."""


def anonymous(found: PeriodReport) -> PeriodReport:
    """Return a report without the names of projects: they are numbered, the dearest first."""
    costs: defaultdict[str, float] = defaultdict(float)
    for period in found.periods:
        for one in period.by_project:
            if one.name is not None:
                costs[one.name] += one.cost_usd or 0.0
    dearest = sorted(costs, key=lambda name: -costs[name])
    numbers = {name: f"project {at}" for at, name in enumerate(dearest, 1)}
    periods = tuple(
        period.model_copy(
            update={
                "by_project": tuple(
                    one.model_copy(update={"name": one.name and numbers[one.name]})
                    for one in period.by_project
                )
            }
        )
        for period in found.periods
    )
    return found.model_copy(update={"periods": periods})


def key_of(summary: TranscriptSummary) -> AgentKey:
    """Return whose transcript a summary is of."""
    return AgentKey(summary.host, _storable(summary.session_id), _storable(summary.agent_id or ""))


class DailySums:
    """The sums of all transcripts that were ever read; a context manager.

    Any number of processes may use one file: each transcript's part is replaced in one transaction.

    Args:
        path: The file; made, with its directory, where it is missing. None = keep nothing.

    Attributes:
        problem: Why nothing is kept, or None. A file that cannot be read is left as it is.
    """

    def __init__(self, path: str | None) -> None:
        self.problem: str | None = None
        self._path = path
        try:
            self._connection = open_database(path, _VERSION, _SCHEMA, replaces=False)
        except StateError as error:
            self.problem = f"{error.path}: {error.reason}"
        except (OSError, sqlite3.Error) as error:
            self.problem = f"{path}: {error}"
        if self.problem is not None:
            self._connection = open_database(None, _VERSION, _SCHEMA, replaces=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Return what is another value where the sums are another file, or know other copies."""
        try:
            found = None if self._path is None else os.stat(self._path).st_ino
        except OSError:
            found = None
        return found, self.problem, sorted(self.copied().items())

    def __enter__(self) -> DailySums:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def copied(self) -> dict[AgentKey, int]:
        """Return how many of its first replies each transcript has copied from another one.

        It may be gone by now, and what was copied from it counts with its part.
        """
        rows = self._connection.execute(
            "SELECT host, session_id, agent_id, copied FROM agents WHERE copied > 0"
        )
        return {AgentKey(*key): copied for *key, copied in rows}

    def take(self, found: Iterable[Summarized]) -> None:
        """Let the sums hold what these transcripts say now, each instead of its part so far.

        Of two files of one agent the one that went on longer counts.
        """
        known = {
            AgentKey(*key): rest
            for *key, rest in (
                (*row[:3], row[3:])
                for row in self._connection.execute(
                    "SELECT host, session_id, agent_id, mark, ended_at, path FROM agents"
                )
            )
        }
        changed: dict[AgentKey, tuple[str, Summarized]] = {}
        for one in sorted(found, key=lambda one: one.summary.ended_at or 0.0):
            key, mark = key_of(one.summary), _mark(one.summary)
            before = known.get(key)
            if before is not None:
                is_older = (one.summary.ended_at or 0.0) < before[1]
                if before[0] == mark or (is_older and before[2] != os.fsencode(one.path)):
                    changed.pop(key, None)
                    continue
            changed[key] = mark, one
        if not changed:
            return
        try:
            with self._connection:
                for key, (mark, one) in changed.items():
                    self._replace(key, mark, one)
        except sqlite3.Error as error:
            self.problem = f"the daily sums are not kept: {error}"

    def _replace(self, key: AgentKey, mark: str, one: Summarized) -> None:
        run, summary = self._connection.execute, one.summary
        row = run(
            "INSERT INTO agents (host, session_id, agent_id) VALUES (?, ?, ?)"
            " ON CONFLICT (host, session_id, agent_id) DO UPDATE SET mark = NULL RETURNING id",
            key,
        ).fetchone()
        run(
            "UPDATE agents SET project = ?, model = ?, copied = ?, ended_at = ?, path = ?, mark = ?"
            " WHERE id = ?",
            (
                summary.project and _storable(summary.project),
                summary.model and _storable(summary.model),
                summary.copied,
                summary.ended_at or 0.0,
                os.fsencode(one.path),
                mark,
                row[0],
            ),
        )
        run("DELETE FROM parts WHERE agent = ?", row)
        places = ", ".join("?" * (_PART_FIELDS + 1))
        self._connection.executemany(
            f"INSERT INTO parts VALUES ({places})",
            [(row[0], *map(_storable, part)) for part in summary.usage],
        )

    def others(self, known: Collection[AgentKey], since: float) -> Iterator[Summarized]:
        """Yield transcripts beside those that are known, such as deleted ones.

        Of each there is only whose it was and what it spent: each day as at its noon.

        Args:
            known: Whose transcripts are not wanted.
            since: Leave out those that ended earlier, epoch seconds.
        """
        agents = self._connection.execute(
            "SELECT id, host, session_id, agent_id, project, model, ended_at, path FROM agents"
            " WHERE ended_at >= ?",
            (since,),
        ).fetchall()
        for number, *key, project, model, ended_at, path in agents:
            if AgentKey(*key) in known:
                continue
            rows = self._connection.execute(
                "SELECT * FROM parts WHERE agent = ? AND kind = ?", (number, SPENT)
            )
            host, session_id, agent_id = key
            summary = TranscriptSummary(
                host, session_id, agent_id or None, project, model, ended_at=ended_at
            )
            summary.spending = [
                [kind, quarter_of(noon_of(day)), *rest] for _, kind, day, *rest in rows
            ]
            yield Summarized(os.fsdecode(path), summary)

    def report(
        self, by: str, prices: PriceList | None, *, now: float, days: int | None = None
    ) -> PeriodReport:
        """Return what each period cost.

        Args:
            by: `DAY`, `WEEK` or `MONTH`.
            prices: None = nothing is priced.
            now: Epoch seconds.
            days: Only the last so many days, this one included; None = all.
        """
        today = date.fromtimestamp(now)
        since = None if days is None else today - timedelta(days=days - 1)
        biller, whole = Biller(prices), _PeriodSums()
        start_of = _STARTS[by]
        periods: dict[date, _PeriodSums] = {}
        query = (
            "SELECT agents.host, session_id, agent_id, project, agents.model, parts.*"
            " FROM parts JOIN agents ON agents.id = parts.agent ORDER BY agents.id"
        )
        for host, session_id, agent_id, project, usual, _, *row in self._connection.execute(query):
            (part,) = parts_of([row])
            day = date_of(part.day)
            if day is None or (since is not None and day < since):
                continue
            key, model = AgentKey(host, session_id, agent_id), part.model or usual
            sums = periods.setdefault(start_of(day), _PeriodSums()), whole
            biller.add(part, model, [bill for one in sums for bill in one.of(key, project, model)])
        together = whole.period(today, today)
        return PeriodReport(
            generated_at=utc(now),
            by=by,
            days=days,
            time_zone=time.tzname[time.localtime(now).tm_isdst > 0],
            sessions=together.sessions,
            compactions=together.compactions,
            periods=tuple(
                sums.period(start, _END_OF[by](start))
                for start, sums in sorted(periods.items(), reverse=True)
            ),
            price_data=None if prices is None else price_data_of(prices),
            **{name: getattr(together, name) for name in CostFacts.model_fields},
        )


class _PeriodSums:
    """One period, while it is added up."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Bill] = {}
        self._subagents: set[AgentKey] = set()
        self._groups: tuple[dict[str | None, dict[tuple[str, str], Bill]], ...] = ({}, {}, {})
        self._spelt: dict[str, str] = {}

    def of(self, key: AgentKey, project: str | None, model: str | None) -> list[Bill]:
        """Return the bills that a part of an agent's transcript is added to."""
        session = key[:2]
        if project is not None:
            project = self._spelt.setdefault(foreign_paths.path_key(project), project)
        bills = [self._sessions.setdefault(session, Bill())]
        for group, name in zip(self._groups, (project, key.host, model), strict=True):
            bills.append(group.setdefault(name, {}).setdefault(session, Bill()))
        if key.agent_id:
            self._subagents.add(key)
        return bills

    def period(self, start: date, end: date) -> Period:
        whole = _together(self._sessions.values())
        projects, hosts, models = (_uses(group) for group in self._groups)
        return Period(
            start=start,
            end=end,
            sessions=len(self._sessions),
            subagents=len(self._subagents),
            compactions=whole.compactions,
            by_project=projects,
            by_host=hosts,
            by_model=models,
            **whole.facts(),
        )


def _together(sessions: Iterable[Bill]) -> Bill:
    whole = Bill()
    for bill in sessions:
        bill.close_session()
        whole.merge(bill)
    return whole


def _uses(group: dict[str | None, dict[Any, Bill]]) -> tuple[DailyUse, ...]:
    uses = [
        DailyUse(name=name, sessions=len(sessions), **_together(sessions.values()).facts())
        for name, sessions in group.items()
    ]
    uses.sort(key=lambda one: (-(one.cost_usd or 0.0), one.name or ""))
    return tuple(uses)


def _mark(summary: TranscriptSummary) -> str:
    """Return what changes when a transcript's part does."""
    requests = sum(row[-2] for row in summary.usage)
    tokens = sum(map(sum, (row[6:-2] for row in summary.usage)))
    project = _storable(summary.project or "")
    return f"{summary.copied}.{len(summary.usage)}.{requests}.{tokens}.{project}"


def _storable(value: Any) -> Any:
    """Return a text without the half characters that JSON allows and no database takes."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode()


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _month_end(first: date) -> date:
    return (first.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)


_STARTS: dict[str, Callable[[date], date]] = {
    DAY: lambda day: day,
    WEEK: _monday,
    MONTH: lambda day: day.replace(day=1),
}
_END_OF: dict[str, Callable[[date], date]] = {
    DAY: lambda start: start,
    WEEK: lambda start: start + timedelta(days=6),
    MONTH: _month_end,
}
