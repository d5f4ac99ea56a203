"""What can be wrong with hooks in the one file that a client reads for its user.

Changes nothing; never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice

from ultramon.errors import UltramonError
from ultramon.hosts.doctor import DoctorContext, ok, problem, warning
from ultramon.hosts.hook_commands import OurCommand
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installed_choices import choices_path
from ultramon.hosts.jsonl import head_objects, open_transcript
from ultramon.hosts.launcher_doctor import check_hook_command
from ultramon.hosts.port import Host
from ultramon.hosts.resident_doctor import check_resident
from ultramon.system.findings import Finding
from ultramon.system.terminal_text import first_of
from ultramon.system.timestamps import format_time, parse_time

RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states may have been pruned."""
_MAX_FILES = 50
_HEAD_BYTES = 256 * 1024


def examine_user_hooks(
    context: DoctorContext,
    host: Host,
    load: Callable[[], HookSettings],
    check_settings: Callable[[HookSettings], Iterable[Finding]],
    silence_cure: str,
) -> Iterator[Finding]:
    """Answer the questions about the hooks and the sessions; none where nothing is installed.

    Args:
        context: What the questions are about.
        host: The client.
        load: Reads its file of hooks.
        check_settings: The client's own questions about that file.
        silence_cure: What to do about sessions of which no hook has written anything.
    """
    install = f"ultramon install {host.name}"
    stored, stored_problem = context.choices(host.name)
    name = f"{host.name} hooks"
    try:
        hooks = load()
    except (UltramonError, OSError) as error:
        yield problem(name, str(error), "mend the file")
        return
    ours = hooks.our_hooks()
    if stored_problem is not None:
        yield problem(
            f"{host.name} choices", f"{stored_problem}; until then nobody is warned", install
        )
    if not ours:
        if stored is not None:
            yield problem(name, f"{hooks.path}: ultramon's hooks are gone", install)
        return
    needed = hooks.events
    if stored is not None and stored.enforce is not None:
        needed += hooks.enforcing_events
    missing = [event for event in needed if event not in {hook.event for hook in ours}]
    if missing:
        yield warning(name, f"{hooks.path}: no hook for {', '.join(missing)}", install)
    else:
        yield ok(name, f"{hooks.path}: hooks of ultramon for {len(ours)} events")
    yield from check_settings(hooks)
    for command in dict.fromkeys(hook.runs for hook in ours):
        if isinstance(command, OurCommand):
            own_choices = choices_path(context.state_directory, host.name)
            for found in check_hook_command(command, hooks.script, stored, own_choices, install):
                yield found._replace(check=f"{host.name} {found.check}")
    yield from check_resident(context, stored, f"{host.name} resident", install)
    if stored is not None and stored.installed_at is not None:
        since = max(stored.installed_at, context.now - RECENT_SECONDS)
        yield _check_sessions(context, host, since, silence_cure)


def _check_sessions(context: DoctorContext, host: Host, since: float, cure: str) -> Finding:
    """Ask for sessions that began after the installation and of which no hook wrote anything."""
    name = f"{host.name} sessions"
    begun = _begun_since(host, since)
    if not begun:
        return ok(name, "none began since the installation")
    known = {record.session_id for record in context.agents(host.name)}
    if silent := [one for one in begun if one not in known]:
        shown = first_of([f"{one} (began {format_time(begun[one])})" for one in silent])
        return problem(name, f"no hook has written anything of: {shown}", cure)
    return ok(name, f"{len(begun)} since the installation have reported themselves")


def _begun_since(host: Host, since: float) -> dict[str, float]:
    """Return when each session began that began after a time."""
    changed: list[tuple[float, str]] = []
    for path in host.transcript_files(os.environ):
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
        identity = host.identify_file(path, lines)
        times = (
            parse_time(entry.get("timestamp") or entry.get("startTime"))
            for entry in head_objects(lines)
        )
        at = next((one for one in times if one is not None), None)
        if identity is not None and identity.agent_id is None and at is not None and at > since:
            begun[identity.session_id] = at
    return begun
