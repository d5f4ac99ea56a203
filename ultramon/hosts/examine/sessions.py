"""Whether sessions that began after an installation have reported themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice

from ultramon.backends.local.journal import Journal
from ultramon.errors import StateError
from ultramon.hosts.doctor_context import DoctorContext, ok, problem
from ultramon.hosts.transcripts.jsonl import head_objects, open_transcript
from ultramon.system.findings import Finding
from ultramon.system.terminal_text import first_of
from ultramon.system.timestamps import format_time, parse_time

RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states and events may have been pruned."""
_MAX_FILES = 50
_HEAD_BYTES = 256 * 1024


def check_sessions(
    context: DoctorContext,
    host_name: str,
    installed_at: float,
    find: Callable[[float], dict[str, float]],
    *,
    name: str,
    cure: str,
) -> Finding:
    """Ask for sessions that began since an installation and of which no hook wrote a thing.

    Args:
        context: Where the agents are.
        host_name: Of their host.
        installed_at: Epoch seconds.
        find: Returns when each session began that began after a time.
        name: Of the question.
        cure: What to do about a silent session.
    """
    begun = find(max(installed_at, context.now - RECENT_SECONDS))
    if not begun:
        return ok(name, "none began since the installation")
    agents = list(context.agents(host_name))
    known = {agent.agent_id for agent in agents} | {agent.session_id for agent in agents}
    known |= _with_events(context, [one for one in begun if one not in known])
    if silent := [one for one in begun if one not in known]:
        shown = first_of([f"{one} (began {format_time(begun[one])})" for one in silent])
        return problem(name, f"no hook has written anything of: {shown}", cure)
    return ok(name, f"{len(begun)} since the installation have reported themselves")


def _with_events(context: DoctorContext, names: list[str]) -> set[str]:
    """Return those of some agents that have events though their states were pruned."""
    journal = Journal(context.state_directory)
    try:
        return journal.mentions(names)
    except StateError:
        return set()
    finally:
        journal.close()


def begun_since(
    paths: Iterable[str], since: float, identify: Callable[[str, list[bytes]], str | None]
) -> dict[str, float]:
    """Return when each session began that began after a time, the last active first.

    Args:
        paths: Transcripts; the fifty that changed last are read.
        since: Epoch seconds.
        identify: Returns the session of a transcript, by its path and its first lines; None = it
            is that of none.
    """
    changed: list[tuple[float, str]] = []
    for path in paths:
        with suppress(OSError):
            changed.append((os.lstat(path).st_mtime, path))
    newest = sorted((one for one in changed if one[0] > since), reverse=True)
    begun = {}
    for _, path in islice(newest, _MAX_FILES):
        try:
            fd, _ = open_transcript(path)
        except (OSError, ValueError):
            continue
        with open(fd, "rb") as stream:
            lines = stream.read(_HEAD_BYTES).splitlines()
        session_id, at = identify(path, lines), _first_time(lines)
        if session_id is not None and at is not None and at > since:
            begun[session_id] = at
    return begun


def _first_time(lines: list[bytes]) -> float | None:
    times = (
        parse_time(entry.get("timestamp") or entry.get("startTime"))
        for entry in head_objects(lines)
    )
    return next((one for one in times if one is not None), None)
