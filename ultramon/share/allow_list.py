"""What of a state may leave this machine: every field of `StateRecord` is in one list here.

A redacted state is made of an empty one, field by field: a field that is in no list stays empty,
and a test names it. No text passes but words that ultramon itself wrote: names of hosts and of
models, levels, phases, outcomes, sources.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.forecast import COMPACTION
from ultramon.context.ladder import ACTIONS, CAUTION, CRITICAL, EMERGENCY, NONE, NORMAL, WARNING
from ultramon.notices.texts import CLEAR
from ultramon.state.history_ring import LAST_MS
from ultramon.state.history_ring import SOURCES as TOKEN_SOURCES
from ultramon.state.liveness import OUTCOMES
from ultramon.state.record import (
    ANSWER,
    MAX_INTEGER,
    PERMISSION,
    WAITS_FOR,
    StateRecord,
    host_memory,
    member_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ultramon.share.identity import Identity

LABELS, TASKS, PATHS = "labels", "tasks", "paths"
BY_NAME = {LABELS: ("label",), TASKS: ("current_task", "tasks"), PATHS: ("cwd",)}
"""The fields that hold a person's text, by the name under which they are sent when it is given."""

LEVELS = (NORMAL, WARNING, CAUTION, CRITICAL, EMERGENCY)
OTHER = "other"
"""In the place of a host whose name is no plain word."""
PHASES = ("working", "in_tool", "waiting")
_LIMIT_SOURCES = ("explicit", "host", "observed", "model", "default", "unknown")
_LIMIT_NAMES = ("window", "trigger", "refusal", "limit")
_LIMIT_VERDICTS = ("binding", "holds", "outranked", "not_believed")
_TASK_STATUSES = ("pending", "in_progress", "done", "interrupted")
_HOST = re.compile("[a-z0-9][a-z0-9_-]{0,31}")
# A model may be named by a path, an account or an address: those stay here.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}(/[A-Za-z0-9][A-Za-z0-9._-]{0,59})?"
                    r"([:@][A-Za-z0-9._-]{1,24})?(\[1m\])?")  # fmt: skip
_NO_MODEL = ("arn:", "file:", "http:", "https:")
_AHEAD = ("turns", "turnsLow", "turnsHigh", "seconds", "tokens", "seen")
_ANCHOR_COUNTS = ("tokens", "replyTokens", "exactTokens")
_LAST_TIME = LAST_MS / 1000
_MAX_TASKS = 500
_MAX_TEXT_CHARS = 1_000
_SIGNAL = re.compile("SIG[A-Z0-9]{2,9}")


class View(NamedTuple):
    """What a field is seen with: the machine, and the names of this agent's levels."""

    identity: Identity
    levels: Mapping[str, str]


def number(value: object, _: object = None) -> Any:
    """Return a number that a state can hold, else None."""
    if type(value) not in (int, float):
        return None
    # A NaN fails both.
    return value if -MAX_INTEGER <= value <= MAX_INTEGER else None  # type: ignore[operator]


def count(value: object, _: object = None) -> int | None:
    """Return a whole number, else None."""
    return number(value) if type(value) is int else None


def flag(value: object, _: object = None) -> bool:
    """Return whether a value is true."""
    return value is True


def one_of(words: Collection[str], default: str | None = None) -> Callable[[object, object], Any]:
    """Return a function that returns a value that is one of these words, else a default."""

    def word(value: object, _: object = None) -> str | None:
        return value if isinstance(value, str) and value in words else default

    return word


def agent_id(value: object, view: View) -> str | None:
    """Return the opaque id of an agent; None for none."""
    return view.identity.agent_id(value) if isinstance(value, str) and value else None


def level(value: object, view: View) -> str | None:
    """Return the name of a level as others see it; None for none."""
    if not isinstance(value, str):
        return None
    return view.levels.get(value) or (value if value in LEVELS else OTHER)


def text(value: object, _: object = None) -> str | None:
    """Return a person's text, at most 1,000 characters of it; None for none."""
    return value[:_MAX_TEXT_CHARS] if isinstance(value, str) else None


def _known_number(value: object, _: object = None) -> Any:
    return number(value) or 0


def _time(value: object, _: object = None) -> float:
    at = number(value) or 0
    return at if 0 <= at <= _LAST_TIME else 0.0


