"""Reads the store and returns the value of every metric."""

from __future__ import annotations

import threading
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.machines import MachineNames, are_several, shown_machine
from ultramon.context.gauge import is_lower_bound, known_tokens
from ultramon.context.ladder import Ladder
from ultramon.errors import ConfigurationError, StateError
from ultramon.metrics.definitions import (
    AGENT_MACHINE,
    AGENTS,
    AGENTS_NOT_SHOWN,
    BUDGET_LIMIT_TOKENS,
    BUDGET_LIMIT_USD,
    BUDGET_SPENT_TOKENS,
    BUDGET_SPENT_USD,
    BUDGET_USED_RATIO,
    CONTEXT_LIMIT,
    CONTEXT_TOKENS,
    HEARTBEAT_AGE,
    MACHINE_AGE,
    METRICS,
    NOTICES_OLDEST_AGE,
    NOTICES_WAITING,
    PLAN_READING_AGE,
    PLAN_RESET,
    PLAN_USED_RATIO,
    READING_AGE,
    TURNS_TO_LEVEL,
    TURNS_TO_LEVEL_HIGH,
    TURNS_TO_LEVEL_LOW,
    UNKNOWN,
    USAGE_RATIO,
    plain,
    plain_path,
)
from ultramon.metrics.journal_counters import JournalCounters
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.liveness import ENDED, LOST
from ultramon.state.observed import Unreadable, observe
from ultramon.state.plan_limits import PlanLimits
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import usage_ratio
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import process_started_at, this_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.metrics.definitions import Samples
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

AGENT_LIMIT = 500
"""Agents with series of their own, by default."""
# OpenTelemetry asks for each instrument by itself, and all of them show one collection.
CACHE_SECONDS = 1.0
UNREADABLE = "unreadable"
"""The lifecycle of an agent whose state cannot be read."""

_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StateError)


class _Reading(NamedTuple):
    """The last reading of an active agent."""

    model: str
    tokens: int | None
    ratio: float | None
    limit_tokens: int | None
    limit_source: str
    measured_at: float | None
    turns: dict[str, Runway]
    """By level."""


class _Known(NamedTuple):
    """What is kept of an agent between two collections."""

    labels: tuple[str, str, str]
    """Run, host and level."""
    lifecycle: str
    """Of an agent without a record."""
    record: StateRecord | None = None
    """None for an agent that has ended, or cannot be read."""
    reading: _Reading | None = None


_UNREADABLE = _Known((UNKNOWN, UNKNOWN, UNKNOWN), UNREADABLE)


