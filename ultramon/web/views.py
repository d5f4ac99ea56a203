"""The views of a browser: an address becomes a view, which reads the store when it is drawn."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from starlette.exceptions import HTTPException

from ultramon.backends.queue import queue_of
from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.blind_sessions import BlindSessions
from ultramon.prices.price_list import open_prices
from ultramon.recordings.live_costs import LiveCosts
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.observed import Unreadable, observe
from ultramon.state.plan_limits import PlanLimits
from ultramon.state.record import host_memory
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import this_machine
from ultramon.web.agent_reader import AgentReader, names_of, runs_of
from ultramon.web.event_reader import EventReader
from ultramon.web.fillings import FillingReader
from ultramon.web.pages.agent import AgentFacts, agent_content
from ultramon.web.pages.event_list import events_content
from ultramon.web.pages.fleet import fleet_content
from ultramon.web.pages.jobs import job_content, jobs_content

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from ultramon.backends.base import Backend
    from ultramon.pictures.elements import Element
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.plan_limits import AccountPlan
    from ultramon.system.clock import Clock

ROWS = 50
MAX_ROWS = 1_000
"""So many agents a page can show; a browser draws more of them only slowly."""
MAX_EVENTS = 2_000
_AGENT_EVENTS = 200
_JOB_EVENTS = 20_000
_MAX_NAME_CHARS = 1_000


class Readers:
    """What reads the store for all views.

    Args:
        backend: The store.
        clock: For tests.
        state_directory: Where the user's plans and budgets are; None = none are shown.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock = SYSTEM_CLOCK,
        *,
        state_directory: str | None = None,
    ) -> None:
        self._plans = None if state_directory is None else PlanLimits(state_directory)
        self._budgets = None if state_directory is None else BudgetReadings(state_directory)
        self.backend = backend
        self.clock = clock
        self.agents = AgentReader(backend, clock)
        self.events = EventReader(backend)
        self.fillings = FillingReader()
        self.costs = LiveCosts(open_prices(clock=clock))

    def budgets(self) -> list[BudgetReading]:
        """Return what the user's budgets amount to now."""
        return [] if self._budgets is None else self._budgets.read(self.clock.now())

    def plans(self) -> list[AccountPlan]:
        """Return the accounts whose limits are known now."""
        return [] if self._plans is None else self._plans.accounts(self.clock.now())


class View(Protocol):
    """One page with its parameters."""

    @property
    def title(self) -> str:
        """The title of the window."""

    def draw(self, readers: Readers) -> Element:
        """Read the store, and return the content.

        Raises:
            AgentNotFoundError: It is about an agent that is not stored.
            StateError: The store refused.
        """


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet now."""

    run: str | None
    limit: int
    with_ended: bool
    machine: str | None = None
    title: str = "Fleet"

    def draw(self, readers: Readers) -> Element:
        """List the agents, the most urgent first."""
        look = readers.agents.look(
            self.run, self.limit, with_ended=self.with_ended, machine=self.machine
        )
        return fleet_content(
            look,
            readers.costs.of_agents(one.record for one in look.shown),
            run=self.run,
            limit=self.limit,
            more=min(self.limit * 4, MAX_ROWS),
            with_ended=self.with_ended,
            machine=self.machine,
            plans=readers.plans(),
            budgets=readers.budgets(),
        )


@dataclass(frozen=True, slots=True)
class AgentView:
    """One agent over time."""

    agent_id: str

    @property
    def title(self) -> str:
        """Its id."""
        return self.agent_id

    def draw(self, readers: Readers) -> Element:
        """Show its state, its events and its history."""
        now = readers.clock.now()
        stored = readers.backend.load(self.agent_id)
        record = stored.record
        if record is None:
            raise stored.problem or StateError(self.agent_id, "cannot be read")
        one = observe(record, stored.heartbeat_at, now, this_machine())
        if isinstance(one, Unreadable):
            raise StateError(one.agent_id, one.reason)
        one = BlindSessions().mark(one, now)
        events = readers.events.latest(lambda event: event.agent_id == self.agent_id, _AGENT_EVENTS)
        filling = readers.fillings.of(record, host_memory(record).get("transcriptPath"))
        history = readers.backend.history(self.agent_id)
        cost = readers.costs.of_agents([record]).get(self.agent_id)
        return agent_content(AgentFacts(one, history, events, filling, now, cost))


@dataclass(frozen=True, slots=True)
class JobsView:
    """The runs, or the agents of one of them over time."""

    run: str | None

    @property
    def title(self) -> str:
        """The run's name, where it is one."""
        return "Jobs" if self.run is None else f"Job {self.run}"

    def draw(self, readers: Readers) -> Element:
        """List the runs, or the agents of the one."""
        look = readers.agents.look(self.run, MAX_ROWS, with_ended=True)
        if self.run is None:
            return jobs_content(runs_of(look), now=readers.clock.now())
        run = self.run
        events = readers.events.latest(lambda event: event.run == run, _JOB_EVENTS)
        states = {one.record.agent_id: one for one in look.shown}
        return job_content(
            run,
            events,
            states,
            names=names_of(look),
            dropped=readers.events.dropped,
            now=readers.clock.now(),
        )


@dataclass(frozen=True, slots=True)
class EventsView:
    """Events, queues and dead letters."""

    limit: int
    title: str = "Events"

    def draw(self, readers: Readers) -> Element:
        """List the last events, and the queues with what they lost."""
        now = readers.clock.now()
        events = readers.events.latest(lambda event: True, self.limit)
        depths, dead = None, []
        with suppress(ConfigurationError):  # the store keeps no messages
            queue = queue_of(readers.backend)
            depths, dead = queue.depth(now=now), queue.dead()
        more = min(self.limit * 4, MAX_EVENTS)
        names = names_of(readers.agents.look(None, MAX_ROWS, with_ended=True))
        return events_content(
            events, depths, dead, names=names, limit=self.limit, more=more, now=now
        )


PATHS = ("/", "/agent", "/jobs", "/events")


def view_of(path: str, query: QueryParams) -> View:
    """Return the view of an address.

    Args:
        path: One of `PATHS`.
        query: Of the address.

    Raises:
        HTTPException: 422, a parameter is missing or wrong.
    """
    if path == "/agent":
        agent_id = _name(query, "id")
        if agent_id is None:
            raise HTTPException(422, "name an agent: /agent?id=…")
        return AgentView(agent_id)
    if path == "/jobs":
        return JobsView(_name(query, "run"))
    if path == "/events":
        return EventsView(_limit(query, 100, MAX_EVENTS))
    return FleetView(
        _name(query, "run"),
        _limit(query, ROWS, MAX_ROWS),
        query.get("all") == "1",
        _name(query, "machine"),
    )


def _name(query: QueryParams, name: str) -> str | None:
    value = query.get(name)
    if value is not None and len(value) > _MAX_NAME_CHARS:
        raise HTTPException(422, f"{name} may have {_MAX_NAME_CHARS:,} characters")
    return value


def _limit(query: QueryParams, default: int, most: int) -> int:
    value = query.get("limit", str(default))
    # `isdigit` alone takes digits such as "²", which `int` refuses.
    if not (value.isascii() and value.isdigit() and 0 < len(value) < 10 and int(value) > 0):
        raise HTTPException(422, f"limit is a number from 1 to {most:,}")
    return min(int(value), most)
