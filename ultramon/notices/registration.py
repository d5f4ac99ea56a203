"""Registrations as they are stored. Loaded with the database only: others need the rules alone."""

from __future__ import annotations

from collections import namedtuple

from ultramon.context.ladder import Ladder
from ultramon.errors import ConfigurationError
from ultramon.notices.levels import CUSTOM, DEFAULT, INVALID
from ultramon.notices.permissions import PARENT
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.state.record import StateRecord


class StoredRegistration(
    namedtuple(
        "StoredRegistration", "agent_id notify_id source ladder_json registered_by registered_at"
    )
):
    """One recipient's subscription to the notices about one agent, as it is stored."""

    __slots__ = ()

    agent_id: str
    """The agent that the notices are about."""
    notify_id: str
    """The recipient."""
    source: str
    """``explicit`` or ``parent``."""
    ladder_json: str | None
    """The rungs as JSON; None = the agent's own ladder."""
    registered_by: str
    """The agent that asked, or ``admin``."""
    registered_at: float
    """Epoch seconds."""

    @property
    def ladder(self) -> dict[str, Any] | None:
        """The rungs, as in a state file; None = the agent's own."""
        return self._read_ladder()[0]

    @property
    def ladder_status(self) -> str:
        """``default``, ``custom``, or ``invalid``: what is stored is no ladder.

        Then levels lead to no notice.
        """
        return self._read_ladder()[1]

    def _read_ladder(self) -> tuple[dict[str, Any] | None, str]:
        if self.ladder_json is None:
            return None, DEFAULT
        try:
            ladder = compact_json.loads(self.ladder_json)
            Ladder.from_json(ladder)
        except (ValueError, ConfigurationError):
            return None, INVALID
        return ladder, CUSTOM

    @property
    def is_enforced(self) -> bool:
        """Whether levels lead to notices."""
        return self.ladder_status != INVALID

    def target(self, record: StateRecord) -> str:
        """Return the recipient now: one derived from the parent follows re-parenting."""
        if self.source == PARENT and record.parent_id is not None:
            return record.parent_id
        return self.notify_id
