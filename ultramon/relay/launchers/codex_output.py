"""Reads what ``codex exec --json`` prints, and what the rollout says about its last turn.

The output has words for people, the rollout has the kind of an error. Unknown lines and fields are
passed over: a newer client may print more.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ultramon.hosts.records import OVERFLOW
from ultramon.relay.launchers.json_lines import JsonLines
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    OVERLOADED,
    RATE,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    SpentTokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.hosts.records import LastReading

_ENDS_AT = re.compile(
    r"try again at (?:([A-Z][a-z]{2}) (\d{1,2})(?:st|nd|rd|th), (\d{4}) )?(\d{1,2}:\d{2} [AP]M)"
)
"""When a usage limit ends, in the client's local time: a time of the same day, or with a date."""
_MINUTE_SECONDS = 60.0
_OVERLOADED = ("server_overloaded", "internal_server_error")
_USAGE = {
    "input_tokens": "input_tokens",
    "cache_creation_tokens": "cache_write_input_tokens",
    "cache_read_tokens": "cached_input_tokens",
    "output_tokens": "output_tokens",
}


def read_outcome(
    lines: Iterable[bytes],
    exit_code: int | None,
    last_turn: Callable[[str], LastReading | None] = lambda _: None,
) -> ContextOutcome:
    """Return how a context ended.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
        last_turn: Returns what the rollout of a thread says at its end; None = there is none.
    """
    thread_id, text, error = None, "", None
    result: dict[str, Any] | None = None
    objects = JsonLines(lines)
    for entry in objects:
        kind = entry.get("type")
        if kind == "thread.started" and isinstance(entry.get("thread_id"), str):
            thread_id = entry["thread_id"]
        elif kind in ("turn.completed", "turn.failed"):
            result = entry
        elif kind == "item.completed":
            text = _message(entry.get("item")) or text
        elif kind == "error" and isinstance(entry.get("message"), str):
            error = entry["message"][:MAX_TEXT_CHARS]
    end, limit, reason = CUT_OFF, None, ""
    if result is not None and result["type"] == "turn.completed":
        end, error = COMPLETED, None
        if exit_code not in (0, None):
            end, error = FAILED, f"exit {exit_code} after its result"
    elif result is not None:
        error = _message_of(result.get("error")) or error or "unknown"
        turn = None if thread_id is None else last_turn(thread_id)
        reason = (turn.error if turn is not None else None) or ""
        limit = _limit(reason, None if turn is None else turn.error_status, error)
        end = OVERFLOWED if reason == OVERFLOW else FAILED if limit is None else LIMITED
    return ContextOutcome(
        end,
        exit_code,
        session_id=thread_id,
        reason=reason,
        last_text=text[:MAX_TEXT_CHARS],
        error=error,
        limit=limit,
        spent=_spent((result or {}).get("usage")),
        is_session_sum=True,
        skipped_lines=objects.skipped,
    )


def _limit(reason: str, status: int | None, words: str) -> ProviderLimit | None:
    """Return the limit that ended the turn; None = it ended for another reason."""
    if reason == "usage_limit_exceeded":
        return ProviderLimit(USAGE, _end_of_limit(words))
    if status == 429:
        return ProviderLimit(RATE)
    if reason in _OVERLOADED or (status is not None and status >= 500):
        return ProviderLimit(OVERLOADED)
    return None


def _end_of_limit(words: str) -> float | None:
    """Return when a limit has ended, epoch seconds; the client leaves out the seconds."""
    found = _ENDS_AT.search(words)
    if found is None:
        return None
    month, day, year, clock = found.groups()
    date = f"{month} {day} {year}" if month else datetime.now().strftime("%b %d %Y")
    try:
        at = datetime.strptime(f"{date} {clock}", "%b %d %Y %I:%M %p")
    except ValueError:
        return None
    return at.timestamp() + _MINUTE_SECONDS


def _message(item: object) -> str:
    is_message = isinstance(item, dict) and item.get("type") == "agent_message"
    text = item.get("text") if is_message and isinstance(item, dict) else None
    return text if isinstance(text, str) else ""


def _message_of(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else None
    return text[:MAX_TEXT_CHARS] if isinstance(text, str) else ""


def _spent(usage: object) -> SpentTokens:
    """Return the sum over the thread; what the client calls its input has the cached tokens in."""
    given = usage if isinstance(usage, dict) else {}
    counts = {}
    for name, key in _USAGE.items():
        value = given.get(key)
        counts[name] = value if type(value) is int and 0 <= value < 1e15 else 0
    cached = counts["cache_read_tokens"] + counts["cache_creation_tokens"]
    return SpentTokens(**{**counts, "input_tokens": max(0, counts["input_tokens"] - cached)})
