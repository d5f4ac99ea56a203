"""Agents as every face lists them: their names, what they need, and which belong together.

A pure view of `ObservedAgent`: tables, the application of `ultramon watch`, status bars and pages
say the same of an agent because they all ask here.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE
from ultramon.state.record import ANSWER, PERMISSION, SDK_HOST, WAITS_FOR, host_memory, short_id
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import usage_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ultramon.state.observed import ObservedAgent
    from ultramon.state.record import StateRecord

HAND_OVER = "hand over"
NEEDS = (PERMISSION, ANSWER, HAND_OVER)
"""What an agent can need from a person: to allow a tool, to answer, to have its work handed over
before the client compacts it."""
MAX_TAG_CHARS = 13
"""A session's id is shown with 8 characters, a subagent's with four more of its own: all of them
can be typed where an agent is named."""
_MAX_TITLE_CHARS = 28
_PREDECESSORS = "predecessors"
_FORCE_RETURN = "force_return"
_WAITING = "waiting"
_PHASES = {"in_tool": "in tool"}
_FRESH_SECONDS = 60.0
"""An agent without a reading is not blind while it is so young: no reply can have come yet."""


class AgentName(NamedTuple):
    """How an agent is called: what a person knows first, what was generated last."""

    project: str
    """Name of the folder that a coding agent works in; empty for the agents of a program, which
    have a run."""
    title: str
    """Its label without the project, else an id that was chosen; empty for neither."""
    tag: str
    """The beginning of its id; empty where the title is the id."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.project, self.title) if part) or self.tag

    @property
    def brief(self) -> str:
        """The project of a session, else the title: for one line about one agent."""
        return self.project or self.title or self.tag


def is_session_of_host(record: StateRecord) -> bool:
    """Return whether an agent is a session of a coding agent, which a person can sit before."""
    return record.host != SDK_HOST and record.agent_id == record.session_id


def name_of(record: StateRecord) -> AgentName:
    """Return how an agent is called."""
    folder = "" if record.host == SDK_HOST else record.cwd or ""
    project = os.path.basename(folder.rstrip("/"))
    label, shown_id = record.label or "", short_id(record)
    # The project stands before the title anyway.
    if project and (label == project or label.startswith(f"{project}: ")):
        label = label[len(project) + 2 :]
    if shown_id == record.agent_id:  # chosen, not generated
        return AgentName(project, label or shown_id, shown_id if label else "")
    return AgentName(project, label, shown_id[:MAX_TAG_CHARS])


def need_of(one: ObservedAgent) -> str:
    """Return what an agent needs from a person, one of `NEEDS`; empty = nothing."""
    record = one.record
    if one.liveness.verdict in (ENDED, LOST):
        return ""
    if record.phase == _WAITING:
        waits_for = host_memory(record).get(WAITS_FOR)
        if waits_for in (PERMISSION, ANSWER):
            return str(waits_for)
    # The agents of a program are asked by their orchestrator, subagents return by themselves.
    if record.action == _FORCE_RETURN and is_session_of_host(record):
        return HAND_OVER
    return ""


def phase_of(record: StateRecord) -> str:
    """Return the phase of an agent in words."""
    return _PHASES.get(record.phase, record.phase)


def tasks_words(record: StateRecord) -> str:
    """Return how many of an agent's tasks are done; empty where it has none."""
    done, total = record.tasks_completed, record.tasks_total
    return (f"{done:,}" if done else "") if total is None else f"{done:,}/{total:,}"


def runway_words(one: ObservedAgent) -> str:
    """Return the turns that end below the next rung, above the last one below the limit.

    Empty where none is known, and for an agent that has ended.
    """
    if one.liveness.verdict == ENDED:
        return ""
    return str(one.runway or runway_to_limit(one.record) or "")


def doing_words(record: StateRecord) -> str:
    """Return the task that an agent is at; empty where its name says it already."""
    task = record.current_task
    return "" if task is None or task == name_of(record).title else task


def is_blind(one: ObservedAgent, now: float) -> bool:
    """Return whether it is unknown how full an agent's window is.

    Args:
        one: The agent.
        now: Epoch seconds.
    """
    if one.liveness.verdict == STALE:
        return True
    if one.liveness.verdict != ALIVE or one.record.usage_ratio is not None:
        return False
    return now - max(one.record.started_at, one.record.epoch_started_at) > _FRESH_SECONDS


def runway_to_limit(record: StateRecord) -> Runway | None:
    """Return the turns that still end below the context limit; None when unknowable.

    Where the host was seen to compact below it, those before that.
    """
    forecast = record.forecast or {}
    likely = (forecast.get("rungs") or {}).get("compaction") or {}
    # Where this host was seen to compact comes before the limit.
    if isinstance(likely.get("seen"), int):
        return Runway.of(likely)
    return None if record.usage_ratio is None else Runway.of(forecast.get("limit"))


