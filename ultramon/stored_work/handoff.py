"""Leaves the work of a stored agent to a successor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.errors import StateError
from ultramon.stored_work.changes import change_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.record import StateRecord

_REASONS = {"force_return": "threshold_critical", "prepare_handoff": "threshold_warning"}


def leave_handoff(
    backend: Backend,
    agent_id: str,
    now: float,
    *,
    notes: str | None = None,
    next_step: str | None = None,
    resume_command: Callable[[StateRecord], str | None] = lambda _: None,
    **lists: Sequence[str],
) -> tuple[HandoffRecord, StateRecord]:
    """Store a handoff record and announce it; the agent goes on until it stops by itself.

    The plan says what is done, may be half done and is left.

    Args:
        backend: The store.
        agent_id: The agent.
        now: Epoch seconds.
        notes: What was learned, free text; cut after 32,768 characters.
        next_step: What a successor should do first.
        resume_command: Returns the command that resumes an agent, None where there is none.
        **lists: ``constraints``, ``decisions``, ``rejected``, ``open_questions`` and
            ``files_modified``, at most 200 texts each.

    Returns:
        The handoff, and the state that it is stored in.

    Raises:
        AgentNotFoundError: It has no state.
        AgentWorkError: It has ended, or its state belongs to a running program.
        StateError: The state could not be read, locked or written.
    """
    from ultramon.monitor.handoff import bounded_list, bounded_text

    left = {
        "next_step": bounded_text(next_step),
        **{name: bounded_list(texts) for name, texts in lists.items()},
    }
    with change_state(backend, agent_id, now) as record:
        handoff = _make(record, notes, now, resume_command(record), left)
        _announce(backend, record, handoff, now)
    return handoff, record


def _make(
    record: StateRecord, notes: str | None, now: float, command: str | None, left: dict[str, Any]
) -> HandoffRecord:
    from ultramon.monitor.handoff import (
        HandoffRecord,
        Resume,
        bounded_text,
        look_at_workspace,
    )
    from ultramon.state.stored_handoff import unnamed_tasks

    texts = [text for text in (bounded_text(notes), unnamed_tasks(record)) if text]
    return HandoffRecord.of(
        record,
        record.tasks or [],
        now=now,
        reason=_REASONS.get(record.action, "task_complete"),
        notes="\n".join(texts) or None,
        workspace=look_at_workspace(record.cwd),
        resume=None if command is None else Resume(command=command),
        **left,
    )


def _announce(backend: Backend, record: StateRecord, handoff: HandoffRecord, now: float) -> None:
    """Put a handoff into the state, and its event into the journal."""
    before = record.handoff or {}
    # The first one of an epoch has the number of the one that a fleet would rebuild.
    n = round(now * 1000) if before.get("handoffId") == handoff.handoff_id else 0
    record.handoff = handoff.to_json()
    source = f"agent:{record.agent_id}"
    event = record.event("handoff_ready", source=source, at=now, n=n, handoff=record.handoff)
    events = [*(record.pending or ()), event]
    try:
        backend.append_events(events, [record])
        record.pending = None
    except StateError:
        # The journal is busy: the next hook of the session stores them.
        record.pending = events