def _host(value: object, _: object = None) -> str:
    return value if isinstance(value, str) and _HOST.fullmatch(value) else OTHER


def _model(value: object, _: object = None) -> str | None:
    if not isinstance(value, str) or value.startswith(_NO_MODEL):
        return None
    return value if _MODEL.fullmatch(value) else None


def exit_facts(value: object, _: View | None) -> dict[str, Any] | None:
    """Return what a process ended with: no name of an error, which may be a project's."""
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = {name: count(value.get(name)) for name in ("statusCode", "returncode")}
    signal = value.get("signal")
    found["signal"] = signal if isinstance(signal, str) and _SIGNAL.fullmatch(signal) else None
    found["outOfMemory"] = True if value.get("outOfMemory") is True else None
    found["reason"] = CLEAR if value.get("reason") == CLEAR else None
    return {name: known for name, known in found.items() if known is not None}


def _anchor(value: object, _: View) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    counts = {name: max(count(value.get(name)) or 0, 0) for name in _ANCHOR_COUNTS}
    calibration = min(max(number(value.get("calibration")) or 1.0, 0.5), 2.0)
    return {**counts, "isReport": value.get("isReport") is True, "calibration": calibration}


def _limit_candidates(value: object, _: View) -> list[dict[str, Any]] | None:
    if not isinstance(value, list):
        return None
    words = {"name": _LIMIT_NAMES, "source": _LIMIT_SOURCES, "verdict": _LIMIT_VERDICTS}
    found = []
    for one in value:
        tokens = count(one.get("tokens")) if isinstance(one, dict) else None
        if tokens and tokens > 0 and all(one.get(name) in known for name, known in words.items()):
            found.append({"tokens": tokens, **{name: one[name] for name in words}})
    return found


def _ladder(value: object, view: View) -> dict[str, Any]:
    rungs = value.get("rungs") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(rungs, list):
        return {}
    return {
        "base": level(value.get("base"), view),
        "rearmMargin": number(value.get("rearmMargin")),
        "roundPercent": value.get("roundPercent") is True,
        "rungs": [
            {
                "name": level(rung.get("name"), view),
                "action": one_of(ACTIONS, NONE)(rung.get("action"), view),
                **{name: number(rung.get(name)) for name in ("ratio", "tokensLeft", "rearmRatio")},
            }
            for rung in rungs
            if isinstance(rung, dict)
        ],
    }


def _announced(value: object, view: View) -> dict[str, Any]:
    given = value if isinstance(value, dict) else {}
    rungs = given.get("rungs")
    counts = rungs.items() if isinstance(rungs, dict) else ()
    return {
        "epoch": count(given.get("epoch")) or 1,
        "rungs": {str(level(name, view)): count(times) or 0 for name, times in counts},
    }


def _forecast(value: object, view: View) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    rungs = value.get("rungs")
    ahead = rungs.items() if isinstance(rungs, dict) else ()
    return {
        "tokensPerTurn": number(value.get("tokensPerTurn")) or 0,
        "secondsPerTurn": number(value.get("secondsPerTurn")) or 0,
        "limit": _ahead(value.get("limit")),
        "rungs": {
            COMPACTION if name == COMPACTION else str(level(name, view)): _ahead(one)
            for name, one in ahead
        },
    }


