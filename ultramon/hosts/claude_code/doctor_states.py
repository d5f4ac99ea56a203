"""What the doctor asks of states, of the failure log, and of the client's transcripts."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ultramon.core import codec
from ultramon.core.liveness import LOST, STALE, judge, this_host
from ultramon.core.record import SCHEMA, StateRecord
from ultramon.core.statefile import StateDirectory
from ultramon.core.times import format_time, parse_time
from ultramon.errors import AgentNotFoundError, StateError, StateSchemaError, UltramonError
from ultramon.hosts.claude_code import failures
from ultramon.hosts.claude_code.examination import (
    OK,
    PROBLEM,
    WARNING,
    Examination,
    Finding,
)
from ultramon.hosts.claude_code.frozen import AGENT, BOTH
from ultramon.hosts.claude_code.settings import config_directory

HOST = "claude-code"
RECENT_SECONDS = 7 * 86_400.0
"""Older sessions say nothing: their states may have been pruned."""
MEASURED_AFTER_SECONDS = 120.0
"""An agent that is active for longer has had a response that could be read."""
_MAX_NAMED = 3
_MAX_TRANSCRIPTS = 50
_HEAD_BYTES = 64 * 1024


def check_states(seen: Examination) -> Iterator[Finding]:
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


def check_set_aside(seen: Examination) -> Iterator[Finding]:
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


def check_failures(seen: Examination) -> Iterator[Finding]:
    """What hooks could not do, as they noted it."""
    try:
        noted = failures.read(seen.state_directory)
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
    path = os.path.join(seen.state_directory, failures.FAILURES_NAME)
    message = f"{len(noted)} noted, the last: {shown}"
    yield Finding("failures", WARNING, message, f"when they are understood, delete {path}")


def check_silence(seen: Examination) -> Iterator[Finding]:
    """Sessions that began after the installation, while no hook has written anything since."""
    if seen.installed_at is None:
        return
    since = max(seen.installed_at, seen.now - RECENT_SECONDS)
    begun = _last_beginning(os.path.join(config_directory(), "projects"), since)
    if begun is None:
        yield Finding("sessions", OK, "none began since the installation")
        return
    heard = max((record.last_activity for record in _hosted(seen)), default=0.0)
    if heard >= begun:
        yield Finding("sessions", OK, f"heard of at {format_time(heard)}")
        return
    message = f"one began at {format_time(begun)}, and no hook has written anything since"
    cure = (
        "start it anew; if it stays silent, look at /hooks in the client and who sets its settings"
    )
    yield Finding("sessions", PROBLEM, message, cure)


def _hosted(seen: Examination) -> Iterator[StateRecord]:
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


def _last_beginning(projects: str, since: float) -> float | None:
    """Return when the last session began, of those that began after a time; None without one."""
    changed: list[tuple[float, str]] = []
    for folder in _scan(projects):
        for entry in _scan(folder):
            if entry.endswith(".jsonl"):
                try:
                    modified = os.lstat(entry).st_mtime
                except OSError:
                    continue
                if modified > since:
                    changed.append((modified, entry))
    changed.sort(reverse=True)
    times = [_begun_at(path) for _, path in changed[:_MAX_TRANSCRIPTS]]
    return max((begun for begun in times if begun is not None and begun > since), default=None)


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
            value = codec.loads(line)
        except ValueError:
            continue
        begun = parse_time(value.get("timestamp")) if isinstance(value, dict) else None
        if begun is not None:
            return begun
    return None


def check_measured(seen: Examination) -> Iterator[Finding]:
    """Sessions that shall be warned and whose fill is not known."""
    if seen.frozen is None or seen.frozen.audience not in (AGENT, BOTH):
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
