"""The caller of a request, as its credentials prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent

ADMIN = "admin"
AGENT = "agent"
HOOK = "hook"
METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        kind: ``admin``, ``agent``, ``hook`` or ``metrics``.
        agent_id: The agent of the token; None for the other kinds.
        stored: That agent as it was stored when the token was verified; no part of the identity.
    """

    kind: str
    agent_id: str | None = None
    stored: StoredAgent | None = field(default=None, compare=False, repr=False)

    @property
    def is_admin(self) -> bool:
        """Whether everything is allowed."""
        return self.kind == ADMIN

    @property
    def parent_id(self) -> str | None:
        """The direct parent of the token's agent."""
        record = None if self.stored is None else self.stored.record
        return None if record is None else record.parent_id