class MetricsSource:
    """The metrics of one run, or of all runs. Thread-safe.

    States that did not change since the last collection are not read again.

    Args:
        backend: The store.
        run: Only this run; None = all runs.
        agent_limit: How many active agents, the most urgent first, have series of their own; the
            others are counted in ``ultramon_agents_not_shown``. 0 = none.
        cache_seconds: A collection so soon after the last one returns the same values.
        state_directory: Where the user's plans and budgets are; None = none are exported.
        clock: For tests; None = the system's.

    Raises:
        ConfigurationError: A number is negative.
    """

    def __init__(
        self,
        backend: Backend,
        run: str | None = None,
        *,
        agent_limit: int = AGENT_LIMIT,
        cache_seconds: float = CACHE_SECONDS,
        state_directory: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if agent_limit < 0:
            raise ConfigurationError("agent_limit", agent_limit, ">= 0")
        if not cache_seconds >= 0:
            raise ConfigurationError("cache_seconds", cache_seconds, ">= 0")
        self._backend = backend
        self._run = run
        self._agent_limit = agent_limit
        self._cache_seconds = cache_seconds
        self._clock = clock or SYSTEM_CLOCK
        self._plans = None if state_directory is None else PlanLimits(state_directory)
        self._budgets = None if state_directory is None else BudgetReadings(state_directory)
        self._lock = threading.Lock()
        self._machines = MachineNames(backend)
        self._counters = JournalCounters(backend, run)
        self._seen: dict[str, Any] = {}
        self._known: dict[str, _Known] = {}
        self._samples: Samples = {}
        self._refusal: StateError | None = None
        self._fresh_until = float("-inf")

    def begin(self) -> None:
        """Count events from now on, not only from the first collection on.

        Raises:
            StateError: The store refused; the first collection tries again.
        """
        with self._lock:
            self._counters.begin()

    def collect(self) -> Samples:
        """Return the values as of now, or of the last collection if it is recent. Read-only.

        Raises:
            StateError: The store refused.
        """
        with self._lock:
            if self._clock.monotonic() >= self._fresh_until:
                self._refusal = None
                try:
                    self._samples = self._collect()
                except StateError as error:
                    # Kept like a result: the next instrument must not wait for the store again.
                    self._refusal = error
                self._fresh_until = self._clock.monotonic() + self._cache_seconds
            if self._refusal is not None:
                raise self._refusal
            return self._samples

    def _collect(self) -> Samples:
        samples: Samples = {metric: {} for metric in METRICS}
        # Before the events: their agents are then known.
        changes = self._backend.changes(self._run, self._seen)
        self._keep(changes.changed, changes.removed)
        now = self._clock.now()
        active = self._judge(samples, changes.heartbeats, now)
        active.sort(key=lambda one: one.urgency)
        # The list is cut after sorting: what is left without series is the least urgent.
        for one in active[: self._agent_limit]:
            known = self._known[one.record.agent_id]
            if known.reading is not None:
                _add_agent(samples, one, known.labels, known.reading, now)
        samples[AGENTS_NOT_SHOWN][()] = float(max(0, len(active) - self._agent_limit))
        self._add_machines(samples, active, now)
        self._add_queue(samples, now)
        self._add_plans(samples, now)
        self._add_budgets(samples, now)
        self._counters.read(self._labels_of_event)
        for metric, counts in self._counters.samples.items():
            # A copy: the counters grow while this collection is still shown.
            samples[metric] = dict(counts)
        return samples

    def _keep(self, changed: list[StoredAgent], removed: list[str]) -> None:
        for agent_id in removed:
            self._known.pop(agent_id, None)
        for agent in changed:
            self._known[agent.agent_id] = known = _known(agent)
            if known.record is not None:
                self._counters.show(*known.labels[:2])

    def _judge(
        self, samples: Samples, heartbeats: Mapping[str, float], now: float
    ) -> list[ObservedAgent]:
        """Count the agents by lifecycle; return the active ones."""
        machine, started_at = this_machine(), cache(process_started_at)
        active, counts = [], Counter[tuple[str, ...]]()
        for agent_id, (labels, settled, record, _) in self._known.items():
            lifecycle = settled
            if record is not None:
                one = observe(
                    record,
                    heartbeats.get(agent_id),
                    now,
                    machine,
                    whole=False,
                    started_at=started_at,
                )
                if isinstance(one, Unreadable):
                    lifecycle = UNREADABLE
                else:
                    lifecycle = one.liveness.verdict
                    # No process measures a lost agent, and its series would stay until it is
                    # pruned.
                    if lifecycle != LOST:
                        active.append(one)
            counts[*labels, lifecycle] += 1
        samples[AGENTS].update((labels, float(count)) for labels, count in counts.items())
        return active

    def _add_machines(self, samples: Samples, active: list[ObservedAgent], now: float) -> None:
        names = self._machines.names()
        for one in self._machines.machines() if names else ():
            label = plain(shown_machine(names, one.machine_id))
            samples[MACHINE_AGE][label,] = max(0.0, now - one.last_seen)
        if are_several(names, active):
            for seen in active[: self._agent_limit]:
                record = seen.record
                labels = plain(record.agent_id), plain(record.run)
                machine = plain(shown_machine(names, record.hostname))
                samples[AGENT_MACHINE][*labels, machine] = 1.0

    def _add_queue(self, samples: Samples, now: float) -> None:
        queue = getattr(self._backend, "queue", None)
        if queue is None:
            return
        waiting, ages = samples[NOTICES_WAITING], samples[NOTICES_OLDEST_AGE]
        for depth in queue.depth(now=now):
            known = self._known.get(depth.recipient)
            # A recipient without a state has no run, so it is not known to be in this one.
            if known is None and self._run is not None:
                continue
            run = UNKNOWN if known is None else known.labels[0]
            waiting[run,] = waiting.get((run,), 0.0) + depth.ready + depth.waiting + depth.claimed
            if depth.oldest_at is not None:
                ages[run,] = max(ages.get((run,), 0.0), now - depth.oldest_at)

    def _add_plans(self, samples: Samples, now: float) -> None:
        for account in () if self._plans is None else self._plans.accounts(now):
            for limit in account.limits:
                labels = plain_path(account.name), plain(account.host), plain(limit.name)
                samples[PLAN_USED_RATIO][labels] = limit.used_ratio
                samples[PLAN_RESET][labels] = limit.resets_at
                samples[PLAN_READING_AGE][labels] = max(0.0, now - limit.measured_at)
                self._counters.show_plan(*labels)

    def _add_budgets(self, samples: Samples, now: float) -> None:
        for one in () if self._budgets is None else self._budgets.read(now):
            name, in_usd = plain(one.name), one.unit == "usd"
            samples[BUDGET_USED_RATIO][name,] = one.used_ratio
            samples[BUDGET_SPENT_USD if in_usd else BUDGET_SPENT_TOKENS][name,] = one.spent
            samples[BUDGET_LIMIT_USD if in_usd else BUDGET_LIMIT_TOKENS][name,] = one.limit
            self._counters.show_budget(name)

    def _labels_of_event(self, agent_id: str, run: str) -> tuple[str, str]:
        known = self._known.get(agent_id)
        return plain(run), UNKNOWN if known is None else known.labels[1]


def _known(agent: StoredAgent) -> _Known:
    record = agent.record
    if record is None:
        return _UNREADABLE
    try:
        reading = _read(record) if record.active else None
        level = UNKNOWN if record.measured_at is None else plain(record.threshold_status)
        labels = (plain(record.run), plain(record.host), level)
    except _SENSELESS:  # a state with a right checksum can still hold what no agent ever had
        return _UNREADABLE
    return _Known(labels, ENDED) if reading is None else _Known(labels, UNKNOWN, record, reading)


def _read(record: StateRecord) -> _Reading:
    # A lower bound looks like a window that emptied, so it is no value.
    is_exact = record.measured_at is not None and not is_lower_bound(record)
    return _Reading(
        model=plain(record.model),
        tokens=known_tokens(record) if is_exact else None,
        # Before the first reading a stored ratio is 0.0.
        ratio=usage_ratio(record) if is_exact else None,
        limit_tokens=record.context_limit,
        limit_source=plain(record.limit_source),
        measured_at=record.measured_at,
        turns=_turns(record) if is_exact else {},
    )


def _turns(record: StateRecord) -> dict[str, Runway]:
    """Return the forecast turns before each level that is known, 0 for one that is reached."""
    names = Ladder.from_json(record.ladder).names
    level = record.threshold_status
    # Reached is 0 turns left: one alerting rule then holds for every ladder.
    reached = names[1 : names.index(level) + 1] if level in names else ()
    ahead = (record.forecast or {}).get("rungs") or {}
    turns = {name: Runway.of(ahead.get(name)) for name in names}
    known = {name: runway for name, runway in turns.items() if runway is not None}
    return {**known, **dict.fromkeys(reached, Runway(0, 0, 0))}


def _add_agent(
    samples: Samples,
    one: ObservedAgent,
    labels: tuple[str, str, str],
    reading: _Reading,
    now: float,
) -> None:
    agent_id, (run, host, _) = plain(one.record.agent_id), labels
    if reading.tokens is not None:
        samples[CONTEXT_TOKENS][agent_id, run, host, reading.model] = float(reading.tokens)
    if reading.limit_tokens is not None:
        limit = float(reading.limit_tokens)
        samples[CONTEXT_LIMIT][agent_id, run, reading.limit_source] = limit
    if reading.ratio is not None:
        samples[USAGE_RATIO][agent_id, run, host] = float(reading.ratio)
    if reading.measured_at is not None:
        samples[READING_AGE][agent_id, run] = max(0.0, now - reading.measured_at)
    age = one.liveness.heartbeat_age_seconds
    if age is not None:
        samples[HEARTBEAT_AGE][agent_id, run] = age
    for level, runway in reading.turns.items():
        samples[TURNS_TO_LEVEL][agent_id, run, level] = float(runway.turns)
        samples[TURNS_TO_LEVEL_LOW][agent_id, run, level] = float(runway.low)
        if runway.high is not None:
            samples[TURNS_TO_LEVEL_HIGH][agent_id, run, level] = float(runway.high)
