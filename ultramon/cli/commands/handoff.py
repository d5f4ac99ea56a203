"""`ultramon task handoff`: leaves the work of an agent that works in a shell to a successor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ultramon.cli.commands.resume import is_session, resume_command
from ultramon.cli.output import ExitCode, plural, print_json, say
from ultramon.cli.selection import open_store, store_options
from ultramon.cli.stored_agent import agent_option, change_state, find_own_id

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.record import StateRecord

_REASONS = {"force_return": "threshold_critical", "prepare_handoff": "threshold_warning"}
_MAX_STDIN_CHARS = 1 << 20


@click.command("handoff")
@click.option("--notes", metavar="TEXT", help="What was learned; `-` reads it from stdin.")
@agent_option
@store_options
def command(*, notes: str | None, agent: str | None, state_dir: str | None, json: bool) -> ExitCode:
    """Leave a handoff record for a successor, and print its id.

    The plan says what is done, may be half done and is left. Fleets get the record as an event.
    The agent goes on until it stops by itself.
    """
    from ultramon.system.clock import SYSTEM_CLOCK

    if notes == "-":
        notes = sys.stdin.read(_MAX_STDIN_CHARS)
    backend = open_store(state_dir)
    agent_id = find_own_id(backend, agent, "ultramon handoff")
    now = SYSTEM_CLOCK.now()
    with change_state(backend, agent_id, now) as record:
        handoff = _make(record, notes, now)
        _announce(backend, record, handoff, now)
    if json:
        print_json(handoff.to_json())
        return ExitCode.OK
    click.echo(handoff.handoff_id)
    # The record lacks the names of tasks that the state only counts.
    done, begun = record.tasks_completed, len(handoff.interrupted)
    left = (record.tasks_total or 0) - done - begun
    say(f"{plural(done, 'task')} done, {begun:,} begun, {left:,} left")
    return ExitCode.OK


def _make(record: StateRecord, notes: str | None, now: float) -> HandoffRecord:
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
        resume=Resume(command=resume_command(record)) if is_session(record) else None,
    )


def _announce(backend: Backend, record: StateRecord, handoff: HandoffRecord, now: float) -> None:
    """Put a handoff into the state, and its event into the journal."""
    from ultramon.errors import StateError

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
