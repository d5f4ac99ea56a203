"""The reader of the application: all store access happens in one thread of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ultramon.cli.views.watch.why import RecentEvents, why_lines
from ultramon.errors import UltramonError
from ultramon.pictures.sparkline import sparkline
from ultramon.state.agent_rows import Summary, arrange, current, predecessor_ids, summarize
from ultramon.state.liveness import ENDED
from ultramon.state.observed import ObservedAgent, Unreadable, checked_json
from ultramon.state.plan_words import brief_limit_words
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.cli.agent_list import AgentList
    from ultramon.prices.cost import Cost
    from ultramon.recordings.live_costs import LiveCosts
    from ultramon.state.agent_rows import AgentRow, RowGroup
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.plan_limits import AccountPlan, PlanLimit
    from ultramon.state.record import StateRecord

MAX_AGENTS = 5_000
"""Where the store sorts by itself, at most so many are listed."""


class Found(NamedTuple):
    """What one look found."""

    groups: list[RowGroup]
    summary: Summary
    is_all: bool
    """Whether no agent is left out for the limit."""
    finished: int
    """Ended agents, and lost ones whose work others continue, that are folded away."""
    unreadable: list[Unreadable]
    news: list[tuple[ObservedAgent, str]]
    """The agents that reached a rung, each with the rung."""
    at: float
    plans: list[AccountPlan]
    """The accounts whose limits are known."""
    budgets: list[BudgetReading]
    """What the user's budgets amount to."""
    machines: dict[str, str] | None
    """What people see of each machine, by its id; None = the store is that of one machine."""


class Source:
    """The agents of a store, read again and again.

    Args:
        backend: The store.
        agent_list: Its agents, ended ones too.
        limit: The most agents to list; None = all.
    """

    def __init__(self, backend: Backend, agent_list: AgentList, limit: int | None) -> None:
        self.backend = backend
        self._agent_list = agent_list
        self._limit = limit
        self._recent = RecentEvents(backend)
        self._checked: dict[str, StateRecord] = {}
        self._trends: dict[str, tuple[object, str]] = {}
        self._costs: LiveCosts | None = None
        self._hostname = this_machine().hostname

    def look(self, *, with_finished: bool) -> Found:
        """Look again.

        Raises:
            UltramonError: The store cannot be read now.
        """
        everyone, news = self._agent_list.survey(self._limit or MAX_AGENTS)
        unreadable = list(self._agent_list.unreadable)
        checked: dict[str, StateRecord] = {}

        def is_sound(one: ObservedAgent) -> bool:
            """Decode a state once: one that is replaced comes as another record."""
            record = one.record
            if self._checked.get(record.agent_id) is not record:
                problem = checked_json(one)
                if isinstance(problem, Unreadable):
                    unreadable.append(problem)
                    return False
            checked[record.agent_id] = record
            return True

        heads = {one.record.predecessor_id for one in everyone}
        seen = [
            one
            for one in everyone
            if (with_finished or one.liveness.verdict != ENDED) and is_sound(one)
        ]
        if not with_finished:
            # Of the ended agents only those whose work others continue are decoded.
            over = heads.union(*(predecessor_ids(one.record) for one in seen))
            before = [one for one in everyone if one.liveness.verdict == ENDED]
            seen += [one for one in before if one.record.agent_id in over and is_sound(one)]
        self._checked = checked
        shown = seen if with_finished else current(seen, heads)
        now = SYSTEM_CLOCK.now()
        shown = [self._agent_list.blind.mark(one, now) for one in shown]
        groups = arrange(shown[: self._limit])
        count = sum(map(_count, (row for group in groups for row in group.rows)))
        return Found(
            groups,
            summarize(shown, now),
            not self._agent_list.left_out and len(shown) <= (self._limit or len(shown)),
            len(everyone) - len(unreadable) + len(self._agent_list.unreadable) - count,
            unreadable,
            news,
            now,
            self._agent_list.plans,
            self._agent_list.budgets,
            self._agent_list.machines.names(),
        )

    def trends(self, rows: Iterable[AgentRow], width: int, *, ascii_only: bool) -> dict[str, str]:
        """Return the sparklines of the agents that are on the screen, by id."""
        found = {}
        for row in rows:
            record = row.seen.record
            # A history changes with its state alone.
            mark = (record.seq, record.epoch, record.context_limit, width)
            before = self._trends.get(record.agent_id)
            if before is None or before[0] != mark:
                points = self.backend.history(record.agent_id)
                line = sparkline(
                    points, limit_tokens=record.context_limit, width=width, ascii_only=ascii_only
                )
                before = self._trends[record.agent_id] = mark, line
            found[record.agent_id] = before[1]
        return found

    def costs(self, rows: Iterable[AgentRow]) -> dict[str, Cost]:
        """Return what the agents that are on the screen cost, by id, as far as it is known."""
        agents = [one.record for row in rows for one in row.contexts]
        records = [record for record in agents if record.host is not None]
        if not records:
            return {}
        # Prices are loaded with the first session on the screen, not at the start.
        if self._costs is None:
            from ultramon.prices.price_list import open_prices
            from ultramon.recordings.live_costs import LiveCosts

            self._costs = LiveCosts(open_prices())
        return self._costs.of_agents(records)

    def plans(self, rows: Iterable[AgentRow], accounts: Sequence[AccountPlan]) -> dict[str, str]:
        """Return how much of the fullest limit of each session's account is used, by id.

        Empty for one account: every row would say the same.
        """
        if len(accounts) < 2:
            return {}
        from ultramon.hosts.registry import host_of_agent

        words = {
            (one.host, one.account): brief_limit_words(max(one.limits, key=_used))
            for one in accounts
        }
        found = {}
        for row in rows:
            record = row.seen.record
            # Accounts are directories of this machine; a subagent spends what its session does.
            if record.parent_id is not None or record.hostname != self._hostname:
                continue
            host, memory = host_of_agent(record)
            if host is None:
                continue
            account = host.dialect.account_directory(memory.environment or {})
            if account and (known := words.get((host.name, os.path.abspath(account)))):
                found[record.agent_id] = known
        return found

    def why(self, row: AgentRow) -> list[str]:
        """Return everything about one agent, in lines."""
        try:
            return why_lines(self.backend, self._recent, row)
        except UltramonError as error:
            return [str(error)]


def _used(limit: PlanLimit) -> float:
    return limit.used_ratio


def _count(row: AgentRow) -> int:
    return 1 + len(row.earlier) + sum(map(_count, row.children))
