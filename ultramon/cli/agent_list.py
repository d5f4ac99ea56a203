"""Stored agents as a screen shows them: judged, sorted, and kept up to date."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.backends.current_agents import CurrentAgents
from ultramon.backends.machines import MachineNames
from ultramon.backends.toolkit import observe_stored
from ultramon.cli.selection import directory_of
from ultramon.errors import AgentNotFoundError, StateError, UltramonError
from ultramon.hosts.blind_sessions import BlindSessions
from ultramon.hosts.gone_sessions import GoneSessions
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.liveness import ENDED, judge
from ultramon.state.observed import (
    ObservedAgent,
    Unreadable,
    checked_json,
    checked_line,
    sort_observed,
    without_ended,
)
from ultramon.state.plan_limits import PlanLimits
from ultramon.state.record import FIELD_NAMES, StateRecord
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.overview import Overview
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.plan_limits import AccountPlan

    Shown = TypeVar("Shown")


def open_agent_list(
    backend: Backend,
    run: str | None,
    *,
    show_all: bool,
    is_cut: bool,
    with_news: bool = False,
    machine: str | None = None,
) -> AgentList:
    """Return the list of agents that costs least.

    Args:
        backend: Where the agents are.
        run: Only agents of this run; None = of all runs.
        show_all: Show ended agents too.
        is_cut: Only the most urgent agents will be asked for.
        with_news: Report the agents that reach a rung from look to look.
        machine: Only agents of this machine, see `MachineNames`; None = of all.
    """
    overview: Overview | None = getattr(backend, "overview", None)
    # Without a limit every state is read anyway, and a page of the database saves nothing. It
    # knows machines by numbers that no name leads to.
    if overview is None or not is_cut or machine is not None:
        return AgentList(backend, run, show_all=show_all, with_news=with_news, machine=machine)
    return PagedAgentList(overview, backend, run, show_all=show_all, with_news=with_news)


class AgentList:
    """The agents as they are stored, brought up to date by reading only what changed.

    A state is decoded whole when its agent is shown; its head is enough to sort and count it.

    Attributes:
        seen: The agents shown, most urgent first.
        unreadable: The agents that cannot be shown.
        hidden: How many ended agents are left out.
        left_out: How many less urgent agents a limit leaves out.
        verdicts: How many agents of each verdict there are, shown or left out.
        blind: Finds the blind ones among the agents that are shown.
        machines: The machines that the agents are on.
    """

    def __init__(
        self,
        backend: Backend,
        run: str | None,
        *,
        show_all: bool,
        with_news: bool,
        machine: str | None = None,
    ) -> None:
        self.seen: list[ObservedAgent] = []
        self.unreadable: list[Unreadable] = []
        self.hidden = 0
        self.left_out = 0
        self.verdicts: Counter[str] = Counter()
        self.machines = MachineNames(backend, machine)
        self._backend = backend
        self._run = run
        self._show_all = show_all
        self._with_news = with_news
        self._current = CurrentAgents(backend, run, clock=SYSTEM_CLOCK)
        self._gone = GoneSessions(backend)
        self.blind = BlindSessions()
        self._everyone: list[ObservedAgent] = []
        self._rungs: dict[tuple[str, int], dict[str, int]] | None = None

    @property
    def plans(self) -> list[AccountPlan]:
        """The limits of the user's plans now, by account."""
        return PlanLimits(directory_of(self._backend)).accounts(SYSTEM_CLOCK.now())

    @property
    def budgets(self) -> list[BudgetReading]:
        """What the user's budgets amount to now, as far as a process looks."""
        return BudgetReadings(directory_of(self._backend)).read(SYSTEM_CLOCK.now())

    def refresh(self, limit: int | None = None) -> list[tuple[ObservedAgent, str]]:
        """Look again.

        Args:
            limit: The most agents to show; None = all.

        Returns:
            The agents that reached a rung since the last look, shown or not, each with the rung.
            Empty at the first look, and where none are asked for.
        """
        self.seen = [one for one, _ in self._look(limit, checked_json)]
        return list(self._news()) if self._with_news else []

    def survey(self, limit: int) -> tuple[list[ObservedAgent], list[tuple[ObservedAgent, str]]]:
        """Look again without decoding states that are not asked for.

        Args:
            limit: The most agents to return, where the store sorts by itself.

        Returns:
            The agents, most urgent first, of which only the heads are sure to make sense; and the
            rungs reached, as `refresh`. `unreadable` names the others.
        """
        self.unreadable = []
        present, count = self._present(limit)
        seen = []
        for one in present:
            if isinstance(one, Unreadable):
                self.unreadable.append(one)
            else:
                seen.append(one)
        self.seen, self.left_out = [], max(count - len(seen) - len(self.unreadable), 0)
        return seen, list(self._news()) if self._with_news else []

    def lines(self, limit: int | None = None) -> Iterator[bytes]:
        """Look again and yield the agents shown as `checked_line`, none of them kept.

        At its end, or at the limit, all attributes but `seen` are up to date.
        """
        self.seen = []
        with paused_collector():
            # Ten thousand lines that are kept until the end take 74 MB.
            yield from (line for _, line in self._look(limit, checked_line))

    def _look(
        self, limit: int | None, show: Callable[[ObservedAgent], Shown | Unreadable]
    ) -> Iterator[tuple[ObservedAgent, Shown]]:
        """Yield what is shown; count the rest."""
        self.unreadable = []
        present, self.left_out = self._present(limit)
        shown, now = 0, SYSTEM_CLOCK.now()
        for one in present:
            if shown == limit:
                break
            self.left_out = max(self.left_out - 1, 0)
            if isinstance(one, Unreadable):
                self.unreadable.append(one)
                continue
            marked = self.blind.mark(one, now)
            checked = show(marked)
            # Blindness is looked for in what is shown, so the counts are corrected here.
            self.verdicts[one.liveness.verdict] -= 1
            if isinstance(checked, Unreadable):
                self.unreadable.append(checked)
            else:
                shown += 1
                self.verdicts[marked.liveness.verdict] += 1
                yield marked, checked

    def _present(self, limit: int | None) -> tuple[Iterable[ObservedAgent | Unreadable], int]:
        """Return the agents that may be shown, most urgent first, and their number."""
        self._everyone, self.unreadable = self._current.look(whole=self._with_news)
        if self._gone.end(one.record for one in self._everyone if one.liveness.is_gone):
            self._everyone, self.unreadable = self._current.look(whole=self._with_news)
        self._everyone = self.machines.of_wanted(self._everyone)
        present = self._everyone if self._show_all else without_ended(self._everyone)
        self.hidden = len(self._everyone) - len(present)
        self.verdicts = Counter(one.liveness.verdict for one in present)
        return present, len(present)

    def _news(self) -> Iterable[tuple[ObservedAgent, str]]:
        before = self._rungs
        # An agent that cannot be read for a moment has not reached its rungs anew afterwards.
        unread = {agent.agent_id for agent in self.unreadable}
        self._rungs = {key: rungs for key, rungs in (before or {}).items() if key[0] in unread}
        crossings = []
        for one in self._everyone:
            key, rungs = (one.record.agent_id, one.record.epoch), one.rungs_reached
            self._rungs[key] = rungs
            if before is not None:
                known = before.get(key, {})
                crossings += [(one, rung) for rung in rungs if rungs[rung] > known.get(rung, 0)]
        return crossings


