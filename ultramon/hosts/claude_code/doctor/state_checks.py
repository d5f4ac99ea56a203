"""What the doctor asks of states, of the failure log, and of the client's transcripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ultramon.backends.local.journal import Journal
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateError, StateSchemaError, UltramonError
from ultramon.hosts import failure_log
from ultramon.hosts.claude_code.doctor.examination import (
    OK,
    PROBLEM,
    WARNING,
    DoctorContext,
    Finding,
)
from ultramon.hosts.claude_code.setup.settings import USER, config_directory
from ultramon.hosts.installed_choices import AGENT, BOTH
from ultramon.state.liveness import LOST, STALE, judge
from ultramon.state.record import SCHEMA, StateRecord
from ultramon.system import compact_json
from ultramon.system.processes import this_host
from ultramon.system.timestamps import format_time, parse_time

HOST = "claude-code"
RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states may have been pruned."""
MEASURED_AFTER_SECONDS = 120.0
"""An agent that is active for longer has had a response that could be read."""
_MAX_NAMED = 3
_MAX_TRANSCRIPTS = 50
_HEAD_BYTES = 64 * 1024


def check_states(seen: DoctorContext) -> Iterator[Finding]:
    """Every state: readable, ours, of a known schema, and of an agent that is not lost."""
    broken: list[str] = []
    newer: list[str] = []
    silent: list[str] = []
    directory = StateDirectory(seen.state_directory)
    try:
        signatures, heartbeats = directory.scan()
    except StateError as error:
        yield Finding("states", PROBLEM, f"{error.path}: {error.reason}", "see who owns it")
        return
    host = this_host()
    for agent_id in sorted(signatures):
        try:
            record = directory.read(agent_id)
            verdict = judge(record, heartbeats.get(agent_id), seen.now, host).verdict
        except AgentNotFoundError:
            continue  # pruned since the directory was listed
        except StateSchemaError:
            newer.append(agent_id)
        except UltramonError as error:
            broken.append(f"{agent_id} ({getattr(error, 'reason', error)})")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A state with a right checksum can still hold numbers that no agent ever had.
            broken.append(f"{agent_id} (its values make no sense: {error})")
        else:
            if record.schema > SCHEMA:
                newer.append(agent_id)
            elif verdict in (LOST, STALE):
                silent.append(f"{agent_id} ({verdict})")
    if broken:
        cure = f"look at them in {directory.folder} and move them away"
        yield Finding("states", PROBLEM, _named("cannot be read", broken), cure)
    if newer:
        yield Finding("states", WARNING, _named("written by a newer ultramon", newer), "upgrade")
    if silent:
        cure = "ultramon resume lists what can go on"
        yield Finding("states", WARNING, _named("ended without saying so", silent), cure)
    if not broken and not newer and not silent:
        yield Finding("states", OK, f"{len(signatures)} readable")


def _named(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{what}: {', '.join(names[:_MAX_NAMED])}{more}"


def check_set_aside(seen: DoctorContext) -> Iterator[Finding]:
    """Files that an owner could not read and kept as evidence."""
    for folder in (seen.state_directory, StateDirectory(seen.state_directory).folder):
        try:
            names = sorted(name for name in os.listdir(folder) if ".corrupt-" in name)
        except OSError:
            continue
        # The state of an agent may bear such a name too.
        kept = [name for name in names if not name.endswith((".json", ".lock", ".hb", ".request"))]
        if kept:
            message = f"{_named('set aside as unreadable', kept)} in {folder}"
            yield Finding("set aside", WARNING, message, "look at them, then delete them")


def check_failures(seen: DoctorContext) -> Iterator[Finding]:
    """What hooks could not do, as they noted it."""
    path = failure_log.log_path(seen.state_directory, HOST)
    try:
        noted = failure_log.read(path)
    except (StateError, OSError) as error:
        yield Finding("failures", PROBLEM, f"the log cannot be read: {error}", "delete it")
        return
    if not noted:
        yield Finding("failures", OK, "no hook noted one")
        return
    last = noted[-_MAX_NAMED:]
    shown = "; ".join(
        " ".join(str(one.get(name) or "?") for name in ("at", "event", "problem")) for one in last
    )
    message = f"{len(noted)} noted, the last: {shown}"
    yield Finding("failures", WARNING, message, f"when they are understood, delete {path}")


def check_silence(seen: DoctorContext) -> Iterator[Finding]:
    """Sessions that began after the installation and of which no hook has written anything."""
    if seen.installed_at is None:
        return
    since = max(seen.installed_at, seen.now - RECENT_SECONDS)
    begun = _begun_since(_project_folders(seen), since)
    if not begun:
        yield Finding("sessions", OK, "none began since the installation")
        return
    heard = {record.agent_id: record.last_activity for record in _hosted(seen)}
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
        yield Finding("sessions", PROBLEM, _named("no hook has written anything of", silent), cure)
        return
    last = max(heard.get(name, at) for name, at in begun.items())
    yield Finding("sessions", OK, f"heard of at {format_time(last)}")


def _with_events(seen: DoctorContext, names: list[str]) -> set[str]:
    """Return the agents of which something is known though their states were pruned."""
    journal = Journal(seen.state_directory)
    try:
        return journal.mentions(names)
    except StateError:
        return set()
    finally:
        journal.close()


def _project_folders(seen: DoctorContext) -> list[str]:
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


def _hosted(seen: DoctorContext) -> Iterator[StateRecord]:
    directory = StateDirectory(seen.state_directory)
    try:
        ids = directory.list_ids()
    except StateError:
        return
    for agent_id in ids:
        try:
            record = directory.read(agent_id)
        except UltramonError:
            continue
        if record.host == HOST:
            yield record


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


def check_measured(seen: DoctorContext) -> Iterator[Finding]:
    """Sessions that shall be warned and whose fill is not known."""
    if seen.choices is None or seen.choices.audience not in (AGENT, BOTH):
        return
    blind = [
        record.agent_id
        for record in _hosted(seen)
        if record.active
        and record.measured_at is None
        and record.last_activity - record.started_at > MEASURED_AFTER_SECONDS
    ]
    if blind:
        message = _named("registered, but never measured", blind)
        cure = "ultramon explain says what is known; the failures above may say why"
        yield Finding("readings", WARNING, message, cure)