class Summary(NamedTuple):
    """All agents in numbers, and the one nearest to its limit."""

    needs: Counter[str]
    """How many agents need what; see `NEEDS`."""
    first: ObservedAgent | None
    """The most urgent of those; None when none needs anything."""
    nearest: ObservedAgent | None
    """The living agent nearest to its limit; None when no usage is known."""
    lost: int
    """Lost agents; those whose work another agent continues do not count."""
    blind: int
    working: int
    waiting: int
    """Living agents that wait for a next task, and need nothing."""

    def __str__(self) -> str:
        return " · ".join(self.parts())

    def parts(self) -> list[str]:
        """Return the facts that are worth a place on one line, most urgent first."""
        needed, parts = self.needs.total(), []
        if self.first is not None:
            head = f"{needed:,} need you, first" if needed > 1 else "1 needs you:"
            name = _short_title(self.first)
            is_nearest = self.first is self.nearest
            parts.append(f"{head} {f'{name} {_usage_words(self.first)}' if is_nearest else name}")
        if self.nearest is not None and self.nearest is not self.first:
            project = name_of(self.nearest.record).project
            parts.append(f"{project or _short_title(self.nearest)} {_usage_words(self.nearest)}")
        counts = (
            (self.lost, "lost"),
            (self.blind, "blind"),
            (self.working, "working"),
            (self.waiting, "waiting"),
        )
        return [*parts, *(f"{count:,} {what}" for count, what in counts if count)]


def _short_title(one: ObservedAgent) -> str:
    """Return what tells an agent from the others of its project, short; a title in quotes."""
    name = name_of(one.record)
    # An id alone says little: it stands behind its project, and needs no quotes.
    is_title = bool(name.title and name.tag)
    title = name.title if is_title else str(name)
    if len(title) > _MAX_TITLE_CHARS:
        title = f"{title[: _MAX_TITLE_CHARS - 3].rstrip()}..."
    return f'"{title}"' if is_title else title


def _usage_words(one: ObservedAgent) -> str:
    """Return an agent's usage and the turns before its limit."""
    record = one.record
    share = usage_words(record)
    runway = runway_to_limit(record)
    if runway is None:
        return share
    return f"{share}, {runway.before(end_words(record))}"


def end_words(record: StateRecord) -> str:
    """Return what ends an agent's window: its host compacts it, a program's own limit is one."""
    return "its limit" if record.host == SDK_HOST else "compaction"


def summarize(seen: Iterable[ObservedAgent], now: float) -> Summary:
    """Return agents in numbers.

    Args:
        seen: The agents, those that have ended among them or not.
        now: Epoch seconds.
    """
    agents = list(seen)
    over = succeeded(agents)
    needs: Counter[str] = Counter()
    lost = blind = working = waiting = 0
    first: ObservedAgent | None = None
    nearest: ObservedAgent | None = None
    for one in agents:
        verdict = one.liveness.verdict
        if verdict == ENDED:
            continue
        if verdict == LOST:
            lost += one.record.agent_id not in over
            continue
        if one.record.usage_ratio is not None and (
            nearest is None or one.pressure < nearest.pressure
        ):
            nearest = one
        need = need_of(one)
        if need:
            needs[need] += 1
            if first is None or one.urgency < first.urgency:
                first = one
        elif is_blind(one, now):
            blind += 1
        elif one.record.phase == _WAITING:
            waiting += 1
        else:
            working += 1
    return Summary(needs, first, nearest, lost, blind, working, waiting)


def predecessor_ids(record: StateRecord) -> list[str]:
    """Return the ids of the agents whose work this one continues, the last one first."""
    cleared = host_memory(record).get(_PREDECESSORS)
    names = [name for name in cleared if isinstance(name, str)] if isinstance(cleared, list) else []
    return [record.predecessor_id, *names] if record.predecessor_id else names


def succeeded(seen: Iterable[ObservedAgent]) -> set[str]:
    """Return the ids of the agents whose work another one of these continues or continued."""
    return {
        name for one in seen for name in predecessor_ids(one.record) if name != one.record.agent_id
    }


def current(
    everyone: Sequence[ObservedAgent], over: Collection[str | None] = ()
) -> list[ObservedAgent]:
    """Return the agents that are worth a row while finished work is folded away.

    These are the living, the lost whose work no agent continues, and those whose work the living
    continue: `arrange` makes one row of such a chain.

    Args:
        everyone: The agents; of those that have ended only the head is read.
        over: Ids of agents whose work others, not among these, continue.

    Returns:
        The agents in the order of `everyone`.
    """
    over = {*over, *(one.record.predecessor_id for one in everyone)}
    agents = {one.record.agent_id: one for one in everyone}
    shown, waiting = set(), []
    for one in everyone:
        record, verdict = one.record, one.liveness.verdict
        if verdict not in (ENDED, LOST):
            shown.add(record.agent_id)
            waiting += predecessor_ids(record)
        elif verdict == LOST and record.agent_id not in over:
            shown.add(record.agent_id)
    while waiting:
        before = agents.get(waiting.pop())
        if before is not None and before.record.agent_id not in shown:
            shown.add(before.record.agent_id)
            waiting += [before.record.predecessor_id] if before.record.predecessor_id else []
    return [one for one in everyone if one.record.agent_id in shown]


