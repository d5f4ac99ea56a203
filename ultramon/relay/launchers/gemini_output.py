"""Reads what the headless Gemini CLI prints (``--output-format stream-json``).

Unknown lines and fields are passed over: a newer client may print more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.relay.launchers.json_lines import JsonLines, as_count, as_object, as_text
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_REFUSED,
    MAX_REQUEST_CHARS,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    OVERLOADED,
    RATE,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    RefusedCall,
    SpentTokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROMPTS = frozenset({"replace", "run_shell_command", "web_fetch", "write_file"})
"""Tools that a session without a person does not have where they would prompt."""
_NO_TOOL = "tool_not_registered"
_USED_UP = re.compile(r"exhausted your|quota")


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    session_id: str | None = None
    result: dict[str, Any] = {}
    words: list[str] = []
    asked: dict[str, RefusedCall] = {}
    refused: list[RefusedCall] = []
    objects = JsonLines(lines)
    for entry in objects:
        kind = entry.get("type")
        if kind == "init":
            session_id = as_text(entry.get("session_id"), 100) or session_id
        elif kind == "result":
            result = entry
        elif kind == "message" and entry.get("role") == "assistant":
            words.append(as_text(entry.get("content"), MAX_TEXT_CHARS))
        elif kind == "tool_use":
            words.clear()
            tool = as_text(entry.get("tool_name"), MAX_REQUEST_CHARS)
            request = _request(as_object(entry.get("parameters")))
            asked[str(entry.get("tool_id"))] = RefusedCall(tool, request)
        elif kind == "tool_result" and as_object(entry.get("error")).get("type") == _NO_TOOL:
            call = asked.get(str(entry.get("tool_id")))
            if call is not None and call.tool in _PROMPTS:
                refused.append(call)
    end, error, limit = CUT_OFF, None, None
    if result.get("status") == "success":
        end = COMPLETED
        if exit_code not in (0, None):
            end, error = FAILED, f"exit {exit_code} after its result"
    elif result:
        error = as_text(as_object(result.get("error")).get("message"), MAX_TEXT_CHARS) or "unknown"
        limit = _limit(exit_code, error)
        end = LIMITED if limit else OVERFLOWED if parse_overflow(error) else FAILED
    return ContextOutcome(
        end,
        exit_code,
        session_id=session_id,
        reason=as_text(result.get("status"), 100),
        last_text="".join(words)[:MAX_TEXT_CHARS],
        error=error,
        limit=limit,
        refused=tuple(refused[:MAX_REFUSED]),
        refused_count=len(refused),
        spent=_spent(as_object(result.get("stats"))),
        skipped_lines=objects.skipped,
    )


def _limit(exit_code: int | None, words: str) -> ProviderLimit | None:
    """Return the limit that ended the session; None = it ended for another reason.

    The exit code is the status of the answer, of which a process can say the last eight bits.
    """
    status = None if exit_code is None or exit_code < 400 - 256 else exit_code + 256
    if status == 429:
        return ProviderLimit(USAGE if _USED_UP.search(words) else RATE)
    return ProviderLimit(OVERLOADED) if status is not None and status >= 500 else None


def _request(parameters: dict[str, Any]) -> str:
    texts = (as_text(parameters.get(name), MAX_REQUEST_CHARS) for name in ("command", "file_path"))
    return next(filter(None, texts), "")


def _spent(stats: dict[str, Any]) -> SpentTokens:
    """Return the tokens of this process; what the client calls ``input`` has no cached ones in."""
    return SpentTokens(
        input_tokens=as_count(stats.get("input")),
        cache_read_tokens=as_count(stats.get("cached")),
        output_tokens=as_count(stats.get("output_tokens")),
    )
