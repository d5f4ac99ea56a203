"""The agents as a screen shows them, brought up to date from look to look."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ultramon.cli.selection import look_at, look_at_one, without_ended
from ultramon.errors import UltramonError
from ultramon.state.liveness import ENDED
from ultramon.state.observed import ObservedAgent
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.overview import Overview, Page
    from ultramon.state.observed import Unreadable


def open_agent_list(
    backend: Backend, run: str | None, *, show_all: bool, is_cut: bool, with_news: bool = False
) -> AgentList:
    """Return the list of agents that costs least.

    Args:
        backend: Where the agents are.
        run: Only agents of this run; None = of all runs.
        show_all: Show ended agents too.
        is_cut: Only the first of the agents will be asked for.
        with_news: Whether it matters who reaches which rung.
    """
    overview: Overview | None = getattr(backend, "overview", None)
    if overview is None or not is_cut:
        return AgentList(backend, run, show_all=show_all)
    return PagedAgentList(backend, overview, run, show_all=show_all, with_news=with_news)


class AgentList:
    """The agents as they are stored, brought up to date by reading only what changed.

    Attributes:
        seen: Who is shown, most urgent first.
        unreadable: Who cannot be shown.
        hidden: How many ended agents are left out.
        left_out: How many less urgent ones a limit leaves out.
        verdicts: How many agents of each verdict there are, shown or left out.
    """

    def __init__(self, backend: Backend, run: str | None, *, show_all: bool) -> None:
        self.seen: list[ObservedAgent] = []
        self.unreadable: list[Unreadable] = []
        self.hidden = 0
        self.left_out = 0
        self.verdicts: Counter[str] = Counter()
        self._backend = backend
        self._run = run
        self._show_all = show_all
        self._marks: dict[str, Any] = {}
        self._stored: dict[str, StoredAgent] = {}
        self._rungs: dict[str, tuple[int, dict[str, int]]] | None = None

    def refresh(self, limit: int | None = None) -> list[tuple[ObservedAgent, str]]:
        """Look again.

        Args:
            limit: Show at most so many; None = all.

        Returns:
            Who reached which rung since the last look, shown or not; nobody at the first.
        """
        look = self._backend.changes(self._run, self._marks)
        for agent_id in look.removed:
            self._stored.pop(agent_id, None)
        self._stored.update((agent.agent_id, agent) for agent in look.changed)
        beats = look.heartbeats
        everyone, self.unreadable = look_at(
            [
                agent._replace(heartbeat_at=beats.get(agent.agent_id))
                for agent in self._stored.values()
            ]
        )
        present = everyone if self._show_all else without_ended(everyone)
        self.hidden = len(everyone) - len(present)
        self.verdicts = Counter(one.liveness.verdict for one in present)
        self.seen = present[:limit]
        self.left_out = len(present) - len(self.seen)
        return self._crossings(everyone)

    def stream(self, limit: int | None = None) -> Iterator[ObservedAgent]:
        """Look again and yield who is shown; when it ends, the attributes but `seen` hold too."""
        self.refresh(limit)
        yield from self.seen

    def _crossings(self, everyone: list[ObservedAgent]) -> list[tuple[ObservedAgent, str]]:
        before, after = self._rungs, {}
        crossings = []
        for one in everyone:
            epoch, rungs = after[one.record.agent_id] = one.record.epoch, one.rungs_reached
            if before is None:
                continue
            known_epoch, known = before.get(one.record.agent_id, (epoch, {}))
            crossings += [
                (one, rung)
                for rung, count in rungs.items()
                if count > (known.get(rung, 0) if known_epoch == epoch else 0)
            ]
        # An agent that cannot be read for a moment has not reached its rungs anew afterwards.
        unread = {agent.agent_id for agent in self.unreadable}
        after.update(
            (agent_id, old) for agent_id, old in (before or {}).items() if agent_id in unread
        )
        self._rungs = after
        return crossings


class PagedAgentList(AgentList):
    """The most urgent agents only, sorted, judged and counted by the store itself."""

    def __init__(
        self,
        backend: Backend,
        overview: Overview,
        run: str | None,
        *,
        show_all: bool,
        with_news: bool,
    ) -> None:
        super().__init__(backend, run, show_all=show_all)
        self._overview = overview
        self._with_news = with_news
        self._cursor: str | None = None

    def refresh(self, limit: int | None = None) -> list[tuple[ObservedAgent, str]]:
        """Look again. See `AgentList.refresh`."""
        page = self._page(limit)
        self.seen, self.unreadable = look_at(list(page.agents))
        self._count(page, limit, len(self.seen))
        if not self._with_news:
            return []
        if self._cursor is None:
            self._cursor = page.cursor
        return list(self._news())

    def stream(self, limit: int | None = None) -> Iterator[ObservedAgent]:
        """Look again and yield who is shown, none of them kept. See `AgentList.stream`."""
        page, host, shown = self._page(limit), this_host(), 0
        self.seen, self.unreadable = [], []
        for agent in page.agents:
            one = look_at_one(agent, SYSTEM_CLOCK.now(), host)
            if isinstance(one, ObservedAgent):
                shown += 1
                yield one
            else:
                self.unreadable.append(one)
        self._count(page, limit, shown)

    def _page(self, limit: int | None) -> Page:
        return self._overview.page(
            self._run,
            now=SYSTEM_CLOCK.now(),
            host=this_host(),
            limit=limit,
            include_ended=self._show_all,
        )

    def _count(self, page: Page, limit: int | None, shown: int) -> None:
        self.verdicts = Counter(page.counts)
        self.hidden = 0 if self._show_all else self.verdicts.pop(ENDED, 0)
        # Without a limit nobody is left out: who is missing was deleted meanwhile.
        there = 0 if limit is None else self.verdicts.total()
        self.left_out = max(there - shown - len(self.unreadable), 0)

    def _news(self) -> Iterator[tuple[ObservedAgent, str]]:
        """Read who reached which rung from the events since they were last read."""
        while (page := self._backend.events(self._cursor)).events:
            self._cursor = page.cursor
            for event in page.events:
                if event["type"] != "context_threshold_reached" or (
                    self._run not in (None, event["run"])
                ):
                    continue
                try:
                    stored = self._backend.load(event["agentId"])
                except UltramonError:
                    continue  # it is gone, or cannot be read: nothing can be told about it
                one = look_at_one(stored, SYSTEM_CLOCK.now(), this_host())
                if isinstance(one, ObservedAgent):
                    yield one, event["level"]
