"""What a session is told about its own window: facts and typed fields only, no orders.

Standard library only.
"""

from __future__ import annotations

from ultramon.core.forecast import describe_turns
from ultramon.core.times import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.core.record import StateRecord

_SLACK = 1e-9


def write_note(record: StateRecord, ahead: tuple[int, float] | None) -> str:
    """Return the text for an agent whose limit and reading are known.

    Args:
        record: The agent's state.
        ahead: Turns before the next rung and its usage ratio; None when unknowable.
    """
    tokens, limit = record.estimated_tokens, record.context_limit or 1
    at = format_time(record.measured_at or 0.0)[11:16]
    parts = [
        f"Context: {tokens:,} of {limit:,} tokens ({_percent(tokens / limit)} %), "
        f"{record.tokens_source} {at}Z.",
        _what_happens_there(record),
    ]
    if ahead is not None:
        turns, ratio = ahead
        parts.append(describe_turns(turns, f"{_percent(ratio)} %"))
    parts.append("Your instructions are unchanged.")
    return " ".join(part for part in parts if part)


def _percent(ratio: float) -> int:
    # Halves up, as the client shows them and as the ladder decides.
    return int(ratio * 100 + 0.5 + _SLACK)


def _what_happens_there(record: StateRecord) -> str:
    binding = next(
        (c["name"] for c in record.limit_candidates or () if c["verdict"] == "binding"), None
    )
    window = record.context_window
    if binding == "trigger":
        of_window = f"; the model's window holds {window:,}" if window else ""
        return f"At the limit Claude Code compacts the conversation by itself{of_window}."
    if binding == "limit":
        return "The limit was set by the user."
    if binding == "window":
        return "The limit is the model's context window."
    return ""