def _ahead(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    return {name: number(value[name]) for name in _AHEAD if name in value}


def _tasks(value: object, _: View) -> list[dict[str, Any]] | None:
    """Return names and statuses; results and ids stay here."""
    if not isinstance(value, list):
        return None
    status = one_of(_TASK_STATUSES, "pending")
    return [
        {"name": text(one.get("name")) or "", "status": status(one.get("status"), None)}
        for one in value[:_MAX_TASKS]
        if isinstance(one, dict)
    ]


SENT: dict[str, Callable[[Any, View], Any]] = {
    "schema": _known_number,
    "agent_id": agent_id,
    "run": lambda value, view: view.identity.run(str(value)),
    "session_id": lambda value, view: agent_id(value, view) or "",
    "parent_id": agent_id,
    "predecessor_id": agent_id,
    "host": _host,
    "model": _model,
    "active": flag,
    "phase": one_of(PHASES, PHASES[0]),
    "outcome": one_of(OUTCOMES),
    "exit": exit_facts,
    "started_at": _time,
    "last_heartbeat": _time,
    "last_activity": _time,
    "heartbeat_interval_seconds": number,
    "lost_after_seconds": number,
    "grace_seconds": _known_number,
    "generation": _known_number,
    "epoch": _known_number,
    "epoch_started_at": _time,
    "seq": _known_number,
    "measured_at": lambda value, _: None if value is None else _time(value),
    "cumulative_chars": _known_number,
    "estimated_tokens": _known_number,
    "tokens_source": one_of(TOKEN_SOURCES, TOKEN_SOURCES[0]),
    "anchor": _anchor,
    "context_limit": count,
    "context_window": count,
    "reserved_output_tokens": _known_number,
    "limit_source": one_of(_LIMIT_SOURCES, _LIMIT_SOURCES[-1]),
    "limit_suspect": flag,
    "limit_candidates": _limit_candidates,
    "usage_ratio": number,
    "threshold_status": level,
    "action": one_of(ACTIONS, NONE),
    "ladder": _ladder,
    "ladder_status": one_of(("ok", "invalid"), "ok"),
    "announced": _announced,
    "forecast": _forecast,
    "tasks_completed": _known_number,
    "tasks_total": count,
}
"""What is always sent: each value as the function returns it."""
_SENT_BY_NAME: dict[str, Callable[[Any, View], Any]] = {
    "label": text,
    "cwd": text,
    "current_task": text,
    "tasks": _tasks,
}
NEVER_SENT = frozenset(
    (
        "pid",  # of this machine: they mean nothing elsewhere
        "pid_started_at",
        "boot_id",
        "hostname",  # a person's, often; in its place stands the opaque id of the machine
        "start_id",
        "by_source",  # its names are texts of the program, such as those of its tools
        "continues_handoff_id",  # a claim that others must not take for theirs
        "handoff",
        "pending",  # sent as events once they are in the journal
    )
)
"""What no choice sends."""


def redact(
    record: StateRecord,
    identity: Identity,
    names: Collection[str] = (),
    levels: Mapping[str, str] | None = None,
) -> StateRecord:
    """Return what of a state may leave this machine, as a state of its own.

    Args:
        record: The state as it is stored here.
        identity: Of this machine.
        names: What a person has named of `BY_NAME`.
        levels: As `level_names` returns them, where a caller has them.
    """
    view = View(identity, level_names(record.ladder) if levels is None else levels)
    sent = StateRecord(identity.agent_id(record.agent_id), hostname=identity.machine_id)
    for attribute, send in SENT.items():
        setattr(sent, attribute, send(getattr(record, attribute), view))
    for name in names:
        for attribute in BY_NAME[name]:
            send = _SENT_BY_NAME[attribute]
            setattr(sent, attribute, send(getattr(record, attribute), view))
    sent.extra = _extra(record, sent.host, view)
    return sent


def _extra(record: StateRecord, host: str, view: View) -> dict[str, Any]:
    """Return what faces need of the fields that only a host knows."""
    memory = host_memory(record)
    kept: dict[str, Any] = {}
    # Without it no screen could say which session waits for a person.
    if (waits_for := memory.get(WAITS_FOR)) in (PERMISSION, ANSWER):
        kept[WAITS_FOR] = waits_for
    before = memory.get("predecessors")
    if isinstance(before, list):
        kept["predecessors"] = [opaque for one in before if (opaque := agent_id(one, view))]
    extra: dict[str, Any] = {member_name(host): kept} if kept and host != OTHER else {}
    # It says that no reading will ever come.
    if record.extra.get("gauge") == "none":
        extra["gauge"] = "none"
    return extra


def level_names(ladder: object) -> dict[str, str]:
    """Return the names of a ladder's levels as others see them.

    A name that a person chose becomes the number of its rung, the base 0.
    """
    given = ladder if isinstance(ladder, dict) else {}
    rungs = given.get("rungs")
    rows = rungs if isinstance(rungs, list) else []
    names = [given.get("base"), *(rung.get("name") for rung in rows if isinstance(rung, dict))]
    return {
        name: name if name in LEVELS else f"level-{rank}"
        for rank, name in enumerate(names)
        if isinstance(name, str)
    }
