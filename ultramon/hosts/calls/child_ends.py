"""How a subagent ended, reported once in the conversation of the agent that launched it.

Standard library only; loaded when a subagent ends. A subagent that ran out of room looks to its
launcher like one that found nothing. What the subagent itself wrote is quoted, short and printable.
"""

from __future__ import annotations

import os

from ultramon.context.ladder import FORCE_RETURN
from ultramon.context.level_words import level_words
from ultramon.hosts.calls.hosted_agent import one_line
from ultramon.state.usage_percent import usage_words
from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import clock_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from ultramon.hosts.calls.facts import LeftTasks
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.hosts.calls.store import HookStore
    from ultramon.state.record import StateRecord

    End = TypeVar("End")

MAX_AT_ONCE = 5
_MAX_REMEMBERED = 64
_MAX_LABEL_CHARS = 80
_MAX_TASK_CHARS = 60
_MAX_REASON_CHARS = 100
_MAX_WORDS_CHARS = 300
"""With three names of tasks and the reason of a hook, at most 580 characters are another's."""


def is_notable(child: HostedAgent) -> bool:
    """Return whether there is more to say of a subagent that ended than its result says."""
    record = child.record
    return (
        record.action == FORCE_RETURN
        or record.outcome in ("failed", "cancelled")
        or child.memory.left_tasks is not None
    )


def expect(parent: HostedAgent, child: StateRecord) -> None:
    """Note in a state that the end of a subagent is to be reported, unless it was."""
    memory = parent.memory
    if memory.told_ends.get(child.agent_id) != child.generation:
        pending = dict(memory.pending_ends)
        pending.setdefault(child.agent_id, None)
        _keep_pending(memory, pending)


class ChildEnds:
    """What one hook call reports to its agent of the ends of subagents.

    Args:
        store: Where the agents are.
        returned_id: The subagent that has just come back; None = only those that are pending.
        is_empty: Whether it came back without a text.
    """

    def __init__(
        self, store: HookStore, returned_id: str | None = None, *, is_empty: bool = False
    ) -> None:
        self._store = store
        self._returned_id = returned_id
        self._is_empty = is_empty
        self._claimed: dict[str, int] = {}

    @property
    def has_claimed(self) -> bool:
        """Whether this call reports anything."""
        return bool(self._claimed)

    def child(self) -> HostedAgent | None:
        """Return the subagent that has just come back, as it is stored; None without one."""
        record = None if self._returned_id is None else self._store.find(self._returned_id)
        return None if record is None else self._store.hosted(record)

    def claim(self, agent: HostedAgent) -> list[str]:
        """Return the texts that are due, and remember by which process. Call inside the lock.

        A process that is killed before `acknowledge` leaves them to the next call.
        """
        pending, reported = dict(agent.memory.pending_ends), agent.memory.told_ends
        names = [name for name in pending if name != self._returned_id]
        if self._returned_id is not None:
            names.insert(0, self._returned_id)
        texts: list[str] = []
        for name in names:
            if len(texts) == MAX_AT_ONCE:
                break
            printer = pending.get(name)
            if printer is not None and not self._store.is_unprinted(printer):
                continue
            child = self._store.find(name)
            text = None
            if child is not None and reported.get(name) != child.generation:
                text = self._write(agent, self._store.hosted(child))
            if child is None or text is None:
                pending.pop(name, None)
                continue
            pending[name] = self._store.printer()
            self._claimed[name] = child.generation
            texts.append(text)
        _keep_pending(agent.memory, pending)
        return texts

    def acknowledge(self, agent: HostedAgent) -> None:
        """Remember that the host has the texts."""
        pending, reported = dict(agent.memory.pending_ends), dict(agent.memory.told_ends)
        for name, generation in self._claimed.items():
            pending.pop(name, None)
            reported.pop(name, None)
            reported[name] = generation
        _keep_pending(agent.memory, pending)
        if reported:
            agent.memory.told_ends = _newest(reported)

    def _write(self, parent: HostedAgent, child: HostedAgent) -> str | None:
        record = child.record
        if record.active or record.parent_id != parent.record.agent_id:
            return None
        is_empty = self._is_empty and record.agent_id == self._returned_id
        if not is_empty and not is_notable(child):
            return None
        path = os.path.abspath(self._store.directory.file(record.agent_id))
        return write_end(child, path, self._store.now, is_empty=is_empty)


