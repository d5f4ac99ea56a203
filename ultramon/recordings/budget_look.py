"""What the user's budgets amount to, from the transcripts of every host.

A look reads what transcripts have grown by, through the index that reports use, and at most for
some seconds; never on a hook's path. Its result is stored for all faces.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.transcripts.records import qualified_id
from ultramon.notices.budgets import (
    Spent,
    budget_crossings,
    period_of,
    read_budgets,
    reading_of,
)
from ultramon.prices.price_list import open_prices
from ultramon.recordings.bills import price_of
from ultramon.recordings.clients import client_files, sources_of
from ultramon.recordings.daily_sums import FILE_NAME, DailySums, key_of
from ultramon.recordings.index import Summarized, TranscriptIndex, index_path
from ultramon.recordings.spending import quarter_time
from ultramon.recordings.stored import Stamps
from ultramon.recordings.usage import parts_of
from ultramon.state.budget_readings import BudgetReading, BudgetReadings
from ultramon.state.record import SDK_HOST, StateRecord, host_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ultramon.notices.budgets import Budget, Period
    from ultramon.notices.crossings import Crossing
    from ultramon.prices.price_list import PriceList
    from ultramon.recordings.daily_sums import AgentKey
    from ultramon.recordings.stored import Stamp
    from ultramon.recordings.transcript_summary import TranscriptSummary

LOOK_SECONDS = 15.0
"""Between two looks, at least: replies take as long."""
BUSY_RATIO = 0.05
"""The share of one processor that looking may take: after a look that took long the next waits."""
READ_SECONDS = 2.0
"""A look begins to read no further transcript after so long; the next one continues."""
_QUARTER_MIDDLE_SECONDS = 450.0


class StoredStates(Protocol):
    """What is asked of a store."""

    def changes(self, run: str | None, seen: dict[str, Any]) -> Any:
        """See `ultramon.backends.base.Backend.changes`."""


_NO_STAMP = 0, 0, 0


class _Files(NamedTuple):
    """The files of all hosts, by whether they were written to since a time."""

    recent: dict[str, Stamp]
    older: list[str]


class _Amount(NamedTuple):
    """What one agent spent in one quarter of an hour with one model."""

    at: float | None
    usd: float | None
    """None = it has no price."""
    tokens: int


class _Transcript:
    """One transcript, as far as budgets need it."""

    __slots__ = ("amounts", "stamp", "summarized")

    def __init__(self, stamp: Stamp, summarized: Summarized | None) -> None:
        self.stamp = stamp
        self.summarized = summarized
        """None = it is none."""
        self.amounts: dict[str | None, list[_Amount]] = {}
        """By the file of prices."""


class _Agent(NamedTuple):
    """What the store says of an agent."""

    agent_id: str
    run: str
    label: str | None
    project: str | None
    is_session_at_work: bool


class BudgetLook:
    """Looks at the budgets of the settings, for a `LevelWatch`: call it with the present time.

    Args:
        directory: The state directory, where the readings are stored.
        states: The store, which knows the runs and labels of agents.
        environ: Variables that move a host's directory.

    Raises:
        ConfigurationError: A setting of ``[budgets]`` is wrong, or a file of prices.
    """

    def __init__(
        self, directory: str, states: StoredStates, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.budgets = read_budgets()
        self._stored = BudgetReadings(directory)
        self._sums_path = os.path.join(directory, FILE_NAME)
        self._states = states
        self._environ = environ
        self._prices: dict[str | None, PriceList] = {
            path: open_prices(path) for path in {one.prices for one in self.budgets}
        }
        self._transcripts: dict[str, _Transcript] = {}
        self._others: list[_Transcript] = []
        """Those that the daily sums know and no folder has."""
        self._agents: dict[str, _Agent] = {}
        self._by_path: dict[str, _Agent] = {}
        self._seen: dict[str, Any] = {}
        self._readings: list[BudgetReading] = []
        self._next_at = 0.0
        self._has_read_all = False
        self._lock = threading.Lock()

    def __call__(self, now: float) -> list[Crossing]:
        """Return the levels that are reached; reads nothing where the last look is recent.

        Raises:
            StateError: The store refused, or the readings cannot be stored.
        """
        if not self.budgets:
            return []
        with self._lock:
            periods = [period_of(one, now) for one in self.budgets]
            keys = [one.key for one in periods]
            is_same = [one.period_key for one in self._readings] == keys
            # A new period is looked at once: what is known is the amount of the one before.
            if now >= self._next_at or (self._readings and not is_same):
                if self._take_stored(periods, now):
                    self._next_at = now + LOOK_SECONDS
                else:
                    self._look(periods, now)
            reached = [one.name for one in self._readings if one.level is not None]
            return list(budget_crossings(self._readings, now, self._recipients(reached)))

    def look_now(self, now: float) -> list[BudgetReading] | None:
        """Return what the budgets amount to now, everything that was written by now included.

        None = there was no time to read all of it, as at the first look at many transcripts: the
        next call continues.

        Raises:
            StateError: As for a call.
        """
        if not self.budgets:
            return []
        with self._lock:
            periods = [period_of(one, now) for one in self.budgets]
            return self._readings if self._look(periods, now) else None

    def _look(self, periods: Sequence[Period], now: float) -> bool:
        """Read, and store what the budgets amount to; return whether there was time for all."""
        began = time.monotonic()
        try:
            is_all = self._read(min(one.starts_at for one in periods))
        except sqlite3.Error as error:
            raise StateError(self._sums_path, str(error)) from error
        self._has_read_all |= is_all
        # Before everything was read once, the amounts would be too low without a sign.
        if self._has_read_all:
            self._readings = list(self._add_up(periods, now))
            self._stored.write(self._readings)
            self._next_at = now + max(LOOK_SECONDS, (time.monotonic() - began) / BUSY_RATIO)
        return is_all

    def _take_stored(self, periods: Sequence[Period], now: float) -> bool:
        """Take what another process has found since this one would have looked."""
        stored = self._stored.read(now)
        if len(stored) != len(self.budgets):
            return False
        for budget, period, one in zip(self.budgets, periods, stored, strict=True):
            own = budget.name, budget.scope, budget.limit, period.key, budget.enforce
            theirs = one.name, one.scope, one.limit, one.period_key, one.is_enforced
            is_recent = now - LOOK_SECONDS < one.measured_at <= now
            # Which prices were used is not stored.
            if own != theirs or budget.levels != one.levels or budget.prices or not is_recent:
                return False
        self._readings = stored
        return True

    def _read(self, since: float) -> bool:
        """Read what is new; return whether there was time for all.

        Args:
            since: No budget counts what was spent before; epoch seconds.
        """
        files = self._files(since)
        # A file that was deleted stays: what it cost was spent.
        for path in [*self._transcripts]:
            if _changed_at(self._transcripts[path].stamp) < since:
                del self._transcripts[path]
        changed = [
            path
            for path, stamp in files.recent.items()
            if path not in self._transcripts or self._transcripts[path].stamp != stamp
        ]
        if any(one.scope.needs_states for one in self.budgets):
            self._read_states()
        is_all = True
        with DailySums(self._sums_path) as sums:
            if changed:
                with TranscriptIndex(_index_path(), of_few=self._has_read_all) as index:
                    is_all = self._read_files(index, sums, changed, files)
            if changed or not self._has_read_all:
                # What was deleted, now or before this process began, was spent nevertheless.
                known = {key for one in self._transcripts.values() if (key := _key_of(one))}
                self._others = [_Transcript(_NO_STAMP, one) for one in sums.others(known, since)]
        return is_all

    def _files(self, since: float) -> _Files:
        """Return the files that were written to since a time, and the others."""
        recent: dict[str, Stamp] = {}
        older: list[str] = []
        stamps = Stamps()
        for path in client_files(self._environ):
            try:
                stamp = stamps.of(path)
            except (OSError, ValueError):
                continue
            if stamp is None or _changed_at(stamp) < since:
                older.append(path)
            else:
                recent[path] = stamp
        return _Files(recent, older)

    def _read_files(
        self,
        index: TranscriptIndex,
        sums: DailySums,
        changed: Iterable[str],
        files: _Files,
    ) -> bool:
        """Read transcripts; return whether there was time for all."""
        recent, older = files
        until = time.monotonic() + READ_SECONDS
        uncertain: dict[str, Summarized] = {}
        read: dict[str, Summarized] = {}
        is_late = False
        for path in changed:
            if is_late := time.monotonic() > until:
                break
            before = self._transcripts.get(path)
            one = next(iter(index.summarize([path])), None)
            if not isinstance(one, Summarized):
                self._transcripts[path] = _Transcript(recent[path], None)
                continue
            read[path] = one
            known = None if before is None else before.summarized
            # How far a copy goes is settled with its first own reply.
            if known is None or known.summary.copied >= len(known.summary.keys):
                uncertain[path] = one
        if uncertain:
            others = [
                one.summarized
                for path, one in self._transcripts.items()
                if path not in uncertain and one.summarized is not None
            ]
            beside = [*others, *index.kept(sources_of(uncertain.values(), older))]
            copied = sums.copied()
            for found in index.count_copies_once(
                uncertain.values(), beside, lambda summary: copied.get(key_of(summary), 0)
            ):
                if isinstance(found, Summarized):
                    read[found.path] = found
        sums.take(read.values())
        for path, one in read.items():
            self._keep(one, recent[path])
        return not is_late

    def _keep(self, one: Summarized, stamp: Stamp) -> None:
        # What drawings, tables and daily sums need is most of a summary.
        summary = replace(
            one.summary, tokens_by_source={}, tokens_by_file={}, returns={}, points=[], usage=[]
        )
        kept = _Transcript(stamp, Summarized(one.path, summary))
        self._transcripts[one.path] = kept

    def _read_states(self) -> None:
        """Read the states that changed; what was deleted is remembered."""
        for agent in self._states.changes(None, self._seen).changed:
            record: StateRecord | None = agent.record
            if record is None:
                continue
            own = _Agent(
                record.agent_id,
                record.run,
                record.label,
                record.cwd,
                record.active and record.parent_id is None and record.host != SDK_HOST,
            )
            self._agents[own.agent_id] = own
            if isinstance(path := host_memory(record).get("transcriptPath"), str):
                self._by_path[path] = own

    def _add_up(self, periods: Sequence[Period], now: float) -> Iterator[BudgetReading]:
        agents = [*self._by_agent().values()]
        mains = {
            (one.summary.host, one.summary.session_id): one
            for one in (each.summarized for each in agents)
            if one is not None and one.summary.agent_id is None
        }
        for budget, period in zip(self.budgets, periods, strict=True):
            amounts: list[_Amount] = []
            for one in agents:
                assert one.summarized is not None
                summary = one.summarized.summary
                main = mains.get((summary.host, summary.session_id))
                if self._counts(budget, one.summarized, main):
                    amounts += self._amounts_of(one, budget.prices, main)
            yield reading_of(budget, period, _sum(amounts, period), now)

    def _by_agent(self) -> dict[AgentKey, _Transcript]:
        """Return the transcripts by agent; of two of one agent the one that lasted longer."""
        found: dict[AgentKey, _Transcript] = {}
        for one in (*self._others, *self._transcripts.values()):
            if (key := _key_of(one)) is None:
                continue
            if (other := found.get(key)) is None or _ended_at(one) >= _ended_at(other):
                found[key] = one
        return found

    def _counts(self, budget: Budget, one: Summarized, main: Summarized | None) -> bool:
        scope = budget.scope
        if scope.is_all:
            return True
        whose = [self._agent_of(each) for each in (one, main) if each is not None]
        known = [each for each in whose if each is not None]
        names = [name for each in known for name in (each.agent_id, each.label)]
        names += [_id_of(one.summary), one.summary.session_id]
        run = known[0].run if known else None
        projects = {each.summary.project for each in (one, main) if each is not None}
        return any(scope.includes(project, run, names) for project in projects)

    def _agent_of(self, one: Summarized) -> _Agent | None:
        own = self._agents.get(_id_of(one.summary))
        return own or self._by_path.get(one.path)

    def _amounts_of(
        self, one: _Transcript, prices_file: str | None, main: Summarized | None
    ) -> list[_Amount]:
        if prices_file not in one.amounts:
            assert one.summarized is not None
            usual = one.summarized.summary.model or (main and main.summary.model)
            prices = self._prices[prices_file]
            one.amounts[prices_file] = list(_price(one.summarized.summary, usual, prices))
        return one.amounts[prices_file]

    def _recipients(self, reached: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return who is sent a message about each of some budgets, by its name."""
        found = {}
        budgets = [one for one in self.budgets if one.name in reached]
        if any(one.notify_agents for one in budgets):
            self._read_states()
        for budget in budgets:
            names = [] if budget.notify is None else [budget.notify]
            if budget.notify_agents:
                names += [
                    one.agent_id
                    for one in self._agents.values()
                    if one.is_session_at_work
                    and budget.scope.includes(one.project, one.run, (one.agent_id, one.label))
                ]
            found[budget.name] = tuple(dict.fromkeys(names))
        return found


