"""The agents of a store as pages show them: read once for all browsers, only what changed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ultramon.backends.current_agents import CurrentAgents
from ultramon.backends.machines import MachineNames
from ultramon.backends.toolkit import observe_stored
from ultramon.errors import ConfigurationError
from ultramon.hosts.blind_sessions import BlindSessions
from ultramon.hosts.gone_sessions import GoneSessions
from ultramon.state.agent_rows import Summary, name_of, summarize
from ultramon.state.liveness import ENDED, LOST
from ultramon.state.observed import (
    ObservedAgent,
    Unreadable,
    checked_json,
    sort_observed,
    without_ended,
)
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.backends.base import Backend
    from ultramon.backends.overview import Overview
    from ultramon.system.clock import Clock

FRESH_SECONDS = 1.0
"""A look at the store serves all pages for so long."""


SUMMARY_AGENTS = 1_000
"""What agents need is read out of their whole states: those of so many are decoded."""


class Run(NamedTuple):
    """What is known about one run, of the agents that are known."""

    name: str
    agents: int
    working: int
    """Agents that have not ended."""
    lost: int
    tasks_completed: int
    began_at: float
    """Epoch seconds."""
    last_at: float
    """Of the latest heartbeat or start, epoch seconds."""


class Look(NamedTuple):
    """The agents at one moment."""

    at: float
    """Epoch seconds."""
    shown: list[ObservedAgent]
    """The most urgent ones, checked whole."""
    unreadable: list[Unreadable]
    counts: Counter[str]
    """All agents by verdict."""
    left_out: int
    """How many less urgent ones are not shown."""
    runs: list[str]
    """Names of the runs of the agents that are known, the latest first; never all of a database."""
    known: list[ObservedAgent]
    """The agents that are known, of all runs."""
    summary: Summary
    """Of the most urgent ones, see `SUMMARY_AGENTS`."""
    machines: Mapping[str, str] | None = None
    """What people see of each machine, by its id; None = the store is that of one machine."""


class AgentReader:
    """Reads agents; safe to use from several threads.

    Args:
        backend: The store.
        clock: For tests.
    """

    def __init__(self, backend: Backend, clock: Clock = SYSTEM_CLOCK) -> None:
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._machines = MachineNames(backend)
        self._current = CurrentAgents(backend, None, clock=clock)
        self._gone = GoneSessions(backend)
        self._blind = BlindSessions()
        self._everyone: list[ObservedAgent] = []
        self._unreadable: list[Unreadable] = []
        self._at = 0.0
        self._next_at = 0.0

    def look(
        self, run: str | None, limit: int, *, with_ended: bool, machine: str | None = None
    ) -> Look:
        """Return the most urgent agents.

        Args:
            run: Only agents of this run; None = of all runs.
            limit: At most so many.
            with_ended: Whether ended agents are among them; they are counted in any case.
            machine: Only agents of this machine, see `MachineNames`; None = of all machines. None
                are shown of a machine that is not known.

        Raises:
            StateError: The store refused.
        """
        # A database sorts, counts and cuts by itself; other stores are read whole, then by what
        # changed.
        overview: Overview | None = getattr(self._backend, "overview", None)
        names = self._machines.names()
        if overview is not None and machine is None:
            look = self._look_at_page(overview, run, limit, with_ended=with_ended)
            return look._replace(machines=names)
        with self._lock:
            self._refresh()
            everyone, unreadable, at = self._everyone, self._unreadable, self._at
        try:
            everyone = MachineNames(self._backend, machine).of_wanted(everyone)
        except ConfigurationError:  # a link to one that has erased its rows
            everyone = []
        own = everyone if run is None else [one for one in everyone if one.record.run == run]
        counts = Counter(one.liveness.verdict for one in own)
        # Heads are enough to count and to sort: only what is shown is decoded and checked whole.
        present = own if with_ended else without_ended(own)
        shown, broken = self._check(present[:limit], at)
        urgent, _ = self._check(present[:SUMMARY_AGENTS], at)
        left_out = max(len(present) - limit, 0)
        broken = [*unreadable, *broken]
        return Look(
            *(at, shown, broken, counts, left_out, _runs(everyone), everyone),
            *(summarize(urgent, at), names),
        )

    def _look_at_page(
        self, overview: Overview, run: str | None, limit: int, *, with_ended: bool
    ) -> Look:
        now = self._clock.now()
        page = overview.page(
            run, now=now, machine=this_machine(), limit=limit, include_ended=with_ended
        )
        found = list(observe_stored(page.agents, now, whole=False))
        seen, unreadable = sort_observed(found)
        shown, broken = self._check(seen, now)
        counts = Counter(page.counts)
        total = counts.total() - (0 if with_ended else counts[ENDED])
        left_out = max(total - len(found), 0)
        broken = [*unreadable, *broken]
        return Look(now, shown, broken, counts, left_out, _runs(seen), seen, summarize(shown, now))

    def _refresh(self) -> None:
        """Look again, unless the last look is fresh."""
        began = self._clock.monotonic()
        if began < self._next_at:
            return
        self._everyone, self._unreadable = self._current.look(whole=False)
        # What was just ended is read once more: a page must not show it as lost.
        if self._gone.end(one.record for one in self._everyone if one.liveness.is_gone):
            self._everyone, self._unreadable = self._current.look(whole=False)
        self._at = self._clock.now()
        self._next_at = began + FRESH_SECONDS

    def _check(
        self, found: Iterable[ObservedAgent], now: float
    ) -> tuple[list[ObservedAgent], list[Unreadable]]:
        """Decode all of some states, and look for blind ones: the readable, and the others."""
        shown, broken = [], []
        for one in found:
            checked = checked_json(one)
            if isinstance(checked, Unreadable):
                broken.append(checked)
            else:
                shown.append(self._blind.mark(one, now))
        return shown, broken


def _runs(agents: Iterable[ObservedAgent]) -> list[str]:
    latest: dict[str, float] = {}
    for one in agents:
        run, at = one.record.run, one.record.last_heartbeat or one.record.started_at or 0.0
        latest[run] = max(at, latest.get(run, 0.0))
    return sorted(latest, key=lambda run: (-latest[run], run))


def runs_of(look: Look) -> list[Run]:
    """Return what is known about each run, the latest first."""
    by_run: dict[str, list[ObservedAgent]] = {run: [] for run in look.runs}
    for one in look.known:
        by_run[one.record.run].append(one)
    return [_run(name, own) for name, own in by_run.items()]


def _run(name: str, agents: list[ObservedAgent]) -> Run:
    verdicts = Counter(one.liveness.verdict for one in agents)
    records = [one.record for one in agents]
    begins = [record.started_at for record in records if record.started_at]
    return Run(
        name,
        agents=len(agents),
        working=len(agents) - verdicts[ENDED] - verdicts[LOST],
        lost=verdicts[LOST],
        tasks_completed=sum(record.tasks_completed for record in records),
        began_at=min(begins, default=0.0),
        last_at=max(record.last_heartbeat or record.started_at or 0.0 for record in records),
    )


def names_of(look: Look) -> dict[str, str]:
    """Return how the agents that are known are called, by id."""
    return {one.record.agent_id: str(name_of(one.record)) for one in look.known}
