"""Leaves the work of a stored agent to a successor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ultramon.errors import StateError
from ultramon.stored_work.changes import change_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.handoff import HandoffRecord, HandoffTexts
    from ultramon.state.record import StateRecord


def leave_handoff(
    backend: Backend,
    agent_id: str,
    now: float,
    *,
    resume_command: Callable[[StateRecord], str | None] = lambda _: None,
    **texts: Unpack[HandoffTexts],
) -> tuple[HandoffRecord, StateRecord]:
    """Store a handoff record and announce it; the agent continues until it stops by itself.

    The plan says what is done, may be half done and is left.

    Args:
        backend: The store.
        agent_id: The agent.
        now: Epoch seconds.
        resume_command: Returns the command that resumes an agent, None where there is none.
        **texts: What the agent says, see `ultramon.handoff.HandoffTexts`.

    Returns:
        The handoff, and the state that it is stored in.

    Raises:
        AgentNotFoundError: It has no state.
        AgentWorkError: It has ended, or its state belongs to a running program.
        StateError: The state could not be read, locked or written.
    """
    from ultramon.handoff import bounded

    # Before the lock, which hooks of the same session wait for.
    said = bounded(texts)
    with change_state(backend, agent_id, now) as record:
        handoff = _make(record, said, now, resume_command(record))
        _announce(backend, record, handoff, now)
    return handoff, record


def _make(
    record: StateRecord, said: dict[str, Any], now: float, command: str | None
) -> HandoffRecord:
    from ultramon.handoff import HandoffRecord, Resume, look_at_workspace
    from ultramon.state.stored_handoff import handoff_reason, with_unnamed_tasks

    return HandoffRecord.of(
        record,
        record.tasks or [],
        now=now,
        reason=handoff_reason(record.action),
        workspace=look_at_workspace(record.cwd),
        resume=None if command is None else Resume(command=command),
        **{**said, "notes": with_unnamed_tasks(said.get("notes"), record)},
    )


def _announce(backend: Backend, record: StateRecord, handoff: HandoffRecord, now: float) -> None:
    """Put a handoff into the state, and its event into the journal."""
    from ultramon.state.stored_handoff import put_handoff

    events = [*(record.pending or ()), put_handoff(record, handoff.to_json(), now)]
    try:
        backend.append_events(events, [record])
        record.pending = None
    except StateError:
        # The journal is busy: the next hook of the session stores them.
        record.pending = events