def _price(
    summary: TranscriptSummary, usual_model: str | None, prices: PriceList
) -> Iterator[_Amount]:
    for part in parts_of(summary.spending):
        if not any(part.usage):
            continue
        at = quarter_time(part.day)
        middle = None if at is None else at + _QUARTER_MIDDLE_SECONDS
        price = price_of(prices, part, part.model or usual_model, middle)
        yield _Amount(at, None if price is None else price.usd, part.usage.tokens)


def _sum(amounts: Iterable[_Amount], period: Period) -> Spent:
    usd, tokens, is_priced, is_dated = 0.0, 0, True, True
    times: set[float] = set()
    for one in amounts:
        if one.at is None:
            # Without a time it may be of any period, so it counts only in one without an end.
            is_dated = False
            if period.ends_at is not None:
                continue
        elif one.at < period.starts_at or (period.ends_at is not None and one.at >= period.ends_at):
            continue
        else:
            times.add(one.at)
        tokens += one.tokens
        if one.usd is None:
            is_priced = False
        else:
            usd += one.usd
    is_dated |= period.ends_at is None
    return Spent(usd, tokens, is_priced, is_dated, min(times, default=None), len(times))


def _index_path() -> str | None:
    try:
        return index_path()
    except ConfigurationError:
        return None  # a user without a home: every look reads what changed as a whole


def _key_of(one: _Transcript) -> AgentKey | None:
    return None if one.summarized is None else key_of(one.summarized.summary)


def _changed_at(stamp: Stamp) -> float:
    return stamp[2] / 1e9


def _ended_at(one: _Transcript) -> float:
    return 0.0 if one.summarized is None else one.summarized.summary.ended_at or 0.0


def _id_of(summary: TranscriptSummary) -> str:
    return qualified_id(summary.session_id, summary.agent_id)
