"""The caller of a request: who it is and what it may do."""

from __future__ import annotations

from typing import NamedTuple

ADMIN = "admin"


AGENT = "agent"


HOOK = "hook"


class Caller(NamedTuple):
    """Who calls, as proven."""

    kind: str
    """``admin``, ``agent`` or ``hook``."""
    agent_id: str | None = None
    """Whose token it is; None for the other kinds."""
