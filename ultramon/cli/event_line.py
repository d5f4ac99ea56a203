"""One event of the journal as a line for people."""

from __future__ import annotations

from typing import Any

from ultramon.cli.output import field, moment
from ultramon.state.event_words import EVENT_TYPES, event_words
from ultramon.system.timestamps import parse_time

_TYPE_WIDTH = max(map(len, EVENT_TYPES))


def event_line(event: dict[str, Any], *, with_agent: bool = True) -> str:
    """Return an event as one line for people.

    Args:
        event: The event.
        with_agent: Whether to say whose it is.
    """
    kind = field(str(event.get("type")))
    at = parse_time(event.get("occurredAt"))
    when = "?" * 20 if at is None else moment(at)
    who = field(str(event.get("agentId"))) if with_agent else ""
    return "  ".join(filter(None, (when, f"{kind:<{_TYPE_WIDTH}}", who, event_words(event))))
