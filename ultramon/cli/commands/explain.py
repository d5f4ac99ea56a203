"""`ultramon explain`: one screen that explains an agent's percentage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.commands.install import chosen_directory
from ultramon.cli.output import (
    CommandFailed,
    field,
    moment,
    plural,
    print_json,
    sanitize_values,
)
from ultramon.cli.selection import find_agent, open_store, store_options
from ultramon.errors import StateError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import StoredAgent
    from ultramon.context.explanation import Explanation
    from ultramon.hosts.port import Host
    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord

_LINES = 6
_LEAST_CHARS, _MOST_CHARS = 20, 100
_WORDS_CHARS = 20
"""Kept free beside the drawing for the names of rungs; the widest are cut by no terminal."""


@click.command("explain")
@click.argument("agent")
@store_options
def command(*, agent: str, state_dir: str | None, json: bool) -> None:
    """Explain an agent's percentage.

    Where the tokens come from (last report, estimate since, calibration), which limits were
    considered and which one binds, how far the next rung is, how old each number is, and how the
    window filled until now.

    AGENT is an id, the beginning of one, or a label.
    """
    backend = open_store(state_dir)
    stored = find_agent(backend, agent)
    history = backend.history(stored.agent_id)
    directory = chosen_directory(state_dir)
    explanation = explain_stored(stored, directory, history=history, for_people=not json)
    if json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
    else:
        lines = _draw(history, explanation)
        click.echo(sanitize(f"{explanation}{lines}", keep_lines=True, max_chars=20_000), nl=False)


def explain_stored(
    stored: StoredAgent,
    directory: str,
    *,
    history: Sequence[HistoryPoint] = (),
    for_people: bool,
) -> Explanation:
    """Explain the percentage of a stored agent.

    Args:
        stored: The agent; for people its state is sanitised in place.
        directory: The state directory.
        history: Its readings, where they are to be part of the explanation.
        for_people: Whether the explanation is printed as text.

    Raises:
        CommandFailed: Its state cannot be read, or makes no sense.
    """
    from pydantic import ValidationError

    from ultramon.context.explanation import explain
    from ultramon.hosts.child_ends import told_ends
    from ultramon.hosts.enforcement import describe
    from ultramon.state.liveness import judge
    from ultramon.system.clock import SYSTEM_CLOCK
    from ultramon.system.processes import this_host

    record = stored.record
    if record is None:
        raise CommandFailed(str(stored.problem))
    now = SYSTEM_CLOCK.now()
    host, memory = host_of(record)
    session_tokens_left = _session_tokens_left(host, record, memory)
    if for_people:
        for name in record.__slots__:
            setattr(record, name, sanitize_values(getattr(record, name)))
    try:
        liveness = judge(record, stored.heartbeat_at, now, this_host())
        return explain(
            record,
            liveness,
            now,
            session_tokens_left=session_tokens_left,
            subagent_ends=told_ends(memory),
            pins=_pins(host, record, memory, directory),
            enforcement=describe(memory),
            history=history,
        )
    except (ArithmeticError, LookupError, TypeError, ValidationError) as error:
        # A state with a right checksum can still hold numbers that no agent ever had.
        reason = str(error).partition("\n")[0]
        name = field(stored.agent_id)
        raise CommandFailed(f"{name}: its values make no sense: {reason}") from error


def _draw(history: Sequence[HistoryPoint], explanation: Explanation) -> str:
    """Draw an agent's history with its rungs, epochs and handoff; empty without readings."""
    import shutil
    import sys

    from ultramon.pictures.text_timeline import text_timeline
    from ultramon.system.timestamps import parse_time

    if not history:
        return ""
    state = explanation.state
    lines = [(rung.tokens, rung.name) for rung in explanation.rungs]
    if state.context_limit is not None:
        lines.append((state.context_limit, "limit"))
    handed_off_at = parse_time((state.handoff or {}).get("createdAt"))
    width = shutil.get_terminal_size().columns - _WORDS_CHARS
    drawn = text_timeline(
        history,
        width=min(max(width, _LEAST_CHARS), _MOST_CHARS),
        height=_LINES,
        lines=lines,
        marks=[] if handed_off_at is None else [(handed_off_at, "handoff")],
        ascii_only=not (sys.stdout.encoding or "").lower().startswith("utf"),
    )
    first, last = history[0], history[-1]
    epochs = f"epoch {first.epoch}"
    if last.epoch != first.epoch:
        epochs = f"epochs {first.epoch} to {last.epoch}"
    heading = f"history   {plural(len(history), 'reading')} since {moment(first.at)}, {epochs}"
    return "\n".join(["", heading, *(f"  {line}" for line in drawn), ""])


def host_of(record: StateRecord) -> tuple[Host | None, dict[str, Any]]:
    """Return the client of an agent, and what only its hooks keep in the state."""
    from ultramon.hosts.registry import find_hosts

    host = next((host for host in find_hosts().usable if host.name == record.host), None)
    memory = None if host is None else record.extra.get(host.memory_field)
    return host, memory if isinstance(memory, dict) else {}


def _pins(
    host: Host | None, record: StateRecord, memory: dict[str, Any], directory: str
) -> tuple[str, ...]:
    """Return what the conversation is given back after a compaction, where that was installed."""
    from ultramon.hosts.hosted_agent import predecessors
    from ultramon.hosts.installed_choices import InstalledChoices, choices_path
    from ultramon.hosts.session_environment import kept_environment
    from ultramon.state.pins import Pins

    try:
        if host is None or not InstalledChoices.load(choices_path(directory, host.name)).pins:
            return ()
        project = host.project(kept_environment(memory) or {}) or record.cwd
        found = Pins(directory).of(project, (record.session_id, *predecessors(memory)))
    except (OSError, StateError) as error:
        return (sanitize(f"cannot be read: {error}"),)
    return tuple(pin.text or pin.file or "" for pin in found)


def _session_tokens_left(
    host: Host | None, record: StateRecord, memory: dict[str, Any]
) -> int | None:
    """Return the token budget left by the client's transcript, None if it is not on this host."""
    from ultramon.system.processes import this_host

    if host is None or record.hostname != this_host().hostname:
        return None
    path = memory.get("transcriptPath")
    return host.read_token_budget(path) if isinstance(path, str) else None
