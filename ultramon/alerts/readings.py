"""Readings: which session a check is about, and how full its window is.

A session is an agent with a state, or one of a project with readings in a directory of its own. Of
a project's files only numbers, times and one id are used.
"""

from __future__ import annotations

import os

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateCorruptError
from ultramon.state.liveness import (
    CLOCK_SKEW_SECONDS,
    ENDED,
    LOST,
    STALE,
    STALE_AFTER_INTERVALS,
    judge,
)
from ultramon.state.record import StateRecord
from ultramon.state.usage_percent import usage_ratio, whole_percent
from ultramon.system import compact_json
from ultramon.system.files import read_shared_file
from ultramon.system.ids import check_agent_id
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CURRENT_SESSION = ".current-session"
SESSION_READING = os.path.join("context-states", "context-state-{}.json")
PROJECT_READING = ".context-state.json"
_MAX_SESSION_BYTES = 4096
_MOST = 1e15
"""Largest count or percentage accepted; a float still holds it exactly."""


class Reading:
    """How full one window is.

    Attributes:
        record: The state of the agent; of a project's session the little that is known.
        path: The file.
        directory: The project directory of the file; None for the state of an agent.
        usage_ratio: 0.0 and more, not clamped; None = unknown, see ``problem``.
        tokens: In the window; None = unknown.
        limit_tokens: The limit that the ratio is of; None = unknown.
        rounds: Whether the agent's own ladder decides on whole percents, as for `whole_percent`.
        problem: Why it is unknown, too old, or of an impossible time, for people; empty for a good
            one.
    """

    __slots__ = (
        "directory",
        "limit_tokens",
        "path",
        "problem",
        "record",
        "rounds",
        "tokens",
        "usage_ratio",
    )

    def __init__(self, record: StateRecord, path: str, directory: str | None = None) -> None:
        self.record = record
        self.path = path
        self.directory = directory
        self.usage_ratio: float | None = None
        self.tokens: int | None = None
        self.limit_tokens: int | None = None
        self.rounds = bool(getattr(record, "ladder", {}).get("roundPercent"))
        self.problem = ""

    @property
    def judged_ratio(self) -> float | None:
        """The usage ratio that decides: a percentage that faces round up is that percentage."""
        ratio = self.usage_ratio
        if ratio is None or not self.rounds:
            return ratio
        return max(ratio, whole_percent(ratio, rounds=True) / 100)

    @property
    def session(self) -> str:
        """The id of the session."""
        return self.record.agent_id

    @property
    def filling(self) -> list[Any] | None:
        """Identifies a filling of the window; None where the file cannot."""
        record = self.record
        return [record.epoch, record.epoch_started_at] if self.directory is None else None


