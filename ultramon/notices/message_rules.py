"""Rules of the message queue: bounds, expiry, backoff, dead letters. Cheap to import: hooks do."""

from __future__ import annotations

from itertools import takewhile

from ultramon.errors import ConfigurationError
from ultramon.state.record import StateRecord
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.notices.message import Draft

DELIVERIES = ("urgent", "important", "sequential")
"""Modes in the order of claims: interrupt, after the present reply, at the next idle moment."""
LEASE_SECONDS = 30.0
"""How long a claimed message stays with its claimer."""
MAX_ATTEMPTS = 5
"""A message that was claimed this often and never acknowledged is dead."""
MAX_BACKOFF_SECONDS = 300.0
MAX_HELD_SECONDS = 30.0
"""A new message may wait so long for what completes it."""
MAX_WAITING = 1_000
"""Messages of one category that wait for one recipient; the oldest of more is dropped."""
MAX_TEXT_CHARS = 65_536
MAX_ERROR_CHARS = 500
"""Kept of why a message was rejected."""
MAX_BATCH = 50
"""Messages of one claim."""


def backoff_seconds(attempts: int) -> float:
    """Return the wait of a message rejected after n attempts: 2^n s, at most 300."""
    # A power of two beyond the range of a float would raise.
    return min(2.0 ** min(attempts, 16), MAX_BACKOFF_SECONDS)


def dead_letter(
    recipient: str, message_id: int, run: str, now: float
) -> tuple[dict[str, Any], str]:
    """Return the event of a message that died, and its key, which holds for this death alone."""
    agent = StateRecord(recipient, run=run, epoch=1)
    event = agent.event("dead_letter", at=now, n=message_id, source="queue")
    return event, f"{recipient}/dead_letter/{message_id}/{event['occurredAt']}"


def harmless(ready: list[tuple[int, int]]) -> list[int]:
    """Return the ids to claim together: a message that failed before is claimed alone."""
    if ready and ready[0][1]:
        return [ready[0][0]]
    return [message_id for message_id, _ in takewhile(lambda row: not row[1], ready)]


def check_message(draft: Draft) -> None:
    """Refuse a message that cannot be queued.

    Raises:
        InvalidAgentIdError: Recipient or sender is no agent id.
        ConfigurationError: Text, category, delivery or expiry is not allowed.
    """
    check_agent_id(draft.recipient)
    if draft.sender is not None:
        check_agent_id(draft.sender)
    text, category = draft.text, draft.category
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT_CHARS:
        shown = f"{len(text):,} characters" if isinstance(text, str) else type(text).__name__
        raise ConfigurationError("text", shown, f"1 to {MAX_TEXT_CHARS:,} characters")
    if category is not None and not (isinstance(category, str) and 0 < len(category) <= 64):
        raise ConfigurationError("category", category, "None, or 1 to 64 characters")
    if draft.delivery not in DELIVERIES:
        raise ConfigurationError("delivery", draft.delivery, f"one of {', '.join(DELIVERIES)}")
    seconds = draft.expires_seconds
    if not 0 < seconds <= 366 * 86_400:
        raise ConfigurationError("expires_seconds", seconds, "0 < seconds <= 31,622,400")
    held = draft.held_seconds
    if not 0 <= held <= MAX_HELD_SECONDS:
        raise ConfigurationError("held_seconds", held, f"0 <= seconds <= {MAX_HELD_SECONDS:g}")
