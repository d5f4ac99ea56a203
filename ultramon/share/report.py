"""What is shared and how it goes, in words: for `ultramon share` and the doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.errors import StateError
from ultramon.hosts.resident.sharing import is_running
from ultramon.share.allow_list import BY_NAME
from ultramon.share.choices import Choices, load_choices
from ultramon.share.status import read_status
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding
from ultramon.system.timestamps import parse_time
from ultramon.system.wording import age, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK = "sharing"
SILENT_SECONDS = 60.0
"""A process that has written nothing for so long hangs."""
_START = "ultramon share --start"


def sent_words(names: tuple[str, ...]) -> str:
    """Return what leaves the machine, in words."""
    more = [name for name in BY_NAME if name not in names]
    what = "numbers, times, levels, models, hosts"
    if names:
        return f"sends {what}, and by name {', '.join(names)}"
    return f"sends {what}; no text: --with {','.join(more)} would add some"


def findings(directory: str, now: float) -> list[Finding]:
    """Return what is to say about sharing from a state directory; nothing where none is chosen.

    Args:
        directory: The state directory.
        now: Epoch seconds.
    """
    try:
        choices = load_choices(directory)
    except (StateError, OSError) as error:
        cure = "delete it, and run ultramon share URL again"
        return [Finding(CHECK, PROBLEM, f"the choices cannot be read: {error}", cure)]
    if choices is None:
        return []
    if not choices.is_on:
        cure = f"{_START}, or ultramon share --stop --erase takes back what was sent"
        return [Finding(CHECK, OK, "is stopped; what was sent is still in the database", cure)]
    facts = read_status(directory) or {}
    found = [_state_of(directory, facts, now)]
    if facts.get("droppedReadings"):
        message = f"{plural(facts['droppedReadings'], 'reading')} dropped: no room on this machine"
        found.append(Finding(CHECK, WARNING, message))
    return found


def _state_of(directory: str, facts: Mapping[str, Any], now: float) -> Finding:
    database = facts.get("database") or "the database"
    if not is_running(directory):
        problem = facts.get("problem")
        said = f"; the last one said: {problem}" if problem else ""
        message = f"no process sends agents to {database}{said}"
        cure = f"{_START}; a session of a host with a resident starts it too"
        return Finding(CHECK, WARNING, message, cure)
    if not facts.get("isRunning") or now - (parse_time(facts.get("at")) or 0.0) > SILENT_SECONDS:
        message = "the process that shares says nothing"
        return Finding(CHECK, WARNING, message, f"kill {facts.get('pid', 'it')}; then {_START}")
    away = parse_time(facts.get("awaySince"))
    if away is not None or facts.get("sentAt") is None:
        since = "" if away is None else f" for {age(max(now - away, 0.0))}"
        message = f"{database} has taken nothing{since}: {facts.get('problem') or 'not asked yet'}"
        waiting = facts.get("waitingReadings") or 0
        kept = f"nothing is lost: {plural(waiting, 'reading')} and all events wait here"
        return Finding(CHECK, WARNING, message, kept)
    sent_at = parse_time(facts.get("sentAt")) or now
    message = (
        f"{plural(facts.get('agents') or 0, 'agent')}, {facts.get('alive') or 0:,} of them alive,"
        f" with {database} as machine {facts.get('machineId')};"
        f" last sent {age(max(now - sent_at, 0.0))} ago"
    )
    return Finding(CHECK, OK, message)


def facts_of(directory: str, choices: Choices, now: float) -> dict[str, Any]:
    """Return everything about sharing as JSON values."""
    status = read_status(directory) or {}
    return {
        "isOn": choices.is_on,
        "isRunning": is_running(directory),
        "urlFile": choices.url_file,
        "with": [*choices.names],
        "machineName": choices.machine_name,
        "retentionSeconds": choices.retention_seconds,
        **{name: value for name, value in status.items() if name != "isRunning"},
        "findings": [finding._asdict() for finding in findings(directory, now)],
    }