def find_session(given: str | None, directory: str) -> str | None:
    """Return the id of the session to check.

    Args:
        given: The caller's choice; empty = no session, None = not chosen.
        directory: The project directory.

    Returns:
        The id given, else ``ULTRAMON_AGENT_ID``, else what the project's ``.current-session``
        holds; None without any.

    Raises:
        InvalidAgentIdError: It cannot be a file name.
        StateCorruptError: ``.current-session`` is no small regular file of text.
        OSError: The system refused to read it.
    """
    name = given if given is not None else os.environ.get("ULTRAMON_AGENT_ID")
    if given is None and not name:
        path = os.path.join(directory, CURRENT_SESSION)
        try:
            name = read_shared_file(path, _MAX_SESSION_BYTES).decode("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError:
            raise StateCorruptError(path, "is not text in UTF-8") from None
    return check_agent_id(name) if name else None


def read_state(state_directory: str, session: str, now: float) -> Reading | None:
    """Return the reading of an agent; None when there is no such agent.

    Raises:
        StateError: Its state cannot be read.
        StateSchemaError: A newer ultramon wrote it, in a form that cannot be read.
    """
    states = StateDirectory(state_directory)
    try:
        record = states.read(session)
    except AgentNotFoundError:
        return None
    reading = Reading(record, states.file(session))
    life = judge(record, states.heartbeat_at(session), now, this_machine())
    ratio = usage_ratio(record)
    if life.verdict == ENDED:
        reading.problem = f"the agent has ended: {life.reason}"
        return reading
    if ratio is None:
        reading.problem = "its usage is not known yet, or its context limit is not"
        return reading
    if not 0 <= ratio <= _MOST:
        raise StateCorruptError(reading.path, f"usageRatio {ratio} is none")
    reading.usage_ratio = float(ratio)
    reading.tokens, reading.limit_tokens = record.estimated_tokens, record.context_limit
    if life.verdict in (STALE, LOST):
        reading.problem = life.reason
    # A heartbeat from the future would keep an agent fresh after its death.
    elif life.clock_skew:
        reading.problem = "its last heartbeat lies in the future"
    return reading


def read_project(directory: str, session: str, now: float, stale_seconds: float) -> Reading | None:
    """Return the reading that a project keeps of a session, or of all its sessions together.

    Args:
        directory: The project directory.
        session: A checked id.
        now: Epoch seconds.
        stale_seconds: Age from which a reading is stale, where the file sets none.

    Returns:
        The reading; None without a file.

    Raises:
        StateCorruptError: The file holds no reading.
        OSError: The system refused to read it.
    """
    # The session's own file says more than the one that all sessions share.
    for name in (SESSION_READING.format(session), PROJECT_READING):
        path = os.path.join(directory, name)
        try:
            data = read_shared_file(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            value = compact_json.loads(data)
        except ValueError as error:
            raise StateCorruptError(path, str(error)) from None
        run = os.environ.get("ULTRAMON_RUN") or "default"
        record = StateRecord(session, session_id=session, run=run, epoch=1)
        return _project_reading(value, Reading(record, path, directory), now, stale_seconds)
    return None


def _project_reading(value: Any, reading: Reading, now: float, stale_seconds: float) -> Reading:
    window = value.get("contextWindow") if isinstance(value, dict) else None
    if not isinstance(window, dict):
        raise StateCorruptError(reading.path, "holds no contextWindow")
    percentage = _number(reading.path, window, "percentage")
    reading.tokens = _count(reading.path, window, "currentTokens")
    reading.limit_tokens = _count(reading.path, window, "maxTokens")
    if reading.limit_tokens == 0:
        raise StateCorruptError(reading.path, "maxTokens 0 is no size")
    if percentage is not None:
        reading.usage_ratio = percentage / 100
    elif reading.tokens is not None and reading.limit_tokens is not None:
        reading.usage_ratio = reading.tokens / reading.limit_tokens
    else:
        raise StateCorruptError(reading.path, "holds no percentage")
    reading.problem = _why_stale(value, now, stale_seconds)
    return reading


def _why_stale(value: dict[str, Any], now: float, stale_seconds: float) -> str:
    """Return why a project's reading is stale; empty when it is fresh."""
    at = parse_time(value.get("timestamp"))
    if at is None:
        return "its time stamp cannot be read"
    if at > now + CLOCK_SKEW_SECONDS:
        return "its time stamp lies in the future"
    # No other status counts: a writer may have other thresholds than this reader.
    if value.get("status") == STALE:
        return "its writer says so"
    interval_seconds = _positive(value.get("heartbeatIntervalSeconds"))
    stale_milliseconds = _positive(value.get("staleAfterMs"))
    if interval_seconds is not None:
        stale_seconds = STALE_AFTER_INTERVALS * interval_seconds
    elif stale_milliseconds is not None:
        stale_seconds = stale_milliseconds / 1000
    age_seconds = now - at
    return f"it is {age_seconds:.0f} s old" if age_seconds > stale_seconds else ""


def _is_number(value: object) -> bool:
    # To isinstance a bool would be an int; an int beyond all floats is no number here.
    return type(value) in (int, float) and 0 <= value <= _MOST  # type: ignore[operator]


# Zero seconds would make every reading stale.
def _positive(value: Any) -> float | None:
    return float(value) if _is_number(value) and value > 0 else None


def _number(path: str, values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if not _is_number(value):
        raise StateCorruptError(path, f"{name} is no number from 0 to {_MOST:.0e}")
    return float(value)


def _count(path: str, values: dict[str, Any], name: str) -> int | None:
    value = _number(path, values, name)
    if value is not None and not value.is_integer():
        raise StateCorruptError(path, f"{name} {value} is no whole number")
    return None if value is None else int(value)
