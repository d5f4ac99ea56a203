"""Explains the percentage of a stored agent, with what the hooks of its host know."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import field, sanitize_values
from ultramon.errors import StateError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import StoredAgent
    from ultramon.context.explanation import Explanation
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.hosts.port import Host
    from ultramon.recordings.transcript_summary import FilledWindow
    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord


def explain_stored(
    stored: StoredAgent,
    directory: str,
    *,
    history: Sequence[HistoryPoint] = (),
    for_people: bool,
    fills: bool = False,
) -> Explanation:
    """Explain the percentage of a stored agent.

    Args:
        stored: The agent; for people its state is sanitised in place.
        directory: The state directory.
        history: Its readings, where they are to be part of the explanation.
        for_people: Whether the explanation is printed as text.
        fills: Whether a transcript is read for what fills the window.

    Raises:
        CommandFailed: Its state cannot be read, or makes no sense.
    """
    from pydantic import ValidationError

    from ultramon.context.explanation import explain
    from ultramon.hosts.blind_sessions import BlindSessions
    from ultramon.hosts.calls.child_ends import told_ends
    from ultramon.hosts.calls.enforcement import describe
    from ultramon.hosts.registry import host_of_agent
    from ultramon.state.liveness import judge
    from ultramon.state.observed import ObservedAgent
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_machine

    record = stored.record
    if record is None:
        raise CommandFailed(str(stored.problem))
    now = SYSTEM_CLOCK.now()
    host, memory = host_of_agent(record)
    # Before the values are made harmless to a terminal: a path would name another file.
    session_tokens_left = _session_tokens_left(host, record, memory)
    filled = _filled_by(host, record, memory) if fills else None
    if for_people:
        for name in record.__slots__:
            setattr(record, name, sanitize_values(getattr(record, name)))
    try:
        verdict = judge(record, stored.heartbeat_at, now, this_machine())
        liveness = BlindSessions().mark(ObservedAgent(record, verdict), now).liveness
        return explain(
            record,
            liveness,
            now,
            session_tokens_left=session_tokens_left,
            subagent_ends=told_ends(memory),
            pins=_pins(host, record, memory, directory),
            enforcement=describe(memory),
            settings=_installed(host, directory),
            filled_by=None if filled is None else filled.by_source,
            provenance=None if filled is None else filled.provenance,
            history=history,
        )
    except (ArithmeticError, LookupError, TypeError, ValidationError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        reason = str(error).partition("\n")[0]
        name = field(stored.agent_id)
        raise CommandFailed(f"{name}: its values make no sense: {reason}") from error


def _filled_by(host: Host | None, record: StateRecord, memory: HookMemory) -> FilledWindow | None:
    from ultramon.recordings.present_window import present_window
    from ultramon.system.processes import this_machine

    is_here = host is not None and record.hostname == this_machine().hostname
    with suppress(OSError, ValueError):
        return present_window(record, memory.transcript_path if is_here else None)
    return None


def _installed(host: Host | None, directory: str) -> dict[str, str] | None:
    """Return where the settings of a host's agents come from; None for other agents."""
    from ultramon.hosts.installed_choices import choices_path

    if host is None:
        return None
    path = choices_path(directory, host.name)
    source = f"{path} (ultramon install {host.name})"
    return {"ladder": source, "context_limit_tokens": source} if os.path.exists(path) else None


def _pins(
    host: Host | None, record: StateRecord, memory: HookMemory, directory: str
) -> tuple[str, ...]:
    """Return what the conversation is given back after a compaction, where that was installed."""
    from ultramon.hosts.installed_choices import InstalledChoices, choices_path
    from ultramon.state.pins import Pins

    try:
        if host is None or not InstalledChoices.load(choices_path(directory, host.name)).pins:
            return ()
        project = host.dialect.project(memory.environment or {}) or record.cwd
        found = Pins(directory).of(project, (record.session_id, *memory.predecessors))
    except (OSError, StateError) as error:
        return (sanitize(f"cannot be read: {error}"),)
    return tuple(pin.text or pin.file or "" for pin in found)


def _session_tokens_left(host: Host | None, record: StateRecord, memory: HookMemory) -> int | None:
    """Return the token budget left by the host's transcript, None if it is not on this machine."""
    from ultramon.system.processes import this_machine

    if host is None or record.hostname != this_machine().hostname:
        return None
    path = memory.transcript_path
    return None if path is None else host.transcripts.read_token_budget(path)
