"""The text that Space opens: why an agent's window is as full as it is, and its latest work."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.cli.event_line import event_line
from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.explanation import explain_stored
from ultramon.cli.output import TASK_MARKS, field, held_tokens, percent, short_tokens
from ultramon.cli.resumption import resume_command
from ultramon.cli.selection import directory_of
from ultramon.cli.views.agent_table import brief_state
from ultramon.errors import AgentNotFoundError, StateError
from ultramon.state.agent_rows import end_words, runway_to_limit
from ultramon.state.usage_percent import usage_words
from ultramon.system.processes import this_machine
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.hosts.port import Host
    from ultramon.state.agent_rows import AgentRow
    from ultramon.state.record import StateRecord

_MAX_TEXT_CHARS = 600
_MAX_SOURCES = 8
_MAX_EVENTS = 8
"""Longer transcripts take seconds; `ultramon report` reads those."""


class RecentEvents:
    """The last events of each agent; each event of the journal is read once.

    Args:
        backend: The store.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cursor: str | None = None
        self._events: dict[str, deque[dict[str, Any]]] = {}

    def of(self, agent_id: str) -> list[dict[str, Any]]:
        """Return the last events of one agent, oldest first.

        Raises:
            StateError: The journal cannot be read.
        """
        while (page := self._backend.events(self._cursor)).events:
            self._cursor = page.cursor
            for event in page.events:
                name = str(event.get("agentId"))
                self._events.setdefault(name, deque(maxlen=_MAX_EVENTS)).append(event)
        return list(self._events.get(agent_id, ()))


def why_lines(backend: Backend, recent: RecentEvents, row: AgentRow) -> list[str]:
    """Return everything about one agent, in lines that are harmless to a terminal.

    Args:
        backend: The store.
        recent: Its events.
        row: The agent as the list shows it, with its subagents.
    """
    try:
        stored = backend.load(row.agent_id)
    except (AgentNotFoundError, StateError) as error:
        return [sanitize(str(error))]
    record = stored.record
    if record is None:
        return [sanitize(str(stored.problem))]
    from ultramon.hosts.registry import host_of_agent

    host, memory = host_of_agent(record)
    lines = [*_head(row, record), *_last_text(host, record, memory)]
    lines += _sources(host, record, memory)
    lines += _subagents(row)
    lines += _plan(record)
    lines += _events(recent, row.agent_id)
    try:
        explanation = str(explain_stored(stored, directory_of(backend), for_people=True))
    except CommandFailed as error:
        explanation = str(error)
    lines += ["", "EXPLAIN", *(sanitize(line) for line in explanation.splitlines())]
    return lines


def _head(row: AgentRow, record: StateRecord) -> Iterator[str]:
    limit = record.context_limit
    held = f"{held_tokens(record, short_tokens)} of {short_tokens(limit)} tokens" if limit else None
    runway = runway_to_limit(record)
    left = None if runway is None else runway.before(end_words(record))
    parts = (f"{usage_words(record)} full", held, left, brief_state(row.seen))
    yield "  ".join(part for part in parts if part)
    facts = (f"id {record.agent_id}", f"run {record.run}", record.model, record.cwd)
    yield field("  ".join(fact for fact in facts if fact))
    if row.earlier:
        before = ", ".join(field(one.record.agent_id) for one in row.earlier)
        yield f"continues the work of {before}"
    if command := resume_command(record):
        yield f"resume: {field(command)}"


def _last_text(host: Host | None, record: StateRecord, memory: HookMemory) -> Iterator[str]:
    """Yield the last thing the agent said."""
    from ultramon.hosts.registry import last_text_of

    is_here = record.hostname == this_machine().hostname
    text = last_text_of(host if is_here else None, record, memory)
    if text:
        words = sanitize(" ".join(text.split()), max_chars=_MAX_TEXT_CHARS)
        yield from ("", "LAST TEXT", f"  {words}")


def _transcript(host: Host | None, record: StateRecord, memory: HookMemory) -> str | None:
    is_here = record.hostname == this_machine().hostname
    return memory.transcript_path if host is not None and is_here else None


def _sources(host: Host | None, record: StateRecord, memory: HookMemory) -> Iterator[str]:
    """Yield what filled the window: counted by the agent, else estimated from its transcript."""
    from ultramon.recordings.present_window import present_window
    from ultramon.recordings.source_words import tokens_by_words

    by_source: Mapping[str, float] = {}
    with suppress(OSError, ValueError):
        by_source = present_window(record, _transcript(host, record, memory)).by_source
    total = sum(by_source.values())
    if total <= 0:
        return
    yield from ("", "WHAT FILLED THE WINDOW")
    largest = list(tokens_by_words(by_source).items())
    for name, amount in largest[:_MAX_SOURCES]:
        size = short_tokens(round(amount))
        yield f"  {percent(amount / total):>7}  {size:>6}  {field(name)}"
    if len(largest) > _MAX_SOURCES:
        yield f"  and {len(largest) - _MAX_SOURCES} smaller ones"


def _subagents(row: AgentRow) -> Iterator[str]:
    if row.children:
        yield from ("", "SUBAGENTS")
    for child in row.children:
        share = usage_words(child.seen.record)
        yield f"  {share:>7}  {brief_state(child.seen):<10}  {field(str(child.name))}"


def _plan(record: StateRecord) -> Iterator[str]:
    tasks = [task for task in record.tasks or () if isinstance(task, dict)]
    if not tasks and not record.current_task:
        return
    yield from ("", "PLAN")
    if record.current_task:
        yield f"  now: {field(record.current_task)}"
    for task in tasks:
        mark = TASK_MARKS.get(str(task.get("status")), " ")
        yield f"  [{mark}] {field(str(task.get('name')))}"


def _events(recent: RecentEvents, agent_id: str) -> Iterator[str]:
    yield from ("", "EVENTS")
    try:
        events = recent.of(agent_id)
    except StateError as error:
        yield f"  {sanitize(str(error))}"
        return
    for event in events:
        yield f"  {event_line(event, with_agent=False)}"
    if not events:
        yield "  none"
