"""What can be wrong with an installation in Codex. Changes nothing; never on a hook's path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from ultramon.errors import UltramonError
from ultramon.hosts.codex import NAME, transcript
from ultramon.hosts.codex.configuration import home_directory
from ultramon.hosts.codex.setup import EVENTS, CodexHooks, hooks_path
from ultramon.hosts.doctor import DoctorContext, ok, problem, warning
from ultramon.hosts.hook_commands import OurCommand
from ultramon.hosts.interpreter import check_command
from ultramon.hosts.jsonl import head_objects, open_transcript
from ultramon.hosts.transcript_files import files_below
from ultramon.system.findings import Finding
from ultramon.system.terminal_text import first_of
from ultramon.system.timestamps import format_time, parse_time

INSTALL = f"ultramon install {NAME}"
RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states may have been pruned."""
_MAX_ROLLOUTS = 50
_HEAD_BYTES = 256 * 1024


def examine(context: DoctorContext) -> Iterator[Finding]:
    """Answer the questions about the hooks and the sessions; none where nothing is installed."""
    stored, stored_problem = context.choices(NAME)
    name = "codex hooks"
    try:
        path = hooks_path()
        hooks = CodexHooks(path)
    except (UltramonError, OSError) as error:
        yield problem(name, str(error), "mend the file")
        return
    ours = hooks.our_hooks()
    if stored_problem is not None:
        yield problem("codex choices", f"{stored_problem}; until then nobody is warned", INSTALL)
    if not ours:
        if stored is not None:
            yield problem(name, f"{path}: ultramon's hooks are gone", INSTALL)
        return
    missing = [event for event in EVENTS if event not in {hook.event for hook in ours}]
    if missing:
        yield warning(name, f"{path}: no hook for {', '.join(missing)}", INSTALL)
    else:
        yield ok(name, f"{path}: hooks of ultramon for {len(ours)} events")
    for command in dict.fromkeys(hook.runs for hook in ours):
        if isinstance(command, OurCommand):
            yield check_command(command, INSTALL)
    if stored is not None and stored.installed_at is not None:
        yield from _check_sessions(context, max(stored.installed_at, context.now - RECENT_SECONDS))


def _check_sessions(context: DoctorContext, since: float) -> Iterator[Finding]:
    """Sessions that began after the installation and of which no hook has written anything."""
    name = "codex sessions"
    begun = _begun_since(since)
    if not begun:
        yield ok(name, "none began since the installation")
        return
    known = {record.session_id for record in context.agents(NAME)}
    if silent := [one for one in begun if one not in known]:
        shown = first_of([f"{one} (began {format_time(begun[one])})" for one in silent])
        cure = (
            "start `codex` and trust the hooks that it asks about; one that is not trusted is"
            " left out without a word"
        )
        yield problem(name, f"no hook has written anything of: {shown}", cure)
    else:
        yield ok(name, f"{len(begun)} since the installation have reported themselves")


def _begun_since(since: float) -> dict[str, float]:
    """Return when each session began that began after a time."""
    changed: list[tuple[float, str]] = []
    for path in files_below(os.path.join(home_directory(os.environ), "sessions"), ".jsonl"):
        with suppress(OSError):
            changed.append((os.lstat(path).st_mtime, path))
    newest = sorted((one for one in changed if one[0] > since), reverse=True)
    begun = {}
    for _, path in islice(newest, _MAX_ROLLOUTS):
        try:
            fd, _ = open_transcript(path)
        except (OSError, ValueError):
            continue
        with open(fd, "rb") as stream:
            lines = stream.read(_HEAD_BYTES).splitlines()
        identity = transcript.identify(lines)
        times = (parse_time(entry.get("timestamp")) for entry in head_objects(lines))
        at = next((one for one in times if one is not None), None)
        if identity is not None and identity.agent_id is None and at is not None and at > since:
            begun[identity.session_id] = at
    return begun