class AgentRow(NamedTuple):
    """One agent with what belongs to it."""

    seen: ObservedAgent
    name: AgentName
    need: str
    """One of `NEEDS`, or empty."""
    earlier: tuple[ObservedAgent, ...]
    """The agents whose work it continues, the last one first: one line for the whole chain."""
    children: tuple[AgentRow, ...]
    """Its subagents, most urgent first."""

    @property
    def agent_id(self) -> str:
        """The id of the agent."""
        return self.seen.record.agent_id

    @property
    def contexts(self) -> tuple[ObservedAgent, ...]:
        """The agents of its line: those whose work it continues too."""
        return self.seen, *self.earlier

    @property
    def urgency(self) -> tuple[Any, ...]:
        """Sorts what needs a person first, then as `ObservedAgent.urgency`; children count."""
        own = (0 if self.need else 1, *self.seen.urgency)
        return min((own, *(child.urgency for child in self.children)))


class RowGroup(NamedTuple):
    """The agents of one run in one project."""

    run: str
    project: str
    rows: tuple[AgentRow, ...]
    """Most urgent first."""


def arrange(seen: Sequence[ObservedAgent]) -> list[RowGroup]:
    """Return agents grouped by run and project, as trees, with chains of handoffs as one row.

    An agent whose work a living one continues, or a later one of the same chain, is no row of its
    own; one whose parent is not among these stands at the top.

    Args:
        seen: The agents to show.
    """
    agents = {one.record.agent_id: one for one in seen}
    folded: set[str] = set()
    chains: dict[str, tuple[ObservedAgent, ...]] = {}
    # The latest first: a chain belongs to its last agent.
    for one in sorted(seen, key=_start, reverse=True):
        chain = _chain(one, agents, folded)
        chains[one.record.agent_id] = chain
        folded.update(before.record.agent_id for before in chain)
    # What was launched before a clear stands below the session that continues.
    heir = {
        before.record.agent_id: agent_id for agent_id, chain in chains.items() for before in chain
    }
    below: dict[str | None, list[str]] = {}
    for agent_id, one in agents.items():
        if agent_id not in folded:
            parent = _visible(one.record.parent_id, heir)
            is_below = parent in agents and not _is_above(agent_id, parent, agents, heir)
            below.setdefault(parent if is_below else None, []).append(agent_id)

    def row(agent_id: str) -> AgentRow:
        one = agents[agent_id]
        children = sorted(map(row, below.get(agent_id, ())), key=lambda row: row.urgency)
        name, need = name_of(one.record), need_of(one)
        return AgentRow(one, name, need, chains.get(agent_id, ()), tuple(children))

    groups: dict[tuple[str, str], list[AgentRow]] = {}
    for top in sorted(map(row, below.get(None, ())), key=lambda row: row.urgency):
        groups.setdefault((top.seen.record.run, top.name.project), []).append(top)
    return [RowGroup(*key, tuple(rows)) for key, rows in groups.items()]


def _start(one: ObservedAgent) -> tuple[float, str]:
    return one.record.started_at, one.record.agent_id


def _chain(
    one: ObservedAgent, agents: dict[str, ObservedAgent], folded: set[str]
) -> tuple[ObservedAgent, ...]:
    """Return the agents before one, as far as they are over; each belongs to one chain only."""
    found: dict[str, ObservedAgent] = {}
    waiting = predecessor_ids(one.record) if one.record.agent_id not in folded else []
    while waiting:
        name = waiting.pop(0)
        before = agents.get(name)
        if before is None or name in found or name in folded or before is one:
            continue
        # A predecessor that still runs has a row of its own.
        if before.liveness.verdict in (ENDED, LOST):
            found[name] = before
            waiting += predecessor_ids(before.record)
    return tuple(found.values())


def _visible(agent_id: str | None, heir: dict[str, str]) -> str | None:
    return heir.get(agent_id, agent_id) if agent_id is not None else None


def _is_above(
    agent_id: str, parent: str | None, agents: dict[str, ObservedAgent], heir: dict[str, str]
) -> bool:
    """Return whether an agent is among the ancestors of its own parent: states can say so."""
    passed = {agent_id}
    while parent in agents:
        if parent in passed:
            return True
        passed.add(parent)
        parent = _visible(agents[parent].record.parent_id, heir)
    return False