def write_end(child: HostedAgent, path: str, now: float, *, is_empty: bool) -> str:
    """Return the text about a subagent that ended.

    Args:
        child: The subagent.
        path: Of its state file.
        now: Epoch seconds.
        is_empty: Whether its launcher got no text of it.
    """
    record, memory = child.record, child.memory
    # The host knows a subagent of the session by the last part of its id.
    name = record.agent_id.removeprefix(f"{child.session_agent_id}.")
    label = f" ({_quoted(record.label, _MAX_LABEL_CHARS)})" if record.label else ""
    parts = [f"[ultramon] Subagent {name}{label} {_how(child, is_empty=is_empty)}."]
    parts.append(_window(child, now))
    parts.append(_plan(record, memory.left_tasks))
    handoff = record.handoff if isinstance(record.handoff, dict) else {}
    notes, text = handoff.get("notes"), memory.last_text
    if isinstance(notes, str) and notes.strip():
        parts.append(f"Notes in its handoff, in its words: {_quoted(notes, _MAX_WORDS_CHARS)}.")
    elif text is not None:
        parts.append(f"The last it wrote, in its words: {_quoted(text, _MAX_WORDS_CHARS)}.")
    if memory.enforced is not None and memory.enforced.checkpoint:
        parts.append(f"The working tree at its end is kept as {memory.enforced.checkpoint}.")
    where = "state and handoff are" if handoff else "state is"
    parts.append(f"Its {where} in {sanitize(path)}.")
    return " ".join(part for part in parts if part)


def _how(child: HostedAgent, *, is_empty: bool) -> str:
    exit = child.record.exit or {}
    reason = sanitize(str(exit.get("error") or exit.get("reason") or ""))
    if child.record.outcome == "failed":
        how = f"failed: {reason or 'unknown'}"
    elif child.record.outcome == "cancelled":
        how = f"did not finish: {reason}"
        if said := child.memory.stop_reason:
            how += f" that said {_quoted(said, _MAX_REASON_CHARS)}"
    else:
        how = "ended"
    return f"{how}; it returned no text" if is_empty else how


def _window(child: HostedAgent, now: float) -> str:
    record = child.record
    if record.measured_at is None or record.context_limit is None:
        return "How full its context window was is not known."
    return (
        f"Its context window held {record.estimated_tokens:,} of {record.context_limit:,} tokens"
        f" ({usage_words(record)}: {level_words(record)}),"
        f" {record.tokens_source} {clock_time(record.measured_at, now)}."
    )


def _plan(record: StateRecord, left: LeftTasks | None) -> str:
    count, names = (0, ()) if left is None else (left.count, left.names)
    total = record.tasks_completed + count
    if not total:
        return ""
    text = f"Of its plan {record.tasks_completed} of {total} tasks are completed"
    if not count:
        return f"{text}."
    shown = [_quoted(name, _MAX_TASK_CHARS) for name in names]
    if count > len(shown):
        shown.append(f"{count - len(shown):,} more")
    return f"{text}; left: {', '.join(shown)}."


def _quoted(text: str, max_chars: int) -> str:
    # A quotation mark inside would end what is marked as another's words.
    line = one_line(text).replace('"', "'")
    return f'"{sanitize(line, max_chars=max_chars)}"'


def told_ends(memory: HookMemory) -> dict[str, bool]:
    """Return the subagents whose end was reported, or (false) is still to be."""
    return dict.fromkeys(memory.told_ends, True) | dict.fromkeys(memory.pending_ends, False)


def _keep_pending(memory: HookMemory, pending: dict[str, object]) -> None:
    if pending:
        memory.pending_ends = _newest(pending)
    else:
        del memory.pending_ends


def _newest(ends: dict[str, End]) -> dict[str, End]:
    return dict(list(ends.items())[-_MAX_REMEMBERED:])
