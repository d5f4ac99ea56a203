"""Whether sessions that began after the installation report themselves."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress

from ultramon.backends.local.journal import Journal
from ultramon.errors import StateError
from ultramon.hosts.claude_code.examine.examination import Examination
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.install.settings import USER, config_directory
from ultramon.hosts.doctor_context import ok, problem
from ultramon.hosts.transcripts.jsonl import head_objects, open_transcript
from ultramon.system.findings import Finding
from ultramon.system.terminal_text import first_of
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
    begun = _begun_since(_transcripts(seen), since)
    if not begun:
        yield ok("sessions", "none began since the installation")
        return
    reported = {record.agent_id: record.last_activity for record in seen.agents(CLAUDE_CODE.name)}
    missing = [name for name in begun if name not in reported]
    pruned = _with_events(seen, missing)
    silent = [f"{one} (began {format_time(begun[one])})" for one in missing if one not in pruned]
    if silent:
        cure = (
            "start it anew; if it stays silent, look at /hooks in the host, at who sets its"
            " settings, and at ULTRAMON_DISABLED and ULTRAMON_STATE_DIR where it is started"
        )
        message = f"no hook has written anything of: {first_of(silent)}"
        yield problem("sessions", message, cure)
        return
    last = max(reported.get(name, at) for name, at in begun.items())
    yield ok("sessions", f"the last report is of {format_time(last)}")


def _with_events(seen: Examination, names: list[str]) -> set[str]:
    """Return those of some agents that have events though their states were pruned."""
    journal = Journal(seen.state_directory)
    try:
        return journal.mentions(names)
    except StateError:
        return set()
    finally:
        journal.close()


def _transcripts(seen: Examination) -> list[str]:
    """Return the transcripts of sessions that run the hooks: all, or those of some projects."""
    projects = os.path.join(glob.escape(config_directory()), "projects")
    if any(layer.name == USER for layer in seen.installed):
        folders = ["*"]
    else:
        # Which sessions load a plugin is not known: its folder is no project's.
        places = [os.path.split(os.path.dirname(layer.path)) for layer in seen.installed]
        folders = [re.sub("[^A-Za-z0-9]", "-", root) for root, name in places if name == ".claude"]
    return [path for one in folders for path in glob.glob(os.path.join(projects, one, "*.jsonl"))]


def _begun_since(transcripts: list[str], since: float) -> dict[str, float]:
    """Return when each session began that began after a time, the last active first."""
    changed: list[tuple[float, str]] = []
    for path in transcripts:
        # Earlier hosts keep the transcripts of subagents beside those of sessions.
        if not os.path.basename(path).startswith("agent-"):
            with suppress(OSError):
                changed.append((os.lstat(path).st_mtime, path))
    changed = sorted((one for one in changed if one[0] > since), reverse=True)
    begun = {}
    for _, path in changed[:_MAX_TRANSCRIPTS]:
        at = _begun_at(path)
        if at is not None and at > since:
            begun[os.path.basename(path).removesuffix(".jsonl")] = at
    return begun


def _begun_at(path: str) -> float | None:
    """Return the first time in a transcript."""
    try:
        fd, _ = open_transcript(path)
    except (OSError, ValueError):
        return None
    with open(fd, "rb") as stream:
        for entry in head_objects(stream.read(_HEAD_BYTES).splitlines()):
            if (at := parse_time(entry.get("timestamp"))) is not None:
                return at
    return None
