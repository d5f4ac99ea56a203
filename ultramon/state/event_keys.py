"""Events as rows of the journal: each is stored once under its key."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_KINDS = {
    "type": str,
    "run": str,
    "agentId": str,
    "occurredAt": str,
    "generation": int,
    "epoch": int,
}
"""What every event has: its key and the columns of its row are made of these."""
_TYPES = tuple(_KINDS.values())


def is_event(value: object) -> bool:
    """Return whether a decoded value has what every event has."""
    return isinstance(value, dict) and all(map(isinstance, map(value.get, _KINDS), _TYPES))


def event_key(event: dict[str, Any]) -> str:
    """Return the key of an event, under which it is stored once: agent, epoch, type, count.

    An event that is about no agent brings its key along.
    """
    # What several agents share is one event, whichever of them noticed it.
    own = event.get("key")
    if isinstance(own, str):
        return own
    return (
        f"{event['agentId']}/{event['generation']}/{event['epoch']}/{event['type']}/"
        f"{event.get('level') or ''}/{event.get('n', 0)}"
    )
