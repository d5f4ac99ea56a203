"""Reads what the headless Qwen Code prints: Claude Code's stream, with errors of its own."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.relay.launchers.claude_code_output import StreamReader
from ultramon.relay.launchers.json_lines import as_count, as_object, as_text
from ultramon.relay.launchers.outcome import (
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
    from collections.abc import Iterable

_STATUS = re.compile(r"^\[API Error: (\d{3})\b")
_USED_UP = re.compile(r"quota|usage limit", re.IGNORECASE)
_ENDS_AT = re.compile(r"reset at (\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?)")
"""When a quota begins anew, as providers say it; without a zone in local time."""


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    return _Reader().read(lines, exit_code)


class _Reader(StreamReader):
    is_session_sum = True

    def read_end(self, result: dict[str, Any]) -> str:
        """Return how it ended; the client gives no reason, but says what failed."""
        is_overflow = result.get("is_error") is True and parse_overflow(self.describe_error() or "")
        return OVERFLOWED if is_overflow else super().read_end(result)

    def describe_error(self) -> str | None:
        """Return what failed, in the client's words."""
        words = as_object((self.result or {}).get("error")).get("message")
        return as_text(words, MAX_TEXT_CHARS) or super().describe_error()

    def read_limit(self, error: str) -> ProviderLimit | None:
        """Return the limit that ended the session; None = it ended for another reason."""
        found = _STATUS.search(error)
        status = int(found[1]) if found else None
        if _USED_UP.search(error) and (status in (None, 429)):
            return ProviderLimit(USAGE, _end_of_limit(error))
        if status == 429:
            return ProviderLimit(RATE)
        return ProviderLimit(OVERLOADED) if status is not None and status >= 500 else None

    def read_spent(self, result: dict[str, Any]) -> SpentTokens:
        """Return the sum over the session; what the client calls its input has the cached in."""
        used = as_object(result.get("usage"))
        cached = as_count(used.get("cache_read_input_tokens"))
        return SpentTokens(
            input_tokens=max(0, as_count(used.get("input_tokens")) - cached),
            cache_read_tokens=cached,
            output_tokens=as_count(used.get("output_tokens")),
        )


def _end_of_limit(words: str) -> float | None:
    found = _ENDS_AT.search(words)
    try:
        return None if found is None else datetime.fromisoformat(found[1]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
