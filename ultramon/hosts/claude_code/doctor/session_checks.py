"""Whether sessions that began after the installation report themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ultramon.backends.local.journal import Journal
from ultramon.errors import StateError
from ultramon.hosts.claude_code.doctor.examination import Examination
from ultramon.hosts.claude_code.host import NAME
from ultramon.hosts.claude_code.setup.settings import USER, config_directory
from ultramon.hosts.doctor import OK, PROBLEM, Finding, named
from ultramon.system import compact_json
from ultramon.system.timestamps import format_time, parse_time

RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states may have been pruned."""
_MAX_TRANSCRIPTS = 50
_HEAD_BYTES = 64 * 1024


def check_sessions(seen: Examination) -> Iterator[Finding]:
    """Sessions that began after the installation and of which no hook has written anything."""
    if seen.installed_at is None:
        return
    since = max(seen.installed_at, seen.now - RECENT_SECONDS)
    begun = _begun_since(_project_folders(seen), since)
    if not begun:
        yield Finding("sessions", OK, "none began since the installation")
        return
    heard = {record.agent_id: record.last_activity for record in seen.agents(NAME)}
    missing = [name for name in begun if name not in heard]
    pruned = _with_events(seen, missing)
    silent = [
        f"{name} (began {format_time(begun[name])})" for name in missing if name not in pruned
    ]
    if silent:
        cure = (
            "start it anew; if it stays silent, look at /hooks in the client, at who sets its"
            " settings, and at ULTRAMON_DISABLED and ULTRAMON_STATE_DIR where it is started"
        )
        yield Finding("sessions", PROBLEM, named("no hook has written anything of", silent), cure)
        return
    last = max(heard.get(name, at) for name, at in begun.items())
    yield Finding("sessions", OK, f"heard of at {format_time(last)}")


def _with_events(seen: Examination, names: list[str]) -> set[str]:
    """Return the agents of which something is known though their states were pruned."""
    journal = Journal(seen.state_directory)
    try:
        return journal.mentions(names)
    except StateError:
        return set()
    finally:
        journal.close()


def _project_folders(seen: Examination) -> list[str]:
    """Return the folders of transcripts whose sessions run our hooks: all, or of some projects."""
    projects = os.path.join(config_directory(), "projects")
    if any(layer.name == USER for layer, _ in seen.installed):
        return _scan(projects)
    paths = [layer.path for layer, _ in seen.installed]
    # A plugin is used by whoever names it: nobody knows of which sessions it should have heard.
    roots = [os.path.dirname(os.path.dirname(path)) for path in paths if _is_projects_own(path)]
    return [os.path.join(projects, re.sub("[^A-Za-z0-9]", "-", root)) for root in roots]


def _is_projects_own(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == ".claude"


def _begun_since(folders: list[str], since: float) -> dict[str, float]:
    """Return when each session began that began after a time, the last active first."""
    changed: list[tuple[float, str]] = []
    for folder in folders:
        for entry in _scan(folder):
            # Earlier clients keep the transcripts of subagents beside those of sessions.
            if entry.endswith(".jsonl") and not os.path.basename(entry).startswith("agent-"):
                try:
                    modified = os.lstat(entry).st_mtime
                except OSError:
                    continue
                if modified > since:
                    changed.append((modified, entry))
    changed.sort(reverse=True)
    begun = {}
    for _, path in changed[:_MAX_TRANSCRIPTS]:
        at = _begun_at(path)
        if at is not None and at > since:
            begun[os.path.basename(path).removesuffix(".jsonl")] = at
    return begun


def _scan(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _begun_at(path: str) -> float | None:
    """Return the first time that a transcript names."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            head = os.read(fd, _HEAD_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
    for line in head.splitlines():
        try:
            value = compact_json.loads(line)
        except ValueError:
            continue
        begun = parse_time(value.get("timestamp")) if isinstance(value, dict) else None
        if begun is not None:
            return begun
    return None