class PagedAgentList(AgentList):
    """The most urgent agents only, sorted, judged and counted by the store itself."""

    def __init__(
        self,
        overview: Overview,
        backend: Backend,
        run: str | None,
        *,
        show_all: bool,
        with_news: bool,
    ) -> None:
        super().__init__(backend, run, show_all=show_all, with_news=with_news)
        self._overview = overview
        self._cursor: str | None = None

    def _present(self, limit: int | None) -> tuple[Iterable[ObservedAgent | Unreadable], int]:
        page = self._overview.page(
            self._run,
            now=SYSTEM_CLOCK.now(),
            machine=this_machine(),
            limit=limit,
            include_ended=self._show_all,
        )
        # News begin at the first look; what the journal held before is none.
        self._cursor = self._cursor or page.cursor
        self.verdicts = Counter(page.counts)
        self.hidden = 0 if self._show_all else self.verdicts.pop(ENDED, 0)
        # Without a limit none is left out: an agent that is missing was deleted meanwhile.
        count = 0 if limit is None else self.verdicts.total()
        return observe_stored(page.agents, SYSTEM_CLOCK.now(), whole=False), count

    def _news(self) -> Iterator[tuple[ObservedAgent, str]]:
        """Read the rungs reached from the events since they were last read."""
        while (page := self._backend.events(self._cursor)).events:
            self._cursor = page.cursor
            for event in page.events:
                is_ours = self._run in (None, event["run"])
                if is_ours and event["type"] == "context_threshold_reached":
                    with suppress(UltramonError):  # gone, or unreadable
                        seen, _ = look_at([self._backend.load(event["agentId"])])
                        yield from ((one, event["level"]) for one in seen)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no garbage meanwhile: thousands of records come, and none of them holds itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def look_at(agents: Iterable[StoredAgent]) -> tuple[list[ObservedAgent], list[Unreadable]]:
    """Judge stored agents as of now: the readable ones, most urgent first, and the others."""
    return sort_observed(observe_stored(agents, SYSTEM_CLOCK.now()))


def earlier_lives(backend: Backend, run: str) -> list[ObservedAgent]:
    """Return how agents ended in a run whose ids were started again in another run.

    Their states were replaced: only the journal has them, until it is pruned.
    """
    from ultramon.fleet.supervise.ledger import events_of

    started: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for event in events_of(backend, run):
        if event["type"] == "agent_started":
            started[event["agentId"]] = event
        elif event["type"] in ("agent_stopped", "agent_lost"):
            ended[event["agentId"]] = event
    lives = []
    for agent_id, event in ended.items():
        with suppress(AgentNotFoundError, StateError):
            now = backend.load(agent_id).record
            if now is not None and now.run != run:
                lives.append(_life_in_journal(started.get(agent_id, event), event))
    return lives


def _life_in_journal(started: dict[str, Any], ended: dict[str, Any]) -> ObservedAgent:
    at = parse_time(ended["occurredAt"]) or 0.0
    facts = ("run", "session_id", "generation", "epoch", "outcome", "exit")
    record = StateRecord(
        ended["agentId"],
        **{name: ended.get(FIELD_NAMES[name]) for name in facts},
        started_at=parse_time(started["occurredAt"]) or 0.0,
        last_heartbeat=at,
        last_activity=at,
        limit_source="unknown",
        tokens_source="unknown",
        action="none",
    )
    return ObservedAgent(record, judge(record, None, at, this_machine()))
