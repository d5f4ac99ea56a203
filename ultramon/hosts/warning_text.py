"""What a session or subagent is told about its own window.

Standard library only.
"""

from __future__ import annotations

from ultramon.context import note
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.state.record import StateRecord


def write_note(
    record: StateRecord,
    *,
    pace: str,
    now: float,
    has_token_budget: bool,
    critical_note: str | None,
) -> str:
    """Return the text for an agent whose limit and reading are known.

    Args:
        record: The agent's state.
        pace: As `ultramon.context.note.describe_pace` says it.
        now: Epoch seconds.
        has_token_budget: Whether the client writes a token budget into the conversation.
        critical_note: The owner's sentence, from the choices of the installation.
    """
    candidates = record.limit_candidates or ()
    return note.write_note(
        record.estimated_tokens,
        record.context_limit,
        reading=(record.tokens_source, record.measured_at or 0.0),
        now=now,
        limit_name=next((c["name"] for c in candidates if c["verdict"] == "binding"), None),
        window_tokens=record.context_window,
        # The client summarises also where the provider refuses a request, unless told not to.
        compacts=all(candidate["name"] != "refusal" for candidate in candidates),
        has_token_budget=has_token_budget,
        pace=pace,
        action=record.action,
        critical_note=critical_note,
    )


def write_compaction(at: float) -> str:
    """Return the text for an agent whose conversation was compacted, epoch seconds."""
    time = format_time(at)[11:16]
    return f"Context window compacted at {time}Z: earlier figures about it no longer hold."
