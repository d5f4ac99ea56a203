"""Events as rows of the journal: each is stored once under its key."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def event_key(event: dict[str, Any]) -> str:
    """Return the key of an event, under which it is stored once: agent, epoch, type, count."""
    return (
        f"{event['agentId']}/{event['generation']}/{event['epoch']}/{event['type']}/"
        f"{event.get('level') or ''}/{event.get('n', 0)}"
    )
