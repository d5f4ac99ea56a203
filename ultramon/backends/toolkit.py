"""What every store and the verbs over it share."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Backend, Changes, Subscription
from ultramon.backends.lease_holder import is_gone
from ultramon.errors import AgentAlreadyRunningError, AgentNotFoundError
from ultramon.notices.permissions import check_permission
from ultramon.state.liveness import ALIVE, ENDED, LOST, judge, needs_heartbeat
from ultramon.state.observed import ObservedAgent, Unreadable, observe
from ultramon.system import compact_json
from ultramon.system.ids import check_agent_id
from ultramon.system.processes import process_started_at, this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ultramon.backends.base import StoredAgent
    from ultramon.state.record import StateRecord
    from ultramon.system.processes import MachineIdentity

_log = logging.getLogger("ultramon.backend")

_UNSEEN = (None, False)


def missing_members(backend: object) -> list[str]:
    """Return the names of the port that an object lacks."""
    names = [*Backend.__annotations__, *vars(Backend)]
    public = dict.fromkeys(name for name in names if not name.startswith("_"))
    return [name for name in public if not hasattr(backend, name)]


def read_subscription(
    name: str, cursor: object, memory: object, check_cursor: Callable[[str], object]
) -> Subscription:
    """Return what a consumer stored; the beginning, with a warning, where that is damaged.

    Args:
        name: The consumer.
        cursor: As stored; None = the beginning.
        memory: As stored, JSON.
        check_cursor: Raises ConfigurationError for what is no cursor of the store.
    """
    try:
        if cursor is not None:
            check_cursor(str(cursor))
        known = compact_json.loads(memory) if isinstance(memory, str) else None
        if isinstance(known, dict) and isinstance(cursor, str | None):
            return Subscription(cursor, known)
    except (ValueError, RecursionError):
        pass
    _log.warning("what consumer %s had acknowledged cannot be read: it begins anew", name)
    return Subscription(None, {})


def is_taken(other: object, until: object, holder: str, at: float) -> bool:
    """Return whether another living holder has a consumer name. See `Backend.subscribe`.

    Args:
        other: The stored holder; None = there is none, as where this or the end is damaged.
        until: The stored end of its lease, by the clock of the store.
        holder: The caller.
        at: Now, by that clock.
    """
    if not (isinstance(other, str) and isinstance(until, float)):
        return False
    return other != holder and until > at and not is_gone(other)


def find_changes(
    run: str | None,
    seen: dict[str, Any],
    marks: Mapping[str, object],
    heartbeats: Mapping[str, float],
    read: Callable[[str], StoredAgent | None],
) -> Changes:
    """Compare what is stored with what was seen, read what differs, and remember it.

    An agent that went over to another run counts as removed. Unreadable ones belong to every run.

    Args:
        run: As for `Backend.changes`.
        seen: As for `Backend.changes`; holds of each agent its mark, and whether it was returned.
        marks: Of every agent stored something, not None, that differs when its state does.
        heartbeats: Epoch seconds by agent, of those with marks only.
        read: Returns an agent, None when it is gone by now.
    """
    changed, removed = [], []
    fresh: dict[str, tuple[object, bool]] = {}
    for agent_id, mark in marks.items():
        before, shown = seen.get(agent_id, _UNSEEN)
        if before == mark or (agent := read(agent_id)) is None:
            continue
        known = mark
        if agent.problem is not None and isinstance(agent.problem.__cause__, OSError):
            # The system's refusal may pass without a new mark: try again, but say it once.
            known = str(agent.problem)
            if before == known:
                continue
        wanted = agent.record is None or run in (None, agent.record.run)
        fresh[agent_id] = known, wanted
        if wanted:
            changed.append(agent)
        elif shown:
            removed.append(agent_id)
    # A listing may miss a file that is replaced meanwhile: gone is what cannot be read either.
    missing = [agent_id for agent_id in seen if agent_id not in marks]
    for agent_id in [agent_id for agent_id in missing if read(agent_id) is None]:
        _, shown = seen.pop(agent_id)
        if shown:
            removed.append(agent_id)
    seen.update(fresh)
    return Changes(changed, removed, heartbeats)


def withholds_events(backend: Backend) -> bool:
    """Return whether `Backend.events` may withhold what is committed.

    In a backend whose `events_are_final` is true it never does.
    """
    return not getattr(backend, "events_are_final", False)


def last_cursor(backend: Backend) -> str | None:
    """Return a cursor behind every event that can be read now; None where there is none.

    A backend with a method of this name is asked; in others all events are read.

    Raises:
        StateError: The store refused.
    """
    ask: Callable[[], str | None] | None = getattr(backend, "last_cursor", None)
    if ask is not None:
        return ask()
    cursor = None
    while (page := backend.events(cursor)).events:
        cursor = page.cursor
    return cursor


def deliver_kept(backend: Backend) -> bool:
    """Store what was kept on this machine while the store was away; it waits a second at most.

    An optional part of a backend, a method of this name, for stores that may be away: each look at
    agents of such a store does so first. Others have nothing to deliver.

    Returns:
        Whether no more is left that could be stored.
    """
    deliver: Callable[[], bool] | None = getattr(backend, "deliver_kept", None)
    return deliver is None or deliver()


def is_kept(backend: Backend, agent_id: str) -> bool:
    """Return whether an agent's newest state is kept on this machine, because the store was away.

    An optional part of a backend, a method of this name.
    """
    ask: Callable[[str], bool] | None = getattr(backend, "is_kept", None)
    return ask is not None and ask(agent_id)


def find_agent(backend: Backend, agent_id: str) -> StoredAgent | None:
    """Return one agent; None when there is none of that id.

    Raises:
        InvalidAgentIdError: It is no agent id.
        StateError: Its state cannot be read.
    """
    try:
        return backend.load(check_agent_id(agent_id))
    except AgentNotFoundError:
        return None


def find_record(backend: Backend, agent_id: str) -> StateRecord | None:
    """Return the state of one agent; None when there is none of that id. See `find_agent`."""
    found = find_agent(backend, agent_id)
    return None if found is None else found.record


def observe_stored(
    agents: Iterable[StoredAgent], now: float, *, whole: bool = True
) -> Iterator[ObservedAgent | Unreadable]:
    """Judge stored agents as of now; see `ultramon.state.observed.observe`."""
    machine = this_machine()
    # Thousands of agents may live in one process.
    started_at = cache(process_started_at)
    for agent in agents:
        if agent.record is None:
            yield Unreadable(agent.agent_id, str(agent.problem))
        else:
            yield observe(
                agent.record, agent.heartbeat_at, now, machine, whole=whole, started_at=started_at
            )


def judge_stored(
    agents: Iterable[StoredAgent], heartbeats: Mapping[str, float], now: float
) -> Iterator[ObservedAgent | Unreadable]:
    """Judge stored agents as of now, for their verdicts: a beat that changes none is not looked up.

    See `observe_stored`; as much is checked as without ``whole``.
    """
    machine, started_at = this_machine(), cache(process_started_at)
    for agent in agents:
        record = agent.record
        if record is None:
            yield Unreadable(agent.agent_id, str(agent.problem))
            continue
        one = observe(record, None, now, machine, whole=False, started_at=started_at)
        if isinstance(one, ObservedAgent) and needs_heartbeat(record, one.liveness):
            beat = heartbeats.get(agent.agent_id)
            one = observe(record, beat, now, machine, whole=False, started_at=started_at)
        yield one


def load_permitted(
    backend: Backend, agent_id: str, requester: str | None, *what: str
) -> StateRecord:
    """Return an agent's state for a requester that may decide about the agent.

    Args:
        backend: Where it is stored.
        agent_id: The agent.
        requester: The agent that asks; None = a person, who may do everything.
        what: What the requester wants to do, for the error.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        StateError: Its state cannot be read.
    """
    record = backend.load(check_agent_id(agent_id)).record
    if record is None:
        raise AgentNotFoundError(agent_id)
    if requester is not None:
        check_permission(record, requester, *what)
    return record


def refuse_living(
    stored: StateRecord, heartbeat_at: float | None, now: float, machine: MachineIdentity
) -> None:
    """Refuse to start an agent whose owner provably lives.

    Args:
        stored: The agent's state.
        heartbeat_at: Its last beat, epoch seconds.
        now: Epoch seconds.
        machine: Of the caller.

    Raises:
        AgentAlreadyRunningError: It does.
    """
    if judge(stored, heartbeat_at, now, machine).verdict == ALIVE:
        raise AgentAlreadyRunningError(
            stored.agent_id, stored.pid or 0, stored.hostname, stored.run
        )


def has_ended(agent: StoredAgent, now: float) -> bool:
    """Return whether the life of an agent is over: it ended, or it is lost.

    Args:
        agent: As it is stored now; of one that cannot be read nothing is known.
        now: Epoch seconds.
    """
    if agent.record is None:
        return False
    return judge(agent.record, agent.heartbeat_at, now, this_machine()).verdict in (ENDED, LOST)


def is_over(agent: StoredAgent, before: float, now: float, machine: MachineIdentity) -> bool:
    """Return whether an agent has ended or is lost, and nothing was heard of it since a time.

    Args:
        agent: As it is stored now; one that cannot be read is not over.
        before: Epoch seconds.
        now: Epoch seconds.
        machine: Of the caller, to judge whether the agent lives.
    """
    record = agent.record
    if record is None or record.last_activity >= before:
        return False
    if not record.active:
        return True
    try:
        liveness = judge(record, agent.heartbeat_at, now, machine)
    except ArithmeticError:
        return False  # its numbers are none that an agent ever had
    return liveness.verdict == LOST and liveness.last_heartbeat_at < before
